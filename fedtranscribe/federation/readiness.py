"""Whether a data holder could serve, and what is wrong if not: everything, not only the first."""

import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from fedtranscribe.errors import FedtranscribeError
from fedtranscribe.federation.holder_file import HolderFile
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.teachers import Teachers
from fedtranscribe.transcribe.session import pick_device

T = TypeVar("T")


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: of it.
        ok: whether it is as it has to be.
        words: what was found, or what is wrong and how to mend it.
    """

    name: str
    ok: bool
    words: str


def examine(path: Path) -> list[Finding]:
    """Look at a holder's file and all that it names; writes nothing, serves nothing."""
    file, finding = _settled("policy", lambda: HolderFile.read(path))
    if file is None:
        return [finding]
    policy = file.policy
    limits = (
        f"ε ≤ {policy.epsilon:g} at δ = {policy.delta:g} per {policy.unit}, noise {policy.noise}"
    )
    findings = [Finding("policy", True, limits)]
    teachers, finding = _settled("teachers", lambda: _teachers(file))
    findings.append(finding)
    if teachers is not None:
        m = teachers.manifest
        words = f"{m.shards} of {m.architecture}, {m.classes} classes of {m.channels}x{m.size}"
        findings[-1] = Finding("teachers", True, words)
        findings.append(_settled("ledger", lambda: _ledger(file, m.data_id))[1])
    if file.holder.key is not None:
        findings.append(_settled("masked sums", lambda: _masks(file))[1])
        findings.append(_not_for_others("key's folder", file.holder.key.parent))
    findings += [
        _not_for_others("teachers' folder", file.holder.teachers),
        _not_for_others("ledger's folder", file.holder.ledger.parent),
    ]
    return findings


def budget_left(ledger: Ledger) -> dict[str, float | None]:
    """ε spent per unit, and what the limit in force leaves; None where a unit has no cost."""
    budget = ledger.budget
    delta = budget.delta if budget else 1e-5
    spent: dict[str, float | None] = {}
    for unit in Unit:
        try:
            spent[f"{unit} spent"] = ledger.total(delta, unit, Adjacency.ZERO_OUT).epsilon
        except FedtranscribeError:
            spent[f"{unit} spent"] = None
    if budget is not None:
        used = spent[f"{budget.unit} spent"]
        spent[f"{budget.unit} limit"] = budget.epsilon
        spent[f"{budget.unit} left"] = None if used is None else max(0.0, budget.epsilon - used)
    return spent


def _settled(name: str, do: Callable[[], T]) -> tuple[T | None, Finding]:
    try:
        found = do()
    except FedtranscribeError as error:
        return None, Finding(name, False, str(error))
    return found, Finding(name, True, found if isinstance(found, str) else "")


def _teachers(file: HolderFile) -> Teachers:
    teachers = Teachers(file.holder.teachers, pick_device(file.holder.device))
    teachers.verify()
    return teachers


def _masks(file: HolderFile) -> str:
    masking = file.masking()
    assert masking is not None
    names = ", ".join(masking.identity.roster)
    return f"on the roster: {names}; dropouts <= {file.dropouts}, colluders {file.colluders}"


def _ledger(file: HolderFile, data_id: str) -> str:
    if not file.holder.ledger.exists():
        return "none yet: the first start makes it"
    with Ledger.open_read_only(file.holder.ledger, data_id) as ledger:
        spent = file.policy.unit
        left = budget_left(ledger)[f"{spent} spent"]
        return f"{ledger.head.sequence} entries proved, ε spent per {spent}: {left}"


def _not_for_others(name: str, folder: Path) -> Finding:
    """The SuperNode's user is one of the others, as far as file modes go."""
    if not folder.is_dir():
        return Finding(name, False, f"{folder} is no folder; make it, for the holder's user only.")
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & stat.S_IRWXO:
        words = f"{folder} is open to all users (mode {mode:o}); chmod o-rwx {folder}."
        return Finding(name, False, words)
    return Finding(name, True, f"mode {mode:o}")
