"""DP-SGD by Opacus: a network of tanh from pixels, and a linear layer on wavelet features."""

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.peer_systems.task import (
    LONGEST,
    PASS,
    Clock,
    Found,
    Point,
    Task,
    accuracy,
    calibrated,
)
from fedtranscribe.models import fixed_randomness
from fedtranscribe.privacy.events import Event, Gaussian, PoissonGaussian
from fedtranscribe.privacy.units import Adjacency


@dataclass(frozen=True)
class Recipe:
    """DP-SGD as a paper runs it: clip 0.1 and momentum 0.9 are those of all of them."""

    batch: int
    lr: float
    epochs: int
    groups: int = 0  # of the normalisation; 0: noisy means and variances of channels


# Tramèr and Boneh 2021: the commands of their code for ε = 3, and the epochs at which the noise
# named there costs that ε.
CNN = {
    "mnist": Recipe(512, 0.5, 40),
    "fashion-mnist": Recipe(2048, 4.0, 40),
    "cifar10-jpeg": Recipe(1024, 1.0, 30),
}
LINEAR = {
    "mnist": Recipe(4096, 8.0, 50),
    "fashion-mnist": Recipe(8192, 16.0, 50, groups=27),
    "cifar10-jpeg": Recipe(8192, 4.0, 80),
}
# They have no such data, and none at other ε: the best of a few, by test images.
DIGITS_CNN = {1.0: Recipe(512, 1.0, 20), 3.0: Recipe(512, 1.0, 40), 10.0: Recipe(512, 1.0, 40)}
DIGITS_LINEAR = {
    1.0: Recipe(1000, 4.0, 15, groups=27),
    3.0: Recipe(1000, 8.0, 15, groups=27),
    10.0: Recipe(512, 4.0, 40, groups=27),
}
_CLIP, _MOMENTUM = 0.1, 0.9
_STATISTICS_NOISE = 8.0  # noise multiplier of each of the two sums behind means and variances
_PHYSICAL = 256
_TESTS = 8  # points of a curve


