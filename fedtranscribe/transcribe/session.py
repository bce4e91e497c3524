"""The student side of a run: public images, networks, accuracy and samples."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Protocol

import torch
from torch import Tensor

from fedtranscribe.config import PUBLIC_SHAPES, StudentSettings
from fedtranscribe.data import ImageSet, NamedData, draw_shapes, load_public
from fedtranscribe.errors import ConfigError
from fedtranscribe.methods.moments import fit_public_map
from fedtranscribe.methods.pretraining import pretrain_generator, train_classifier
from fedtranscribe.models import Classifier, Generator, build, save_network
from fedtranscribe.models.diffusion import Synthesizer
from fedtranscribe.models.scattering import NAME as SCATTER
from fedtranscribe.teachers import Teachers
from fedtranscribe.transcribe.rundir import GENERATOR, STUDENT, RunDirectory

_PUBLIC_SHAPES = 8_000
# So many public images show the axes of the student's features well enough.
_AXES = 4_000
_EVALUATION_BATCH = 250


class Progress(Protocol):
    """Shows long work; the command line draws a bar, tests pass `silent`."""

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Say how far a stage is."""
        ...


def silent(stage: str, done: int, total: int) -> None:
    """Show nothing."""


def pick_device(name: str) -> torch.device:
    """Turn `auto`, `cpu`, `cuda`, `cuda:1`, `mps` into a device that works.

    Raises:
        ConfigError: unknown, or not on this machine.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError):
        raise ConfigError(
            f"--device {name} is not available on this machine; use --device cpu or auto."
        ) from None
    return device


def accuracy(network: Classifier, images: Tensor, labels: Tensor) -> float:
    """Share of right answers on uint8 images [n, ch, s, s]."""
    return int((predict(network, images) == labels).sum()) / len(labels)


def predict(network: Classifier, images: Tensor) -> Tensor:
    """Likeliest class of each uint8 image [n, ch, s, s]: int64 [n]."""
    device = next(network.parameters()).device
    network.eval()
    with torch.no_grad():
        parts = [
            network(part.to(device).float() / 255).argmax(-1).cpu()
            for part in images.split(_EVALUATION_BATCH)
        ]
    return torch.cat(parts)


def ensemble_accuracy(
    ensembles: Sequence[Teachers], images: Tensor, labels: Tensor
) -> dict[str, float]:
    """Mean accuracy of single teachers, and that of their summed votes, on declared-public images.

    Args:
        ensembles: of one holder or of several; their teachers count alike.
        images: uint8 [n, ch, s, s].
        labels: int64 [n].

    Returns:
        {"single_teacher": …, "ensemble": …}; empty shards do not count.
    """
    votes, single, there = torch.zeros(()), 0.0, 0
    for logits in chain.from_iterable(teachers.logits(images) for teachers in ensembles):
        for teacher in logits:
            if not bool(torch.isfinite(teacher).all()):
                continue
            votes = votes + teacher.softmax(-1)
            single += float((teacher.argmax(-1) == labels).float().mean())
            there += 1
    ensemble = float((votes.argmax(-1) == labels).float().mean()) if there else 0.0
    return {"single_teacher": single / max(there, 1), "ensemble": ensemble}


@dataclass
class StudentSide:
    """Student and generator after public pre-training.

    Attributes:
        student: the classifier to be.
        generator: maps z to images.
        rng: goes on where the pre-training stopped.
    """

    student: Classifier
    generator: Generator
    rng: torch.Generator


def public_images(
    settings: StudentSettings, channels: int, size: int, private: NamedData | None
) -> ImageSet | None:
    """The public set that generator and student start from; None where there is none.

    Args:
        settings: name it.
        channels: of the private images.
        size: of the private images, in pixels.
        private: the records, which cannot be public at the same time; None only at a server,
            which knows none.

    Raises:
        DataNotFoundError: unknown or absent.
        ConfigError: its images have another shape than the private data, or they are these.
    """
    if settings.public_data in (None, "none"):
        return None
    if settings.public_data != PUBLIC_SHAPES:
        root, download = settings.data_root, settings.download
        public = load_public(
            "public_data", settings.public_data, private, root, download, settings.as_public
        )
        if (public.channels, public.size) != (channels, size):
            raise ConfigError(
                f"The public set {public.name} has {public.channels}x{public.size}x{public.size} "
                f"images, the private data {channels}x{size}x{size}; choose "
                "another --public-data, or 'none'."
            )
        return public
    asked = math.ceil(settings.dpsd.public_share * (settings.rows or settings.dpsd.rows))
    images = _shapes(channels, size, settings.seed, max(_PUBLIC_SHAPES, asked))
    # Nominal labels: nobody trains on them.
    return ImageSet(PUBLIC_SHAPES, PUBLIC_SHAPES, images, torch.zeros(len(images)).long(), 2)


@lru_cache(maxsize=1)
def _shapes(channels: int, size: int, seed: int, count: int = _PUBLIC_SHAPES) -> Tensor:
    # Drawing thousands takes seconds, and one run after the other asks for the same.
    return draw_shapes(count, channels, size, torch.Generator().manual_seed(seed))


def build_student_side(
    settings: StudentSettings,
    classes: int,
    channels: int,
    size: int,
    public: ImageSet | None,
    device: torch.device,
    progress: Progress = silent,
) -> StudentSide:
    """Make student and generator from the seed, and pre-train them on public images.

    Args:
        settings: the run's settings.
        classes: classes of the task.
        channels: image channels.
        size: image height and width.
        public: public images, labelled or not, or None.
        device: where to train.
        progress: shows the pre-training.
    """
    rng = torch.Generator().manual_seed(settings.seed)
    architecture = settings.student_architecture
    student = build(architecture, classes, channels, size, seed=settings.seed).to(device)
    generator = Generator(
        settings.dpsd.latent_dim,
        channels,
        size,
        settings.dpsd.generator_width,
        seed=settings.seed,
    ).to(device)
    if architecture == SCATTER:
        axes = public.images if public is not None else _shapes(channels, size, settings.seed)
        fit_public_map(student, axes[:_AXES], settings.seed)
    if public is not None:
        steps = settings.dpsd.pretrain_steps

        def show(done: int, total: int) -> None:
            progress("generator on public images", done, total)

        pretrain_generator(generator, public.images, steps, rng, show)
        if public.name != PUBLIC_SHAPES and public.classes == classes:
            train_classifier(student, public.images, public.labels, steps, rng)
    return StudentSide(student, generator, rng)


def save_networks(run: RunDirectory, side: StudentSide) -> None:
    """Write the two networks that may be released."""
    save_network(side.student, run.path / STUDENT)
    save_network(side.generator, run.path / GENERATOR)


def labelled_samples(
    generator: Generator | Synthesizer,
    student: Classifier | None,
    n: int,
    seed: int,
    done: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Tensor, Tensor]:
    """Synthetic images uint8 [n, ch, s, s] and their labels int64 [n]: post-processing.

    The student labels what a generator makes; a diffusion model is asked for every class alike,
    and one without labels gives 0 to all.
    """
    if isinstance(generator, Synthesizer):
        labels = torch.arange(n) % max(1, generator.classes)
        return generator.draw(labels, seed, done), labels
    assert student is not None
    images = sample_images(generator, n, seed)
    return images, predict(student, images)


def sample_images(generator: Generator, n: int, seed: int) -> Tensor:
    """Synthetic images uint8 [n, ch, s, s] from a public seed."""
    device = next(generator.parameters()).device
    rng = torch.Generator().manual_seed(seed)
    generator.eval()
    latent = torch.randn(n, generator.latent_dim, generator=rng)
    with torch.no_grad():
        parts = [
            (generator(part.to(device)).clamp(0, 1) * 255).round().to(torch.uint8).cpu()
            for part in latent.split(_EVALUATION_BATCH)
        ]
    return torch.cat(parts)
