"""Proofs of a book: its chain from the start or from a proved entry, its head file, its totals."""

from pathlib import Path

from fedtranscribe.errors import CorruptLedgerError
from fedtranscribe.privacy.chain import START, Entry, EntryKind, Head, changed, head_path, walk
from fedtranscribe.privacy.entry_store import EntryStore
from fedtranscribe.privacy.totals import Totals, noted


def count(
    store: EntryStore, known: Head | None, *, stored: bool, whole: bool
) -> tuple[Totals, bool]:
    """Count the entries, from the stored totals on or all of them, each once it is proved.

    Args:
        store: the rows.
        known: the head file's entry.
        stored: whether the format has stored totals.
        whole: count all of them, and prove pages and answers, too.

    Returns:
        The totals, and whether all entries were proved: also where the stored totals, or a note of
        a proof, cannot be believed.

    Raises:
        CorruptLedgerError: names the first sequence or the first answer that is wrong.
    """
    first = store.first
    if first not in (None, 1):
        raise CorruptLedgerError(
            f"Expected ledger entry 1 after 0, found {first}: entries were removed or put in. "
            f"Restore the ledger from its last copy."
        )
    believed = store.totals() if stored else None
    # The head file fixes all entries up to its own. Totals after it anybody could have added.
    if believed is None or known is None or believed.head.sequence > known.sequence:
        whole = True
    totals = Totals() if whole or believed is None else believed
    if whole:
        store.expect_sound_pages()
    commits = 0
    for entry in walk(store.after(totals.head), totals.head):
        totals.add(entry)
        if not whole and claims_proof(entry, known):
            return count(store, known, stored=stored, whole=True)
        if entry.kind == EntryKind.COMMIT:
            store.answer(entry)
            commits += 1
    if whole:
        store.expect_answers(commits)
    return totals, whole


def claims_proof(entry: Entry, known: Head | None) -> bool:
    """Whether an entry notes a proof, and stands after the head file's, where anybody may write."""
    if entry.kind != EntryKind.CHECKPOINT or (
        known is not None and entry.sequence <= known.sequence
    ):
        return False
    try:
        return noted(entry.content)
    except (ValueError, KeyError, TypeError):
        return True


def expect_chained(store: EntryStore, entry: Entry, totals: Totals) -> None:
    """Refuse an entry that the chain does not hold: it would make a query free of charge.

    Raises:
        CorruptLedgerError: names it.
    """
    if entry.sequence > totals.checkpoint:
        raise changed(entry)  # or `totals` would remember it
    before, end = totals.around(entry.sequence)
    part = list(walk(store.after(before, end.sequence), before))
    if not part or part[-1].head != end or entry not in part:
        raise changed(entry)


def expect_head_file(path: Path, known: Head | None, totals: Totals) -> None:
    """Refuse a book of reservations without a head file.

    Raises:
        CorruptLedgerError: there is none.
    """
    if known is None and totals.tally:
        raise CorruptLedgerError(
            f"{head_path(path)} is missing beside a ledger that has reservations, "
            f"so that a dropped tail could not be seen. Restore it from a copy, or write "
            f'the head of the last answer into it as {{"sequence": …, "hash": "…"}}.'
        )


def expect_reached(store: EntryStore, head: Head) -> None:
    """Refuse a book that ends before `head`, or has another hash there.

    Raises:
        CorruptLedgerError: names the sequence.
    """
    if head == START:
        return
    last = store.head
    if last.sequence < head.sequence:
        raise CorruptLedgerError(
            f"The ledger {store.path} ends at entry {last.sequence}, but had reached "
            f"{head.sequence}: its tail was dropped or an older copy was put back. "
            f"Restore the newest copy."
        )
    entry = store.entry(head.sequence)
    if entry is None or entry.hash != head.hash:
        raise CorruptLedgerError(
            f"Entry {head.sequence} of the ledger {store.path} is not the one that was written "
            f"there: its history was replaced. Restore the right copy."
        )


def lost(path: Path, sequence: int) -> CorruptLedgerError:
    """The error about an entry that was counted and is not there any more."""
    return CorruptLedgerError(
        f"Entry {sequence} of the ledger {path} was there and is lost: entries were "
        f"removed. Restore the ledger from its last copy."
    )
