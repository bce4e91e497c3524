"""Whether a data holder could serve, and what is wrong if not: everything, not only the first."""

import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from fedtranscribe.data import ImageSet
from fedtranscribe.errors import FedtranscribeError, StorageError
from fedtranscribe.files import who_may_open, who_may_reach
from fedtranscribe.holder.holder_file import HolderFile
from fedtranscribe.holder.holding import Holding, open_records, open_teachers
from fedtranscribe.holder.masking import RoundStore
from fedtranscribe.holder.trainings import folder_size
from fedtranscribe.models import pick_device
from fedtranscribe.models.backbones import NO_BACKBONES
from fedtranscribe.models.teachers import Manifest
from fedtranscribe.privacy.budget import two_digits_below, words
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.questions.question import is_sum
from fedtranscribe.text import counted

T = TypeVar("T")


@dataclass(frozen=True)
class ReadinessFinding:
    """One thing that was looked at."""

    name: str  # of it
    ok: bool  # whether it is as it has to be
    words: str  # what was found, or what is wrong and how to fix it


def examine(path: Path) -> list[ReadinessFinding]:
    """Look at a holder's file and all that it names; writes nothing, serves nothing."""
    file, finding = _attempt("policy", lambda: HolderFile.read(path))
    if file is None:
        return [finding]
    policy = file.policy
    limits = (
        f"ε ≤ {policy.epsilon:g} at δ = {policy.delta:g} per {policy.unit}, noise {policy.noise}"
    )
    findings = [
        ReadinessFinding("policy", True, limits),
        ReadinessFinding("answers", True, _answers(file)),
    ]
    findings += _held(file)
    if file.holder.features:
        findings.append(_attempt("features", lambda: _features(file))[1])
    if file.holder.key is not None:
        findings.append(_attempt("masked sums", lambda: _masks(file))[1])
        findings.append(_not_for_others("key's folder", file.holder.key.parent))
    if file.holder.records is not None:
        findings += _out_of_reach("records' files", file.holder.records)
    if file.holder.teachers is not None:
        findings.append(_not_for_others("teachers' folder", file.holder.teachers))
    findings.append(_not_for_others("ledger's folder", file.holder.ledger.parent))
    if file.holder.metrics is not None:
        findings.append(_attempt("metrics' folder", lambda: _metrics(file))[1])
    return findings


def budget_left(ledger: Ledger) -> dict[str, float | None]:
    """What is booked per unit, and what the limit in force leaves; None where a unit has no cost.

    `left` is the limit less what is booked. A new run may cost more than that, because μ² adds and
    not ε: `largest run` is the ε with which one with Gaussian noise still fits. The highest limit
    that the ledger ever had is what its answers together are: its ε.
    """
    budget, highest = ledger.budget, ledger.highest
    delta = budget.delta if budget else 1e-5
    figures: dict[str, float | None] = {}
    for unit in Unit:
        try:
            figures[f"{unit} booked"] = ledger.total(delta, unit, Adjacency.ZERO_OUT).epsilon
        except FedtranscribeError:
            figures[f"{unit} booked"] = None
    if budget is not None and highest is not None:
        used = figures[f"{budget.unit} booked"]
        figures[f"{budget.unit} left"] = None if used is None else max(0.0, budget.epsilon - used)
        figures[f"{budget.unit} largest run"] = two_digits_below(ledger.room(budget.delta))
        figures[f"{budget.unit} limit"] = budget.epsilon
        figures[f"{budget.unit} highest limit"] = highest.epsilon
    return figures


def limits(ledger: Ledger) -> dict[str, str]:
    """Every limit that counts, by the time since when: a raise can be seen."""
    return {
        since: f"{limit.epsilon:g} ({limit.unit}, {limit.adjacency}, δ = {limit.delta:g})"
        for since, limit in ledger.limits
    }


def quotas(file: HolderFile, ledger: Ledger) -> dict[str, dict[str, int]]:
    """What is kept beside what the policy lets be kept."""
    asked = [run.queries for run in ledger.runs()]
    store = RoundStore(file.rounds)
    keyed = store.runs if file.rounds.exists() else 0
    stored = ledger.size + store.size + folder_size(file.trained)
    return {
        "runs": {"used": max(len(asked), keyed), "limit": file.runs},
        "queries of a run": {"used": max(asked, default=0), "limit": file.queries_per_run},
        "stored bytes": {"used": stored, "limit": file.stored_bytes},
    }


def _attempt(name: str, do: Callable[[], T]) -> tuple[T | None, ReadinessFinding]:
    try:
        found = do()
    except FedtranscribeError as error:
        return None, ReadinessFinding(name, False, str(error))
    return found, ReadinessFinding(name, True, found if isinstance(found, str) else "")


def _answers(file: HolderFile) -> str:
    kinds = file.policy.answered
    source = {True: file.summed, False: file.holder.teachers}
    words = ", ".join(kind for kind in kinds if source[is_sum(kind)] is not None) or "none"
    if file.summed is None and any(is_sum(kind) for kind in kinds):
        return f"{words}; no sums: [holder] records names none that can be read here"
    return words


