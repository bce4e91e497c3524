"""A release folder -> networks to use; a diffusion model alone needs an extra, `diffusion`."""

import hashlib
import warnings
from dataclasses import dataclass
from pathlib import Path

from fedtranscribe.errors import CorruptWeightsError, PrivacyError, StorageError
from fedtranscribe.models import Classifier, Generator, load_network
from fedtranscribe.models.backbones import Backbone
from fedtranscribe.models.diffusion import Synthesizer, load_synthesizer
from fedtranscribe.models.mixture import GaussianMixture
from fedtranscribe.releases.recomputed import first_disagreement
from fedtranscribe.releases.statement import (
    CARD,
    STATEMENT,
    PrivacyStatement,
    StatedThreshold,
    read_statement,
    stamp_of,
)
from fedtranscribe.results.run_directory import DENOISER, GENERATOR, STUDENT
from fedtranscribe.runs.networks import Networks
from fedtranscribe.text import counted


@dataclass(frozen=True, eq=False)
class Release(Networks):
    """A released student and generator, or a released diffusion model."""

    path: Path  # the folder
    student: Classifier | None  # the classifier, in evaluation mode; None for DP-SAD and dp-promise
    # a network of images without labels, a mixture of images with labels, or a diffusion model,
    # which is asked for labels; None for methods that have neither
    generator: Generator | GaussianMixture | Synthesizer | None
    privacy: PrivacyStatement  # what is guaranteed, and what is not

    _kind = "release"

    @property
    def method(self) -> str:
        """That learned them."""
        return self.privacy.method

    @property
    def threshold(self) -> float | tuple[float, ...] | None:
        """See `Networks`."""
        stated = self.privacy.threshold
        return None if stated is None else stated.probability

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """What the classes are called, in order; None where nobody named them."""
        return self.privacy.class_names


def load(folder: Path, verify: bool = True) -> Release:
    """Open a release; warns where it carries the stamp of one that is not private.

    Args:
        folder: the release.
        verify: compare every listed file with its digest, and every ε with what the events cost.
            The second takes milliseconds for Gaussian noise, and about a second for labels and
            trainings. False skips both; the schema of `privacy.json` holds either way.
    """
    statement = read_statement(folder)
    absent = [name for name in statement.files if not (folder / name).is_file()]
    if absent:
        raise StorageError(f"{folder} lacks {absent[0]!r}; fetch the release again.")
    if verify:
        wrong = first_difference(folder, statement) or _misstated(statement)
        if wrong is not None:
            raise PrivacyError(f"{folder}: {wrong}; fetch the release again.")
    if statement.stamp is not None:
        warnings.warn(statement.stamp, stacklevel=3)
    student, generator = load_student(folder, statement), load_generator(folder, statement)
    if (wrong := unvouched(student, statement)) is not None:
        raise PrivacyError(f"{folder}: {wrong}; fetch the release again.")
    named = statement.class_names
    if named is not None and len(named) != classes_of(student, generator):
        raise PrivacyError(
            f"{folder}: privacy.json names {len(named)} classes, the network has "
            f"{classes_of(student, generator)}; fetch the release again."
        )
    stated = statement.threshold
    if stated is not None and (wrong := unfit_threshold(student, stated)) is not None:
        raise PrivacyError(f"{folder}: {wrong}; fetch the release again.")
    return Release(folder, student, generator, statement)


def unfit_threshold(student: Classifier | None, stated: StatedThreshold) -> str | None:
    """Why a threshold means nothing for a student, in words; None where it does."""
    given, wanted = stated.probability, 0
    if student is not None and student.takes_thresholds:
        wanted = student.classes if student.multilabel else 1
    count = len(given) if isinstance(given, tuple) else 1
    if count == wanted and isinstance(given, tuple) == (student is not None and student.multilabel):
        return None
    needs = f"{counted(wanted, 'threshold')}" if wanted else "no threshold"
    return f"the student takes {needs}, and {counted(count, 'threshold')} is stated"


def unvouched(student: Classifier | None, statement: PrivacyStatement) -> str | None:
    """What is wrong with what is said of public weights, in words.

    Nobody may leave out whose word a guarantee rests on.
    """
    architecture = None if student is None else student.architecture
    used = architecture if Backbone.parse(architecture) else None
    weights = None if statement.public_weights is None else statement.public_weights.student
    if used == weights:
        return None
    return f"the student's features are {used or 'our own'}, privacy.json vouches for {weights}"


def _misstated(statement: PrivacyStatement) -> str | None:
    """What the statement says of privacy that its own events contradict, in words."""
    if statement.stamp != stamp_of(statement):
        return "it does not carry the stamp that it needs, or needs none"
    return first_disagreement(statement)


def load_student(folder: Path, statement: PrivacyStatement) -> Classifier | None:
    """The classifier of a release; None where it lists a diffusion model instead."""
    if DENOISER in statement.files and STUDENT not in statement.files:
        return None
    student = load_network(folder / STUDENT)
    if not isinstance(student, Classifier):
        raise CorruptWeightsError(f"Expected a classifier in {folder / STUDENT}.")
    return student


def load_generator(
    folder: Path, statement: PrivacyStatement
) -> Generator | GaussianMixture | Synthesizer | None:
    """The generator or diffusion model of a release; None where it lists neither."""
    if DENOISER in statement.files:
        return load_synthesizer(folder / DENOISER)
    if GENERATOR not in statement.files:
        return None
    generator = load_network(folder / GENERATOR)
    if not isinstance(generator, Generator | GaussianMixture):
        raise CorruptWeightsError(f"Expected a generator in {folder / GENERATOR}.")
    return generator


def classes_of(
    student: Classifier | None, generator: Generator | GaussianMixture | Synthesizer | None
) -> int:
    """How many classes the released networks know; 0 for images without labels."""
    if student is not None:
        return student.classes
    return generator.classes if isinstance(generator, Synthesizer) else 0


HUB_CARD = "README.md"
"""The card's second name: model hubs show a file that is called so."""


HUB_FILES = frozenset({".gitattributes"})
"""What the Hugging Face hub puts into every repository; nothing here ever reads it."""


# What a download leaves beside the files.
_OF_DOWNLOADS = HUB_FILES | {".cache", ".git"}


def sha256(path: Path) -> str:
    """Digest of a file."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise StorageError(f"Cannot read {path}: {error.strerror or error}.") from None


def first_difference(folder: Path, statement: PrivacyStatement) -> str | None:
    """The first listed file that is not the one that was released, in words; None if all are."""
    for name, digest in statement.files.items():
        if not (folder / name).is_file():
            return f"{name} is absent"
        if sha256(folder / name) != digest:
            return f"{name} was changed: its SHA-256 is not the one in {STATEMENT}"
    return None


def unlisted(folder: Path, statement: PrivacyStatement) -> list[str]:
    """What lies in the folder besides; links count, since what they show can change.

    A release from a hub may have its card a second time, as `README.md`, and what the hub and its
    client keep there for themselves.
    """
    listed = {STATEMENT, *statement.files, *_OF_DOWNLOADS}
    if _is_card(folder / HUB_CARD, statement):
        listed.add(HUB_CARD)
    return sorted(
        entry.name for entry in folder.iterdir() if entry.name not in listed or entry.is_symlink()
    )


def _is_card(path: Path, statement: PrivacyStatement) -> bool:
    return path.is_file() and sha256(path) == statement.files.get(CARD)
