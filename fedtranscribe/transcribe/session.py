"""One transcription from settings to result: the loop that joins the student side and the holder.

Order: data and public part → plan and forecast → teachers → ledger → rounds → result. Every
mistake that can be found before the ledger is touched is found before.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from fedtranscribe.config import TranscribeSettings
from fedtranscribe.data import ImageSet
from fedtranscribe.errors import ConfigError, InvalidDataError
from fedtranscribe.exchange import QueryBatch
from fedtranscribe.holder import Holder
from fedtranscribe.methods.dpsd import DPSD
from fedtranscribe.methods.pretraining import pretrain_generator, pretrain_student
from fedtranscribe.models import Classifier, Generator, build, save
from fedtranscribe.transcribe.rundir import RunDirectory

_EVALUATION_BATCH = 250
_CURVE_POINTS = 20


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
    device = next(network.parameters()).device
    network.eval()
    with torch.no_grad():
        right = sum(
            int((network(x.to(device).float() / 255).argmax(-1).cpu() == y).sum())
            for x, y in zip(
                images.split(_EVALUATION_BATCH), labels.split(_EVALUATION_BATCH), strict=True
            )
        )
    return right / len(labels)


@dataclass
class StudentSide:
    """Student and generator after public pre-training, and what the public set alone gave.

    Attributes:
        student: the classifier to be.
        generator: maps z to images.
        public_accuracy: the student's accuracy before any answer; None without labelled public
            data, where it is chance.
    """

    student: Classifier
    generator: Generator
    rng: torch.Generator


def build_student_side(
    settings: TranscribeSettings,
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

    Raises:
        InvalidDataError: the public images have another shape.
    """
    rng = torch.Generator().manual_seed(settings.seed)
    with torch.random.fork_rng(devices=[]):
        torch.random.manual_seed(settings.seed)
        student = build(settings.student, classes, channels, size).to(device)
        generator = Generator(
            settings.dpsd.latent_dim, channels, size, settings.dpsd.generator_width
        ).to(device)
    if public is not None:
        if tuple(public.images.shape[1:]) != (channels, size, size):
            raise InvalidDataError(
                f"Public set {public.name} has images of {tuple(public.images.shape[1:])}, the "
                f"private data {(channels, size, size)}; choose another --public-data, or 'none'."
            )
        steps = settings.dpsd.pretrain_steps

        def show(done: int, total: int) -> None:
            progress("generator on public images", done, total)

        pretrain_generator(generator, public.images, steps, rng, show)
        if public.classes == classes:
            pretrain_student(student, public.images, public.labels, steps, rng)
    return StudentSide(student, generator, rng)


@dataclass
class Curve:
    """Accuracy over answered rows, on a test set that is public by declaration."""

    rows: list[int] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)

    def add(self, rows: int, value: float) -> None:
        """Append a point."""
        self.rows.append(rows)
        self.accuracy.append(value)


def run_rounds(
    method: DPSD,
    holder: Holder,
    run: RunDirectory,
    evaluate: Callable[[], float] | None,
    progress: Progress = silent,
) -> Curve:
    """Ask, answer and learn until every row of the plan is answered; resumes where it stopped.

    State and query are stored together before the holder is asked. After a crash the same query
    goes out again, byte for byte, and the ledger replays its answer: nothing is spent twice.

    Args:
        method: the student side.
        holder: answers queries.
        run: where checkpoints go.
        evaluate: accuracy on the declared-public test set, or None where there is none.
        progress: shows answered rows.

    Returns:
        The accuracy curve.
    """
    total = method.settings.rows
    every = max(1, total // method.settings.round_rows // _CURVE_POINTS)
    curve, query = Curve(), None
    stored = run.load_checkpoint()
    if stored is not None:
        state, query, points = stored
        method.load_state(state)
        curve = Curve(*points)
    while not method.finished or query is not None:
        if query is None:
            query = method.ask()
            run.save_checkpoint(method.state(), query, [curve.rows, curve.accuracy])
        metrics = method.learn(query, holder.answer(query))
        run.write_events([_event(holder, run)])
        query = None
        if evaluate is not None and (method.round % every == 0 or method.finished):
            curve.add(int(metrics["rows"]), evaluate())
        progress("rows answered", min(int(metrics["rows"]), total), total)
    method.finish(method.settings.finish_steps)
    return curve


def _event(holder: Holder, run: RunDirectory) -> dict[str, Any]:
    head = holder.ledger.head
    return {"run": run.run_id, "head": asdict(head)}


def save_networks(run: RunDirectory, side: StudentSide) -> None:
    """Write the two networks that may be released."""
    save(side.student, run.path / "student.safetensors")
    save(side.generator, run.path / "generator.safetensors")


def sample_images(generator: Generator, n: int, seed: int) -> Tensor:
    """Synthetic images uint8 [n, ch, s, s] from a public seed."""
    device = next(generator.parameters()).device
    rng = torch.Generator().manual_seed(seed)
    generator.eval()
    with torch.no_grad():
        images = generator(torch.randn(n, generator.latent_dim, generator=rng).to(device))
    return (images.clamp(0, 1) * 255).round().to(torch.uint8).cpu()


def teacher_folder(run: RunDirectory) -> Path:
    """Where a run keeps teachers that it trained itself."""
    return run.private / "teachers"