def _held(file: HolderFile) -> list[ReadinessFinding]:
    """Device, teachers, records and ledger; what rests on something wrong is not looked at."""
    device, finding = _attempt("device", lambda: str(pick_device(file.holder.device)))
    findings = [finding]
    if device is None:
        return findings
    teachers, finding = _attempt("teachers", lambda: open_teachers(file))
    if not finding.ok:
        return [*findings, finding]
    if teachers is not None:
        findings.append(ReadinessFinding("teachers", True, _of_teachers(teachers.manifest)))
    records, finding = _attempt("records", lambda: open_records(file, teachers))
    if not finding.ok:
        return [*findings, finding]
    holding = Holding(file, teachers, records)
    if records is not None:
        findings.append(_attempt("records", lambda: _of_records(holding, records))[1])
    return [*findings, _attempt("ledger", lambda: _ledger(holding))[1]]


def _of_teachers(manifest: Manifest) -> str:
    words = f"{counted(manifest.shards, 'teacher')} ({manifest.architecture}), "
    words += f"{manifest.classes} classes of {manifest.channels}x{manifest.size}"
    if manifest.imported is not None and manifest.imported.declared_by is not None:
        words += f"; {manifest.imported.declared_by} declares that their shards are disjoint"
    return words


def _of_records(holding: Holding, records: ImageSet) -> str:
    facts = holding.facts(NO_BACKBONES)
    return f"{facts.classes} classes of {records.channels}x{records.size}, {words(records.ids_by)}"


def _features(file: HolderFile) -> str:
    return "sums may be taken on " + ", ".join(file.backbones().names)


def _metrics(file: HolderFile) -> str:
    path = file.holder.metrics
    assert path is not None
    expect_closed(path, file.holder.socket)
    return f"mode {stat.S_IMODE(path.parent.stat().st_mode):o}"


def _masks(file: HolderFile) -> str:
    masking = file.masking()
    assert masking is not None
    names = ", ".join(masking.identity.roster)
    return f"on the roster: {names}; dropouts <= {file.dropouts}, colluders {file.colluders}"


def _ledger(holding: Holding) -> str:
    holding.ledger_place()
    unseen = holding.unseen()
    return _booked(holding) if unseen is None else f"{_booked(holding)}; {unseen}"


def _booked(holding: Holding) -> str:
    file = holding.file
    if not file.holder.ledger.exists():
        return "none yet: the first start makes it"
    with Ledger.open_read_only(file.holder.ledger, holding.data_id) as ledger:
        ledger.verify()
        unit = file.policy.unit
        booked = budget_left(ledger)[f"{unit} booked"]
        entries = counted(ledger.head.sequence, "entry", "entries")
        return f"{entries} proved, booked per {unit}: {booked}"


def _not_for_others(name: str, folder: Path) -> ReadinessFinding:
    """The SuperNode's user is one of the others, as far as file modes go."""
    if not folder.is_dir():
        return ReadinessFinding(
            name, False, f"{folder} is no folder; make it, for the holder's user only."
        )
    mode = stat.S_IMODE(folder.stat().st_mode)
    who = who_may_open(folder)
    if who is not None:
        words = f"{folder} is open to {who} (mode {mode:o}); chmod 700 {folder}."
        return ReadinessFinding(name, False, words)
    return ReadinessFinding(name, True, f"mode {mode:o}")


def _out_of_reach(name: str, path: Path) -> list[ReadinessFinding]:
    """What other users may read; nothing of files that cannot be seen, which may be elsewhere."""
    try:
        who = who_may_reach(path)
    except OSError:
        return []
    if who is None:
        return [ReadinessFinding(name, True, "closed to other users")]
    return [ReadinessFinding(name, False, f"{path} is open to {who}; chmod -R go= {path}.")]


def expect_closed(path: Path, socket: Path) -> None:
    """Refuse a folder whose metrics the SuperNode's user, and so the server, could read."""
    folder = path.parent
    fix = f"sudo install -d -o USER -g COLLECTOR -m 2750 {folder}"
    if not folder.is_dir():
        raise StorageError(
            f"The metrics' folder {folder} is absent; make it for the service's user and the "
            f"collector's group: {fix}"
        )
    found = folder.stat()
    if found.st_mode & stat.S_IRWXO:
        raise StorageError(
            f"The metrics' folder {folder} is open to all users (mode "
            f"{stat.S_IMODE(found.st_mode):o}), the SuperNode's among them; {fix}"
        )
    if not found.st_mode & stat.S_IRWXG:
        return
    if socket.parent.is_dir() and found.st_gid == socket.parent.stat().st_gid:
        raise StorageError(
            f"The metrics' folder {folder} is open to the group of the socket's folder, in which "
            f"the SuperNode's user is; {fix}"
        )
    if not found.st_mode & stat.S_ISGID:
        raise StorageError(
            f"The metrics' folder {folder} does not hand its group on to the file in it; {fix}"
        )