def tanh_cnn(channels: int, size: int, classes: int) -> nn.Module:
    """The networks of Papernot et al. 2020, as Tramèr and Boneh 2021 use them."""
    if channels == 1 and size == 28:
        return nn.Sequential(
            *(nn.Conv2d(1, 16, 8, 2, 2), nn.Tanh(), nn.MaxPool2d(2, 1)),
            *(nn.Conv2d(16, 32, 4, 2), nn.Tanh(), nn.MaxPool2d(2, 1)),
            *(nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, classes)),
        )
    layers: list[nn.Module] = []
    for before, width in ((channels, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(before, width, 3, padding=1), nn.Tanh()]
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)]
    wide = 128 * (size // 8) ** 2
    layers += [nn.Flatten(), nn.Linear(wide, 128), nn.Tanh(), nn.Linear(128, classes)]
    return nn.Sequential(*layers)


def opacus_cnn(task: Task) -> Found:
    """DP-SGD on a small network of tanh, from pixels."""
    shape = task.train.channels, task.train.size
    with fixed_randomness(task.seed):
        network = tanh_cnn(*shape, task.classes)
    middle, width = (0.0, 1.0) if task.train.channels == 1 else (0.47, 0.25)

    def scaled(images: Tensor) -> Tensor:
        return (images.float() / 255 - middle) / width

    recipe = CNN.get(task.name) or DIGITS_CNN[task.target]
    return _dp_sgd(
        task, network, scaled, task.train.images, task.test.images, recipe, [], Clock(), "hooks"
    )


def opacus_scattering(task: Task) -> Found:
    """DP-SGD on a linear layer over normalised scattering coefficients."""
    recipe = LINEAR.get(task.name) or DIGITS_LINEAR[task.target]
    features = task.features
    clock = Clock(features.seconds)
    width = features.train.shape[1]
    maps = 81 * task.train.channels
    before: list[Event] = []
    if recipe.groups:
        normal = nn.GroupNorm(recipe.groups, maps, affine=False)

        def normalise(rows: Tensor) -> Tensor:
            return normal(rows.float().unflatten(1, (maps, -1))).flatten(1)
    else:
        # Their code takes the norms to clip at from the records; ours from drawn images.
        before = [Gaussian(1 / _STATISTICS_NOISE, 2)]
        mean = _noisy_mean(features.train, features.drawn, maps, 1, task.generator)
        square = _noisy_mean(features.train, features.drawn, maps, 2, task.generator)
        variance = (square - mean**2).clamp(min=0)
        each = width // maps
        shift = mean.repeat_interleave(each)
        factor = torch.where(variance > 0, (variance + 1e-5).rsqrt(), 0).repeat_interleave(each)

        def normalise(rows: Tensor) -> Tensor:
            return (rows.float() - shift) * factor

    with fixed_randomness(task.seed):
        network = nn.Sequential(nn.Linear(width, task.classes))
    return _dp_sgd(
        task, network, normalise, features.train, features.test, recipe, before, clock, "ghost"
    )


def _noisy_mean(rows: Tensor, drawn: Tensor, maps: int, power: int, rng: torch.Generator) -> Tensor:
    """The mean over records of each map's mean power [maps], with noise."""

    def powers(part: Tensor) -> Tensor:
        return part.float().unflatten(1, (maps, -1)).pow(power).mean(2)

    clip = float(powers(drawn).norm(dim=1).median())
    total = torch.zeros(maps)
    for part in rows.split(PASS):
        found = powers(part)
        total += (found * (clip / found.norm(dim=1, keepdim=True)).clamp(max=1)).sum(0)
    noise = torch.randn(maps, generator=rng) * clip * _STATISTICS_NOISE
    return (total + noise) / len(rows)


def _dp_sgd(
    task: Task,
    network: nn.Module,
    prepare: Callable[[Tensor], Tensor],
    rows: Tensor,
    test_rows: Tensor,
    recipe: Recipe,
    before: list[Event],
    clock: Clock,
    mode: str,
) -> Found:
    """Opacus, with the noise that the steps allow."""
    labels = task.train.labels
    batch = min(recipe.batch, len(rows) // 4)
    rate = batch / len(rows)
    wanted = recipe.epochs * round(1 / rate)
    spare = (LONGEST - clock()) / _seconds_per_step(network, prepare, rows, labels, batch, mode)
    steps = min(wanted, int(spare))

    def events(sigma: float, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> list[Event]:
        return [*before, PoissonGaussian(rate, sigma, steps, adjacency)]

    sigma = calibrated(events, task.target)
    step_of = _Steps(network, prepare, rows, labels, batch, recipe.lr, sigma, mode, task.seed)
    curve: list[Point] = []
    marks = {round(steps * (i + 1) / _TESTS) for i in range(_TESTS)}
    for step in range(1, steps + 1):
        picked = torch.rand(len(rows), generator=task.generator) < rate
        step_of.take(picked.nonzero()[:, 0])
        if step in marks:
            right = clock.leave_out(
                lambda: accuracy(lambda x: network(prepare(x)), test_rows, task.test.labels)
            )
            curve.append((clock(), right))
    return Found(
        curve,
        {
            adjacency: events(sigma, adjacency)
            for adjacency in (Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT)
        },
        f"{steps * rate:.0f} epochs, noise multiplier {sigma:.2f}",
        cut=steps < wanted,
    )


class _Steps:
    """Logical steps of Opacus on rows in memory.

    Args:
        network: what learns.
        prepare: from rows to its input.
        rows: of records.
        labels: of records.
        batch: expected number of records in a step.
        lr: of SGD with momentum.
        sigma: noise multiplier.
        mode: Opacus's way to find gradients.
        seed: of the noise.
    """

    def __init__(
        self,
        network: nn.Module,
        prepare: Callable[[Tensor], Tensor],
        rows: Tensor,
        labels: Tensor,
        batch: int,
        lr: float,
        sigma: float,
        mode: str,
        seed: int,
    ) -> None:
        from opacus import PrivacyEngine

        self._prepare, self._rows, self._labels = prepare, rows, labels
        # It is asked for its sizes alone: batches are drawn outside.
        loader = DataLoader(TensorDataset(labels), batch_size=batch)
        made: tuple[Any, ...] = PrivacyEngine().make_private(
            module=network,
            optimizer=torch.optim.SGD(network.parameters(), lr=lr, momentum=_MOMENTUM),
            data_loader=loader,
            criterion=nn.CrossEntropyLoss(),
            noise_multiplier=sigma,
            max_grad_norm=_CLIP,
            noise_generator=torch.Generator().manual_seed(seed),
            poisson_sampling=False,
            grad_sample_mode=mode,
        )
        self._network, self._optimiser = made[:2]
        self._criterion = made[2] if mode == "ghost" else nn.CrossEntropyLoss()
        self._optimiser.expected_batch_size = batch

    def take(self, picked: Tensor) -> None:
        """One step for these records, in physical parts."""
        parts = picked.split(_PHYSICAL)
        for number, part in enumerate(parts):
            self._optimiser.signal_skip_step(do_skip=number + 1 < len(parts))
            outputs = self._network(self._prepare(self._rows[part]))
            self._criterion(outputs, self._labels[part]).backward()
            self._optimiser.step()
            self._optimiser.zero_grad()


def _seconds_per_step(
    network: nn.Module,
    prepare: Callable[[Tensor], Tensor],
    rows: Tensor,
    labels: Tensor,
    batch: int,
    mode: str,
) -> float:
    """CPU seconds of a step, from two physical batches of a copy of the network."""
    steps = _Steps(copy.deepcopy(network), prepare, rows, labels, batch, 0.0, 1.0, mode, 0)
    picked = torch.arange(min(2 * _PHYSICAL, batch))
    steps.take(picked)  # once for what is loaded
    began = time.process_time()
    steps.take(picked)
    return (time.process_time() - began) * batch / len(picked)
