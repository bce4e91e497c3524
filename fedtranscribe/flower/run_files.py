"""What a simulated run writes into its folder, as the command that waits for it reads it.

progress.jsonl   one JSON object a line, as the run goes on
error.json       a user's mistake: what to say, and the exit code
metrics.json     the result; only a generator may come after it
superlink.log    what Flower and Ray said, kept by the command
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedtranscribe.allowed import expect_allowed
from fedtranscribe.errors import FedtranscribeError, SimulationError
from fedtranscribe.files import write_atomically
from fedtranscribe.reading import json_objects, read_object

ERROR = "error.json"
LOG = "superlink.log"


class Tail:
    """New whole lines of a file of JSON objects that another process writes.

    Args:
        path: the file; it need not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._half = b""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """What has come since the last time; a line that is no object is passed over."""
        try:
            if self._path.stat().st_size < self._read:
                self._read, self._half = 0, b""
            with self._path.open("rb") as stream:
                stream.seek(self._read)
                new = stream.read()
        except FileNotFoundError:
            return
        self._read += len(new)
        *whole, self._half = (self._half + new).split(b"\n")
        yield from json_objects(whole)


def report_mistake(folder: Path, error: FedtranscribeError) -> None:
    """Leave a user's mistake for the command that waits."""
    mistake = {"error": str(error), "exit_code": error.exit_code}
    expect_allowed(ERROR, mistake)
    write_atomically(folder / ERROR, json.dumps(mistake).encode())


def raise_mistake(folder: Path) -> None:
    """Raise what the ServerApp wrote into `error.json`, as the class with that exit code.

    Raises:
        FedtranscribeError: there is such a file, and it is whole.
    """
    mistake = read_object(folder / ERROR)
    if mistake is None:
        return
    kinds = [FedtranscribeError, *FedtranscribeError.__subclasses__()]
    code = mistake.get("exit_code")
    kind = next((kind for kind in kinds if kind.exit_code == code), SimulationError)
    raise kind(str(mistake.get("error", f"The run failed; see {folder / LOG}.")))
