"""Whether a release is what it says: whole, and with an ε that follows from its events."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedtranscribe.config.catalogue import expect_release
from fedtranscribe.errors import FedtranscribeError
from fedtranscribe.files import read_bounded
from fedtranscribe.models.diffusion import Synthesizer
from fedtranscribe.models.mixture import GaussianMixture
from fedtranscribe.releases.card import complaints
from fedtranscribe.releases.loading import (
    first_difference,
    load_generator,
    load_student,
    unlisted,
    unvouched,
)
from fedtranscribe.releases.onnx_export import (
    GENERATOR_ONNX,
    STUDENT_ONNX,
    agrees,
    generator_as_exportable,
    student_as_exportable,
)
from fedtranscribe.releases.recomputed import first_disagreement
from fedtranscribe.releases.statement import (
    CARD,
    STATEMENT,
    PrivacyStatement,
    read_statement,
    stamp_of,
)
from fedtranscribe.results.run_directory import DENOISER, STUDENT


@dataclass(frozen=True)
class VerificationStep:
    """One question and its answer."""

    name: str  # short, for programs
    ok: bool  # whether the release passed
    words: str  # what was found


@dataclass(frozen=True)
class Verification:
    """All checks of a release, in the order they were made."""

    checks: tuple[VerificationStep, ...]

    @property
    def ok(self) -> bool:
        """Whether all were passed."""
        return all(check.ok for check in self.checks)

    @property
    def first_failure(self) -> VerificationStep | None:
        """The first that was not passed."""
        return next((check for check in self.checks if not check.ok), None)


class _FailedError(Exception):
    """A check's way to say no; never leaves this module."""


def verify(folder: Path) -> Verification:
    """Verify a release; a failed check is a result, not an error."""
    checks: list[VerificationStep] = []

    def check(name: str, ask: Callable[[], str]) -> bool:
        try:
            checks.append(VerificationStep(name, True, ask()))
        except (_FailedError, FedtranscribeError) as error:
            checks.append(VerificationStep(name, False, str(error).rstrip(".")))
        return checks[-1].ok

    expect_release(folder)
    if check("statement", lambda: _statement(folder)):
        statement = read_statement(folder)
        check("files", lambda: _files(folder, statement))
        check("networks", lambda: _networks(folder, statement))
        check("onnx", lambda: _onnx(folder, statement))
        check("epsilon", lambda: _epsilon(statement))
        check("card", lambda: _card(folder, statement))
        check("stamp", lambda: _stamp(statement))
    return Verification(tuple(checks))


def _statement(folder: Path) -> str:
    return f"{STATEMENT} follows its schema, {read_statement(folder).schema_}"


def _files(folder: Path, statement: PrivacyStatement) -> str:
    network = DENOISER if DENOISER in statement.files else STUDENT
    for name in (network, CARD):
        _expect(name in statement.files, f"{STATEMENT} does not list {name}")
    wrong, besides = first_difference(folder, statement), unlisted(folder, statement)
    _expect(wrong is None, str(wrong))
    _expect(not besides, f"{', '.join(besides)}: not listed in {STATEMENT}, or a link")
    return f"all {len(statement.files)} listed files have their SHA-256, and there is no other"


def _networks(folder: Path, statement: PrivacyStatement) -> str:
    student, generator = load_student(folder, statement), load_generator(folder, statement)
    if isinstance(generator, Synthesizer):
        _expect(student is None, "it has a student and a diffusion model, which no method gives")
        return f"diffusion model {generator.denoiser.size_name}, all finite"
    assert student is not None
    wrong = unvouched(student, statement)
    _expect(wrong is None, str(wrong))
    if generator is not None:
        shapes = [(n.channels, n.size) for n in (student, generator)]
        _expect(shapes[0] == shapes[1], "the generator makes images that the student cannot read")
    if isinstance(generator, GaussianMixture):
        classes = generator.classes == student.groups
        _expect(classes, "the generator has other classes than the student")
        return f"{student.architecture} and a mixture of {len(generator.counts)}, all finite"
    return f"{student.architecture}{'' if generator is None else ' and generator'}, all finite"


def _onnx(folder: Path, statement: PrivacyStatement) -> str:
    student, generator = load_student(folder, statement), load_generator(folder, statement)
    exportable = {}
    if student is not None:
        exportable[STUDENT_ONNX] = student_as_exportable(student)
    if generator is not None and not isinstance(generator, Synthesizer):
        exportable[GENERATOR_ONNX] = generator_as_exportable(generator)
    there = [name for name in (STUDENT_ONNX, GENERATOR_ONNX) if name in statement.files]
    if not there:
        return "there is none, as its card says"
    answers = []
    for name in there:
        _expect(name in exportable, f"there is a {name} of no network")
        try:
            answers.append(agrees((folder / name).read_bytes(), exportable[name]))
        except OSError as error:
            raise _FailedError(f"{name}: {error.strerror}") from None
        of = name.removesuffix(".onnx")
        _expect(answers[-1] is not False, f"{name} does not answer as the {of} does")
    if None in answers:
        return "not tried: onnxruntime is not installed"
    return f"{' and '.join(there)} {'answers' if len(there) == 1 else 'answer'} as the networks do"


def _epsilon(statement: PrivacyStatement) -> str:
    wrong = first_disagreement(statement)
    _expect(wrong is None, str(wrong))
    if statement.epsilon is None:
        return "no guarantee, and none is stated"
    figures = len(statement.sound) + len(statement.units)
    return f"ε = {statement.epsilon:.6g} and all {figures} figures follow from the events"


def _card(folder: Path, statement: PrivacyStatement) -> str:
    try:
        card = read_bounded(folder / CARD).decode("utf-8")
    except (OSError, ValueError) as error:
        raise _FailedError(f"{CARD} cannot be read ({type(error).__name__})") from None
    found = complaints(card, statement)
    _expect(not found, f"{CARD}: {'; '.join(found)}")
    return f"{CARD} says what {STATEMENT} says"


def _stamp(statement: PrivacyStatement) -> str:
    needed = stamp_of(statement)
    _expect(statement.stamp == needed, "it does not carry the stamp that it needs, or needs none")
    _expect(statement.stamp is None, f"it is stamped: {statement.stamp}")
    return "it needs no stamp"


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise _FailedError(otherwise)
