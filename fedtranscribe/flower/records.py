"""Our messages as Flower's records, there and back: nothing is read or converted on the way."""

from io import BytesIO

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.lib.format import read_array_header_1_0, read_magic

from fedtranscribe.questions.messages import Message

TERMS = "terms"


ARRAYS = "arrays"


_STYPE = "numpy.ndarray"


def record_of(message: Message) -> RecordDict:
    """A message as Flower carries it."""
    content = RecordDict({TERMS: ConfigRecord(message.terms)})
    if message.arrays:
        arrays = {name: _array_of(data) for name, data in message.arrays.items()}
        content[ARRAYS] = ArrayRecord(arrays)
    return content


def message_of(content: RecordDict) -> Message:
    """The inverse of `record_of`; a record that is none of ours is a message of no protocol."""
    terms = content.config_records.get(TERMS, {})
    arrays = content.array_records.get(ARRAYS, {})
    return Message(dict(terms), {name: array.data for name, array in arrays.items()})


def _array_of(data: bytes) -> Array:
    """Flower's array over the bytes of a .npy file, as it makes it from a numpy array."""
    stream = BytesIO(data)
    read_magic(stream)
    shape, _, dtype = read_array_header_1_0(stream)
    return Array(str(dtype), shape, _STYPE, data)
