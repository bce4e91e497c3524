"""What public images alone can teach generator and student, before any holder is asked.

All of it sees public data only; nothing here costs budget.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import LinearLR

from fedtranscribe.models import Classifier, Generator, fixed_randomness

_BATCH = 128
# For a generator: twice as many cost twice as much, for a loss 0.5 % lower.
_GENERATOR_BATCH = 64
_LR = 2e-3
# Weight of the KL term: below one, samples are sharper and z still looks Gaussian enough to draw.
_KL_WEIGHT = 0.5


class _Encoder(nn.Module):
    """Images [n, ch, s, s] -> mean and log-variance of z, each [n, latent]; dropped afterwards."""

    def __init__(self, channels: int, size: int, latent_dim: int, width: int = 32) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 4, stride=2, padding=1),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(2 * width * (size // 4) ** 2, 2 * latent_dim),
        )

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_variance = self.body(images).chunk(2, dim=1)
        return mean, log_variance.clamp(-8, 8)


class GeneratorPretraining:
    """Trains a generator in place as the decoder of a variational autoencoder; a `TrainingSteps`.

    Args:
        generator: maps z [n, latent] to images in [0, 1].
        images: public images, uint8 [n, ch, s, s].
        steps: optimiser steps.
        rng: source of batches and of z.
    """

    name = "generator on public images"

    def __init__(
        self, generator: Generator, images: Tensor, steps: int, rng: torch.Generator
    ) -> None:
        self.steps, self.done = steps, 0
        self._generator, self._images, self._rng = generator, images, rng
        self._device = next(generator.parameters()).device
        _, channels, size, _ = images.shape
        with fixed_randomness(rng.initial_seed()):
            encoder = _Encoder(channels, size, generator.latent_dim)
        self._encoder = encoder.to(self._device)
        parameters = [*generator.parameters(), *encoder.parameters()]
        self._optimiser = torch.optim.Adam(parameters, lr=_LR)
        self._schedule = LinearLR(self._optimiser, 1.0, 0.01, max(steps, 1))

    def step(self) -> float:
        """One step; its reconstruction loss in nats per image."""
        picked = torch.randint(0, len(self._images), (_GENERATOR_BATCH,), generator=self._rng)
        real = self._images[picked].to(self._device).float() / 255
        mean, log_variance = self._encoder(real)
        noise = torch.randn(mean.shape, generator=self._rng).to(self._device)
        decoded = self._generator.train()(mean + (log_variance / 2).exp() * noise)
        reconstruction = F.binary_cross_entropy(decoded, real, reduction="sum") / _GENERATOR_BATCH
        kl = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean()
        self._optimiser.zero_grad(set_to_none=True)
        (reconstruction + _KL_WEIGHT * kl).backward()
        self._optimiser.step()
        self._schedule.step()
        self.done += 1
        return float(reconstruction.detach())

    def state(self) -> dict[str, Any]:
        """See `TrainingSteps`."""
        return {
            "done": self.done,
            "encoder": self._encoder.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            "schedule": self._schedule.state_dict(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """See `TrainingSteps`."""
        self.done = state["done"]
        self._encoder.load_state_dict(state["encoder"])
        self._optimiser.load_state_dict(state["optimiser"])
        self._schedule.load_state_dict(state["schedule"])


def train_classifier(
    network: Classifier,
    images: Tensor,
    labels: Tensor,
    steps: int,
    rng: torch.Generator,
    batch: int = _BATCH,
) -> float:
    """Train a classifier in place, on labelled images that are drawn with repetition.

    A student on public images: what it then scores is the baseline. It protects nobody's images.

    Args:
        network: classifier to train.
        images: uint8 [n, ch, s, s].
        labels: int64 [n].
        steps: optimiser steps.
        rng: source of batches.
        batch: images per step.
    """
    device = next(network.parameters()).device
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
    network.train()
    loss = torch.zeros(())
    for _ in range(steps):
        picked = torch.randint(0, len(images), (batch,), generator=rng)
        logits = network(images[picked].to(device).float() / 255)
        loss = F.cross_entropy(logits, labels[picked].to(device))
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
    return float(loss.detach())
