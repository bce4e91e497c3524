"""DP-MERF (Harder et al. 2021), from the paper: one noisy mean of random Fourier features.

The embedding of a record is z(x) ⊗ e_y, z the cosines and sines of 5,000 random directions over
√5,000: of norm one. Their sum gets Gaussian noise once; a small generator then learns images whose
embeddings have that mean.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.peer_systems.task import Task, calibrated
from fedtranscribe.models import fixed_randomness
from fedtranscribe.privacy.events import Event, Gaussian

_DIRECTIONS = 5_000
_WIDTH = {"digits": 105.0, "mnist": 105.0}
"""Variance of the kernel, on pixels from 0 to 1, as in its code."""
_CODE, _HIDDEN, _MAPS = 5, 200, (16, 8)
_STEPS, _BATCH, _LR = 600, 500, 0.01
_DECAY, _EVERY = 0.9, 120  # of the rate, after so many steps
_PASS = 1_000


class ConvGenerator(nn.Module):
    """A code of five numbers and a class -> an image of 28 pixels."""

    def __init__(self, classes: int, size: int) -> None:
        super().__init__()
        self.classes, self.side = classes, size // 4
        first, second = _MAPS
        self.body = nn.Sequential(
            *(nn.Linear(_CODE + classes, _HIDDEN), nn.BatchNorm1d(_HIDDEN), nn.ReLU()),
            nn.Linear(_HIDDEN, first * self.side**2),
            *(nn.BatchNorm1d(first * self.side**2), nn.ReLU()),
            *(nn.Unflatten(1, (first, self.side, self.side)), nn.UpsamplingBilinear2d(None, 2)),
            *(nn.Conv2d(first, second, 5, padding=2), nn.ReLU(), nn.UpsamplingBilinear2d(None, 2)),
            *(nn.Conv2d(second, 1, 5, padding=2), nn.Sigmoid()),
        )

    def forward(self, labels: Tensor, rng: torch.Generator) -> Tensor:
        """int64 [n] -> float [n, 1, s, s]."""
        code = torch.randn(len(labels), _CODE, generator=rng)
        return self.body(torch.cat([code, F.one_hot(labels, self.classes).float()], 1))


def dp_merf(task: Task, count: int) -> tuple[Tensor, Tensor, list[Event], str]:
    """Train the generator, and draw `count` images with their labels."""
    train, rng = task.train, task.generator
    directions = torch.randn(train.size**2, _DIRECTIONS, generator=rng)
    directions /= math.sqrt(_WIDTH[task.name])

    def embedded(images: Tensor, labels: Tensor) -> Tensor:
        """Σ z(x) ⊗ e_y, float [10,000, classes]."""
        angles = images.flatten(1) @ directions
        rows = torch.cat([angles.cos(), angles.sin()], 1) / math.sqrt(_DIRECTIONS)
        return rows.T @ F.one_hot(labels, task.classes).float()

    def events(sigma: float) -> list[Event]:
        return [Gaussian(1 / sigma)]

    sigma = calibrated(events, task.target)
    total = torch.zeros(2 * _DIRECTIONS, task.classes)
    for images, labels in zip(train.images.split(_PASS), train.labels.split(_PASS), strict=True):
        total += embedded(images.float() / 255, labels)
    wanted = (total + sigma * torch.randn(total.shape, generator=rng)) / len(train)
    with fixed_randomness(task.seed):
        network = ConvGenerator(task.classes, train.size)
    optimiser = torch.optim.Adam(network.parameters(), lr=_LR)
    schedule = torch.optim.lr_scheduler.StepLR(optimiser, _EVERY, _DECAY)
    for _ in range(_STEPS):
        labels = torch.randint(0, task.classes, (_BATCH,), generator=rng)
        loss = (wanted - embedded(network(labels, rng), labels) / _BATCH).square().sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    network.eval()
    labels = torch.randint(0, task.classes, (count,), generator=rng)
    with torch.no_grad():
        parts = [network(part, rng) for part in labels.split(_PASS)]
    images = (torch.cat(parts) * 255).round().to(torch.uint8)
    return images, labels, events(sigma), f"{_STEPS} steps, noise multiplier {sigma:.2f}"
