"""What the server has heard in a masked round, kept so that it can go on after an interrupt."""

import json
from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from fedtranscribe import reading
from fedtranscribe.errors import StorageError
from fedtranscribe.files import write_atomically

Named = dict[str, bytes]

_MOST_BYTES = 2**30
"""Of a complete graph of a thousand holders; of a sparse one of ten thousand it is half."""


@dataclass
class Progress:
    """What has been heard in a round.

    Attributes:
        query: its id.
        sent: what went to each neighbour, by sender and receiver; empty before stage 1 has ended.
        vectors: whose masked vectors are stored, in a file of their own.
        tags: by holder and neighbour.
        survivors: whose vectors make the sum; empty before they were sent out for signature.
        signatures: by holder.
        revealed: shares by holder and owner.
    """

    query: str
    sent: dict[str, Named] = field(default_factory=dict)
    vectors: list[str] = field(default_factory=list)
    tags: dict[str, Named] = field(default_factory=dict)
    survivors: list[str] = field(default_factory=list)
    signatures: Named = field(default_factory=dict)
    revealed: dict[str, Named] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Keep it, in place of whatever was there.

        Raises:
            StorageError: it cannot be written.
        """
        told = {name: _packed(value) for name, value in vars(self).items()}
        write_atomically(path, json.dumps(told).encode())

    @classmethod
    def load(cls, path: Path, query_id: str) -> Self | None:
        """What is kept of this query's round; None if nothing is.

        Raises:
            StorageError: the file is damaged, or of another version.
        """
        if not path.exists():
            return None
        told = read_json(path)
        if told.get("query") != query_id:
            return None
        try:
            by_pair = {
                part: {name: _unpacked(each) for name, each in told[part].items()}
                for part in ("sent", "tags", "revealed")
            }
            return cls(
                query_id,
                vectors=list(told["vectors"]),
                survivors=told["survivors"],
                signatures=_unpacked(told["signatures"]),
                **by_pair,
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            raise of_another_version(path) from None


def of_another_version(path: Path) -> StorageError:
    """The error for a file of the server's own that this version did not write."""
    return StorageError(
        f"{path} was written by another version of fedtranscribe; finish the run with that "
        "version, or start a new run with another --out. The ledgers keep what was spent."
    )


def read_json(path: Path) -> dict[str, Any]:
    """A file of the server's own.

    Raises:
        StorageError: it is damaged.
    """
    try:
        return reading.read_json(path, _MOST_BYTES)
    except (OSError, ValueError) as error:
        raise StorageError(
            f"{path} is damaged ({type(error).__name__}); start a new run with another --out. The "
            "ledgers keep what was spent."
        ) from None


def _packed(value: Any) -> Any:
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, dict):
        return {name: _packed(entry) for name, entry in value.items()}
    return value


def _unpacked(told: dict[str, str]) -> Named:
    return {name: b64decode(text) for name, text in told.items()}
