"""A ledger that stays open between queries, for a service that answers thousands.

Opening proves the book from its last checkpoint on, and each entry after that is chained to what
was proved. The whole book takes longer with every answer in it: `prove` goes through all of it when
the service starts, and again at the start of a run once the last proof is a day old.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from fedtranscribe.errors import CorruptLedgerError
from fedtranscribe.privacy.budget import Budget
from fedtranscribe.privacy.ledger import Ledger


class KeptLedger:
    """Opens the ledger of a data set at first use; use it from one thread.

    Args:
        path: the SQLite file.
        data_id: what the book is bound to.
        budget: the limit from the holder's policy.
    """

    def __init__(self, path: Path, data_id: str, budget: Budget) -> None:
        self._path, self._data_id, self._budget = path, data_id, budget
        self._ledger: Ledger | None = None
        self._file: tuple[int, int] | None = None

    @contextmanager
    def __call__(self) -> Iterator[Ledger]:
        """The open ledger; another file under its name is opened, and so proved, first."""
        if self._ledger is None or _file(self._path) != self._file:
            self.close()
            self._ledger = Ledger.open(self._path, self._data_id, self._budget)
            self._file = _file(self._path)
        try:
            yield self._ledger
        except CorruptLedgerError:
            # After the file is fixed it is opened, and so proved, again.
            self.close()
            raise

    def prove(self, within: timedelta = timedelta(0)) -> None:
        """Prove the whole book, unless that was done `within` this time: then as opening does.

        Raises:
            LedgerError: it is damaged, edited, cut, rolled back, or of other data.
        """
        with self() as ledger:
            ledger.prove(within)

    def close(self) -> None:
        """Let go of the file."""
        if self._ledger is not None:
            self._ledger.close()
        self._ledger = self._file = None


def _file(path: Path) -> tuple[int, int] | None:
    """Which file the name means now: a restored copy is another one."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
