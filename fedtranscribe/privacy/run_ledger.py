"""The ledger of the data as a run opens it, and the order in which private answers are made."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from fedtranscribe.errors import QueryConflictError
from fedtranscribe.privacy.budget import Budget, expect_noted
from fedtranscribe.privacy.chain import Head
from fedtranscribe.privacy.ledger import PROVED_WITHIN, Ledger
from fedtranscribe.privacy.ledger_place import LedgerPlace
from fedtranscribe.privacy.release_plan import MechanismRelease

Say = Callable[[str], None]


def open_for_run(
    place: LedgerPlace,
    ids: str,
    run: str,
    asked: float | None,
    usual: Budget,
    releases: Sequence[MechanismRelease],
    say: Say,
) -> Ledger:
    """Open the ledger for a run; one that starts gets its limit, and has to fit under it.

    A run that goes on keeps the limit in force, which others may have changed since it started.

    Args:
        place: where it lies, from `ledger_of`.
        ids: how those of the records are made, such as `ImageSet.ids_by`.
        run: its name in the ledger.
        asked: ε of the limit, where the user asks for one.
        usual: the limit of a new ledger, where not; once something is booked only ε can be
            changed.
        releases: what the run will give away in all.
        say: receives lines for the user.

    Raises:
        BudgetExhaustedError: the plan does not fit; nothing was booked.
        ConfigError: ids were made otherwise before; nothing was booked.
        StorageError, LedgerError: see their classes.
    """
    ledger = Ledger.open(place.path, place.data_id)
    try:
        ledger.prove(PROVED_WITHIN)
        noted = place.marks  # published sets are read in one way
        if noted:
            expect_noted(place.path, ids)
        place.mark()
        if not ledger.usage(run).queries:
            if place.words is not None:
                say(place.words)
            _set_limit(ledger, place.path, asked, usual, say)
            ledger.check(*releases, delta=usual.delta)
        if noted:
            ledger.note_ids(ids)
    except BaseException:
        ledger.close()
        raise
    return ledger


def _set_limit(ledger: Ledger, path: Path, asked: float | None, usual: Budget, say: Say) -> None:
    before = ledger.budget
    # A run that was refused has booked nothing, and so has settled nothing: the δ, unit and
    # adjacency are those of the first run that books.
    kind = before if before is not None and ledger.runs() else usual
    wanted = before.epsilon if before is not None and before.fixed else usual.epsilon
    limit = replace(kind, epsilon=asked or wanted)
    if limit == before:
        return
    ledger.set_budget(limit)
    words = f"{limit.epsilon:g} ({limit.unit}, {limit.adjacency}, δ = {limit.delta:g})"
    highest = ledger.highest
    if before is None:
        hint = "" if asked else "; --budget sets another one"
        say(f"new ledger {path}: ε of all runs on these data is limited to {words}{hint}")
    elif highest is not None and not highest.fixed:
        say(
            f"the ledger {path} answered without a limit; from now on it has one, {words}. No ε "
            f"bounds what was answered before, and so all runs together."
        )
    elif not ledger.runs():
        say(f"limit of the ledger {path}, under which nothing was booked, is {words} from now on")
    else:
        say(
            f"limit of the ledger {path} changed from {before.epsilon:g} to {words}. The highest "
            f"limit is the ε of all runs, and only if no answer was the reason for the change."
        )


def answer_once(
    ledger: Ledger,
    query_id: str,
    bound_to: str,
    release: MechanismRelease,
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
