"""What every system is given, and what it has to show.

Every system learns from the same records, at the ε asked for, on one thread. Noise comes from
seeds: these are benchmarks of accuracy, and nothing of them may be released.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from fedtranscribe.data import ImageSet
from fedtranscribe.data.shapes import draw_leaves, draw_shapes
from fedtranscribe.models.scattering import Scattering
from fedtranscribe.privacy.accountant import epsilon
from fedtranscribe.privacy.events import Event
from fedtranscribe.privacy.units import Adjacency

DELTA = 1e-5
LONGEST = 30 * 60.0
"""CPU seconds; what would take longer gets fewer steps, with the noise for these."""
_DRAWN = 4_000  # public images, drawn by a formula
_AXES = 1_000
PASS = 500


class Clock:
    """CPU seconds of this process, but for those spent on tests."""

    def __init__(self, spent: float = 0.0) -> None:
        self._start = time.process_time() - spent

    def __call__(self) -> float:
        return time.process_time() - self._start

    def leave_out(self, work: Callable[[], float]) -> float:
        """What `work` returns, free of charge."""
        began = time.process_time()
        found = work()
        self._start += time.process_time() - began
        return found


Point = tuple[float, float]


@dataclass(frozen=True)
class Found:
    """What one run of a system found.

    Attributes:
        curve: CPU seconds and accuracy on test images, oldest first.
        events: what it released, by adjacency; none where no event of ours says it.
        words: its settings, as far as they depend on ε or on the time there is.
        cut: whether it would have taken longer than `LONGEST`.
    """

    curve: Sequence[Point]
    events: dict[Adjacency, list[Event]]
    words: str
    cut: bool = False


@dataclass
class Task:
    """Records, what is public, and the ε to spend.

    Attributes:
        name: of the data set.
        train: the records.
        pool: public images of the same kind, for PATE alone.
        test: what accuracy is measured on, PATE's pool left out.
        target: ε, add-remove, of the unit that a system hides.
        seed: of everything.
        work: folder for features, which all systems share.
    """

    name: str
    train: ImageSet
    pool: ImageSet
    test: ImageSet
    target: float
    seed: int
    work: Path
    generator: torch.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.seed)

    @property
    def classes(self) -> int:
        return self.train.classes

    @cached_property
    def features(self) -> "Features":
        return Features.of(self)


@dataclass(frozen=True)
class Features:
    """Scattering coefficients of all images, float16 [n, d], and public facts about them.

    Attributes:
        train: of records.
        pool: of public images.
        test: of test images.
        drawn: of images drawn by a formula.
        seconds: CPU seconds for those of records, on one thread.
    """

    train: Tensor
    pool: Tensor
    test: Tensor
    drawn: Tensor
    seconds: float

    @classmethod
    def of(cls, task: Task) -> "Features":
        path = task.work / f"features-{task.name.replace(':', '-')}.pt"
        if not path.exists():
            draw = draw_shapes if task.train.channels == 1 else draw_leaves
            rng = torch.Generator().manual_seed(0)
            drawn = draw(_DRAWN, task.train.channels, task.train.size, rng)
            began = time.process_time()
            train = scattered(task.train.images)
            seconds = time.process_time() - began
            others = (scattered(x) for x in (task.pool.images, task.test.images, drawn))
            torch.save([train, *others, seconds], path)
        return cls(*torch.load(path))

    def rows(self, axes: int) -> tuple[Tensor, Tensor, Tensor]:
        """Rows of norm one at most of train, pool and test: leading axes of what was drawn."""
        drawn = self.drawn.float()
        mean = drawn.mean(0)
        # Of 4,000 rows: their Gram matrix is smaller than their covariance.
        values, vectors = torch.linalg.eigh((drawn - mean) @ (drawn - mean).T)
        lead = vectors[:, -axes:].flip(1)
        basis = (drawn - mean).T @ lead / values[-axes:].flip(0).sqrt()
        # Partly whitened, so that the first few axes do not drown the others.
        scale = values[-axes:].flip(0).clamp(min=1e-6) ** -0.25
        basis = basis * scale
        found = []
        for rows in (self.train, self.pool, self.test):
            parts = ((part.float() - mean) @ basis for part in rows.split(PASS))
            found.append(F.normalize(torch.cat(list(parts))))
        return found[0], found[1], found[2]


def scattered(images: Tensor) -> Tensor:
    """uint8 [n, ch, s, s] -> float16 [n, d]."""
    net = Scattering()
    with torch.no_grad():
        parts = [net(part.float() / 255).half() for part in images.split(PASS)]
    return torch.cat(parts)


def accuracy(predict: Callable[[Tensor], Tensor], rows: Tensor, labels: Tensor) -> float:
    """Share of right answers of a network."""
    with torch.no_grad():
        named = torch.cat([predict(part).argmax(-1) for part in rows.split(PASS)])
    return float((named == labels).double().mean())


def calibrated(events: Callable[[float], list[Event]], target: float) -> float:
    """The smallest noise multiplier, to one in a thousand, at which the events cost the target."""
    low, high = 0.2, 1_000.0
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if epsilon(events(middle), DELTA) <= target else (middle, high)
    return high
