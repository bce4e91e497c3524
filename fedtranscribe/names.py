"""Names that come from outside: of runs, queries, stages, holders, data sets and requesters.

They end in the ledger, in tables and in logs, so one rule holds for all of them, where they arrive
and again where they are kept.
"""

import re

from fedtranscribe.errors import ConfigError

LONGEST_NAME = 200

_SHOWN = 40
_REPOSITORY = re.compile(r"[\w-][\w.-]{0,95}/[\w-][\w.-]{0,95}", re.ASCII)


def expect_name(what: str, value: str) -> str:
    """The value itself, if it can be a name.

    Args:
        what: what it names, for the error.
        value: the name.

    Raises:
        ConfigError: it is empty, longer than `LONGEST_NAME` characters, or not printable.
    """
    if not 0 < len(value) <= LONGEST_NAME or not value.isprintable():
        shown = repr(value[:_SHOWN]) + ("…" if len(value) > _SHOWN else "")
        raise ConfigError(
            f"Expected {what}={shown} to have 1 to {LONGEST_NAME} printable characters, "
            f"got {len(value)}."
        )
    return value


def expect_repository(name: str) -> None:
    """Refuse what names no repository on a hub.

    Raises:
        ConfigError: it is not OWNER/NAME.
    """
    if _REPOSITORY.fullmatch(name) is None:
        raise ConfigError(f"Expected the repository as OWNER/NAME, got {name[:200]!r}.")
