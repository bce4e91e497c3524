"""Why a holder does not answer: a code, and nothing else.

An error text could carry private records across the wire, and several codes for what goes wrong
inside would tell one private state from another.
"""

from enum import StrEnum


class RefusalCode(StrEnum):
    """Everything that a holder may say instead of answering."""

    PROTOCOL = "PROTOCOL_VERSION"
    """The message is of another protocol version."""
    MALFORMED = "MALFORMED_QUERY"
    """The public part makes no sense or does not fit this holder's classes and image shape."""
    POLICY = "POLICY_REFUSED"
    """The holder's policy does not allow it."""
    BUDGET = "BUDGET_EXHAUSTED"
    """The holder's ledger would exceed its limit."""
    CONFLICT = "QUERY_CONFLICT"
    """The query id was used for something else, or its answer is being computed elsewhere."""
    INTERNAL = "INTERNAL_ERROR"
    """Anything else; details stay in the holder's own log."""


class Refusal(Exception):  # noqa: N818 (a reply like any other, no error)
    """Raised by a holder's node; only its code leaves the holder."""

    def __init__(self, code: RefusalCode) -> None:
        super().__init__(code.value)
        self.code = code
