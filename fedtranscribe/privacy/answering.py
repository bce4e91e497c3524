"""The order in which everything private is answered: charge, compute, store, release."""

from collections.abc import Callable

from fedtranscribe.errors import QueryConflictError
from fedtranscribe.privacy.chain import Head
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.release_plan import Release


def answer_once(
    ledger: Ledger,
    query_id: str,
    bound_to: str,
    release: Release,
    run: str,
    compute: Callable[[], bytes],
) -> tuple[bytes, Head]:
    """The private answer to a query, charged once and replayable for ever.

    Args:
        ledger: the budget book of the data.
        query_id: the query's id.
        bound_to: hash of everything that the answer depends on.
        release: what answering costs.
        run: name under which the ledger books.
        compute: makes the private answer; called after it is paid for, and only if no answer is
            stored. Noise is never drawn twice for one query that was answered.

    Returns:
        The stored answer and the head of the ledger.

    Raises:
        BudgetExhaustedError: the holder's limit would be exceeded; nothing was booked.
        QueryConflictError: the id was used for another query.
    """
    stored = ledger.reserve(query_id, bound_to, release, run).answer
    if stored is None:
        stored = compute()
        try:
            ledger.commit(query_id, stored)
        except QueryConflictError:
            # Another process was asked the same and came first: its answer stands.
            stored = ledger.reserve(query_id, bound_to, release, run).answer
            assert stored is not None
    return stored, ledger.head
