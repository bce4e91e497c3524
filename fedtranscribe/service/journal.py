"""What a holder service did, as JSON lines: times, query ids, sizes and codes; nothing private.

Answers, losses, accuracies and error texts of libraries never come here.
"""

import json
import logging
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from fedtranscribe.reading import json_objects

_MOST_BYTES, _COPIES = 10_000_000, 5
_LONGEST = 100
_LONGEST_WORDS = 500  # of our own log lines


class Journal:
    """Appends one line per event; the file is turned over at 10 MB and five copies are kept.

    Args:
        path: of the file; its folder is made. None writes to standard error.
    """

    def __init__(self, path: Path | None) -> None:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        self._handler: logging.Handler = (
            logging.StreamHandler()
            if path is None
            else RotatingFileHandler(
                path, maxBytes=_MOST_BYTES, backupCount=_COPIES, encoding="utf-8"
            )
        )
        self._handler.setFormatter(logging.Formatter("%(message)s"))

    def write(self, event: str, **facts: str | float | int | None) -> None:
        """Append an event; texts that came from outside are cut."""
        cut = {k: v[:_LONGEST] if isinstance(v, str) else v for k, v in facts.items()}
        self._log(event, cut)

    def own_log(self) -> logging.Handler:
        """What puts the package's own log lines here too, as events of the name `log`."""
        journal = self

        class _Lines(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                words = record.getMessage()[:_LONGEST_WORDS]
                journal._log("log", {"level": record.levelname, "words": words})

        return _Lines()

    def close(self) -> None:
        """Let go of the file."""
        self._handler.close()

    def _log(self, event: str, facts: Mapping[str, Any]) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        text = json.dumps({"time": now, "event": event, **facts})
        self._handler.handle(
            logging.LogRecord("journal", logging.INFO, "", 0, text, args=None, exc_info=None)
        )


def refusals(path: Path | None) -> dict[str, int]:
    """How often each refusal code is in the journal's current file."""
    return dict(Counter(str(e.get("code")) for e in entries(path) if e.get("event") == "refused"))


def entries(path: Path | None) -> list[Mapping[str, Any]]:
    """The events in the journal's current file; a damaged line is passed over."""
    if path is None or not path.exists():
        return []
    return list(json_objects(path.read_text(encoding="utf-8").splitlines()))
