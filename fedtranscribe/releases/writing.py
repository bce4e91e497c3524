"""A release folder, there whole or not at all, with its networks as ONNX."""

import importlib
import importlib.util
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from fedtranscribe.errors import ConfigError, StorageError
from fedtranscribe.files import read_object, unwritable
from fedtranscribe.models import save_network
from fedtranscribe.models.diffusion import Synthesizer, save_synthesizer
from fedtranscribe.releases.card import render_card
from fedtranscribe.releases.describe import describe
from fedtranscribe.releases.loading import sha256
from fedtranscribe.releases.onnx_export import (
    GENERATOR_ONNX,
    STUDENT_ONNX,
    export_onnx,
    generator_as_exportable,
    student_as_exportable,
)
from fedtranscribe.releases.statement import (
    CARD,
    STATEMENT,
    PrivacyStatement,
    StatedThreshold,
    refuse_unstamped,
)
from fedtranscribe.results.allowed import expect_allowed
from fedtranscribe.results.run_directory import DENOISER, GENERATOR, STUDENT
from fedtranscribe.runs.finished import FinishedRun

_FILES = frozenset({STUDENT, GENERATOR, DENOISER, STUDENT_ONNX, GENERATOR_ONNX, CARD, STATEMENT})
_NEEDED = {"huggingface_hub": "huggingface-hub", "jinja2": "jinja2", "onnx": "onnx"}
_NEEDED |= {"onnxscript": "onnxscript"}


@dataclass(frozen=True)
class MadeRelease:
    """What was made."""

    folder: Path  # where it lies
    statement: PrivacyStatement  # what it says of itself


def make_release(
    path: Path,
    out: Path | None = None,
    *,
    choices: Sequence[str] = (),
    stamp_not_private: bool = False,
    threshold: float | Sequence[float] | None = None,
    chosen_on: str | None = None,
) -> MadeRelease:
    """Release a finished run; see `fedtranscribe.release`."""
    _require_extra()
    run = FinishedRun.open(path)
    folder = out or path / "release"
    statement = describe(run, choices, _threshold(threshold, chosen_on))
    if not stamp_not_private:
        refuse_unstamped(statement)
    _expect_free(folder, statement.run)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # A sibling, so that a rename moves it; hidden, in case that a crash leaves it behind.
        making = folder.parent / f".{folder.name}.{os.urandom(4).hex()}"
        making.mkdir()
    except OSError as error:
        raise unwritable(folder, error) from None
    try:
        statement = _write(run, statement, making)
        _put_in_place(making, folder)
    except OSError as error:
        raise unwritable(folder, error) from None
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return MadeRelease(folder, statement)


def _threshold(
    given: float | Sequence[float] | None, chosen_on: str | None
) -> StatedThreshold | None:
    probability = tuple(given) if isinstance(given, Sequence) else given
    if (probability is None) != (chosen_on is None):
        raise ConfigError(
            f"Expected threshold={probability} and chosen_on={chosen_on!r} together: a release "
            "says on which public images its threshold was chosen."
        )
    if probability is None or chosen_on is None:
        return None
    try:
        return StatedThreshold(probability=probability, chosen_on=chosen_on)
    except ValidationError as error:
        wrong = error.errors()[0]
        raise ConfigError(
            f"Expected threshold={probability} above 0 and up to 1, and chosen_on={chosen_on!r} as "
            f"one line: {wrong['msg']}."
        ) from None


def _require_extra() -> None:
    missing = [p for module, p in _NEEDED.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise ConfigError(
            f"Making a release needs {' and '.join(missing)}: pip install 'fedtranscribe[release]'."
        )


def _expect_free(folder: Path, run: str) -> None:
    """Only nothing at all, or an earlier release of the same run, may be replaced."""
    if not folder.exists() and not folder.is_symlink():
        return
    fix = "remove it, or choose another --out."
    if folder.is_symlink() or not folder.is_dir():
        raise StorageError(f"{folder} is no folder; {fix}")
    there = {entry.name for entry in folder.iterdir()}
    if not there:
        return
    if STATEMENT not in there:
        raise StorageError(f"{folder} is not empty, and holds no release; {fix}")
    if _run_of(folder) != run:
        raise StorageError(f"{folder} holds the release of another run; {fix}")
    strange = sorted(there - _FILES)
    if strange:
        raise StorageError(
            f"{folder} holds an earlier release of this run, and also {strange[0]!r}, which "
            f"would be lost; {fix}"
        )


def _run_of(folder: Path) -> str | None:
    """Of which run the release in a folder is, even if an older version made it."""
    return (read_object(folder / STATEMENT) or {}).get("run")


def _write(run: FinishedRun, statement: PrivacyStatement, folder: Path) -> PrivacyStatement:
    # Not copied but written again: whatever else a run's file might hold stays behind.
    exportable = {}
    if isinstance(run.generator, Synthesizer):
        save_synthesizer(run.generator, folder / DENOISER)
    elif run.generator is not None:
        save_network(run.generator, folder / GENERATOR)
        exportable[GENERATOR_ONNX] = generator_as_exportable(run.generator)
    if run.student is not None:
        save_network(run.student, folder / STUDENT)
        exportable[STUDENT_ONNX] = student_as_exportable(run.student)
    exported = {name: export_onnx(what) for name, what in exportable.items()}
    for name, content in exported.items():
        if content is not None:
            (folder / name).write_bytes(content)
    card = render_card(run, statement, [name for name, content in exported.items() if content])
    (folder / CARD).write_text(card, encoding="utf-8", newline="\n")
    digests = {entry.name: sha256(entry) for entry in sorted(folder.iterdir())}
    statement = statement.model_copy(update={"files": digests})
    expect_allowed(f"release/{STATEMENT}", statement.model_dump(mode="json", by_alias=True))
    (folder / STATEMENT).write_bytes(statement.to_bytes())
    for entry in folder.iterdir():
        # Made to be handed over: readable by whom its folder is, as any new file would be.
        entry.chmod(folder.stat().st_mode & 0o666)
        _sync(entry)
    return statement


def _sync(path: Path) -> None:
    with path.open("rb") as stream:
        os.fsync(stream.fileno())


def _put_in_place(made: Path, folder: Path) -> None:
    """Rename; what was there before goes only when the new one stands."""
    if not folder.exists():
        made.rename(folder)
        return
    old = made.with_name(f"{made.name}.old")
    folder.rename(old)
    try:
        made.rename(folder)
    except OSError:
        old.rename(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)
