"""Why a holder does not answer: a code for the server, words for its own log."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from traceback import extract_tb

from fedtranscribe.errors import (
    BudgetExhaustedError,
    ConfigError,
    FedtranscribeError,
    ModelMismatchError,
    ProtocolError,
    QueryConflictError,
    UnsupportedAdjacencyError,
)

log = logging.getLogger(__name__)


class RefusalCode(StrEnum):
    """Everything that a holder may say instead of answering."""

    PROTOCOL = "PROTOCOL_VERSION"
    """The message is of another protocol version."""
    MALFORMED = "MALFORMED_QUERY"
    """The public part cannot be read or does not fit this holder's classes and image shape."""
    POLICY = "POLICY_REFUSED"
    """The holder's policy does not allow it."""
    BUDGET = "BUDGET_EXHAUSTED"
    """The holder's ledger would exceed its limit."""
    QUOTA = "QUOTA_EXCEEDED"
    """The holder keeps as many runs, queries or bytes as its policy lets it."""
    CONFLICT = "QUERY_CONFLICT"
    """The query id was used for something else, or its answer is being computed elsewhere."""
    INTERNAL = "INTERNAL_ERROR"
    """Anything else; details stay in the holder's own log."""


class Refusal(Exception):  # noqa: N818 (a reply like any other, no error)
    """Raised by a holder's node; only its code leaves the holder."""

    def __init__(self, code: RefusalCode) -> None:
        super().__init__(code.value)
        self.code = code


@contextmanager
def refusing(holder: str, subject: str) -> Iterator[None]:
    """Turn whatever goes wrong into a code; the holder's own log has the rest.

    Args:
        holder: its name.
        subject: the query or run.

    Raises:
        Refusal: whatever it was.
    """
    try:
        yield
    except Refusal:
        raise
    except BudgetExhaustedError as error:
        # For the holder alone: what is booked, the limit, and what would still fit.
        log.warning("holder %s refuses %s: %s", holder, subject, error)
        raise Refusal(RefusalCode.BUDGET) from None
    except QueryConflictError:
        raise Refusal(RefusalCode.CONFLICT) from None
    except ProtocolError as error:
        # Public: what the server sent does not continue the round as it was begun.
        log.warning("holder %s refuses %s: %s", holder, subject, error)
        raise Refusal(RefusalCode.CONFLICT) from None
    except UnsupportedAdjacencyError:
        # This kind of answer has no cost in the unit that the policy counts in.
        raise Refusal(RefusalCode.POLICY) from None
    except (ConfigError, ModelMismatchError) as error:
        log.warning("holder %s refuses %s: %s", holder, subject, error)
        raise Refusal(RefusalCode.MALFORMED) from None
    except Exception as error:
        log.error("holder %s could not answer %s: %s", holder, subject, where(error))
        raise Refusal(RefusalCode.INTERNAL) from None


def where(error: Exception) -> str:
    """What went wrong and where, for the holder's own log.

    Our own messages are written to hold nothing private; others' may quote a record, so of them
    only the kind and the place are told.
    """
    words = str(error) if isinstance(error, FedtranscribeError) else "its text is not logged"
    frames = extract_tb(error.__traceback__)
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "an unknown place"
    return f"{type(error).__name__} at {place}: {words}"
