"""A holder that says which one it is."""

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.query("hello")
def hello(message: Message, context: Context) -> Message:
    answer = ConfigRecord({"partition": int(context.node_config["partition-id"])})
    return Message(RecordDict({"answer": answer}), reply_to=message)
