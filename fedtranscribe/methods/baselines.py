"""One student from several holders' networks, WITHOUT privacy: FedAvg, FedDF and DENSE."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fedtranscribe.config import BaselineSettings
from fedtranscribe.data import ImageSet
from fedtranscribe.data.shapes import augment
from fedtranscribe.models import Classifier, Generator

Progress = Callable[[str, int, int], None]

_DENSE_ROUNDS = 20
_GENERATOR_STEPS = 30
# Weight of disagreement with the student against being sure; large values make noise images.
_ADVERSARIAL = 0.5
_BALANCE = 1.0


def mean_logits(networks: Sequence[Classifier], images: Tensor) -> Tensor:
    """Plain mean of the networks' logits on float images [n, ch, s, s]: [n, classes]."""
    return torch.stack([network(images) for network in networks]).mean(0)


def distil(
    student: Classifier,
    networks: Sequence[Classifier],
    images: Tensor,
    settings: BaselineSettings,
    steps: int,
    rng: torch.Generator,
) -> float:
    """FedDF's server step: `steps` Adam steps of KL(mean of networks ‖ student), in place.

    Args:
        student: learns.
        networks: the holders'; frozen here.
        images: unlabelled, uint8 [n, ch, s, s].
        settings: batch, learning rate, views.
        steps: optimiser steps, the learning rate falling to zero.
        rng: source of batches and views.
    """
    device = next(student.parameters()).device
    optimiser = torch.optim.Adam(student.parameters(), lr=settings.distil_lr)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.01, steps)
    _freeze(networks)
    student.train()
    loss = torch.zeros(())
    for _ in range(steps):
        picked = torch.randint(0, len(images), (settings.batch,), generator=rng)
        views = augment(images[picked].to(device).float() / 255, settings.augment, rng)
        loss = _divergence(networks, student, views)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        schedule.step()
    return float(loss.detach())


def dense(
    student: Classifier,
    generator: Generator,
    networks: Sequence[Classifier],
    settings: BaselineSettings,
    rng: torch.Generator,
    progress: Progress,
) -> None:
    """DENSE-like training in place: rounds of generator steps, then of distillation on a pool.

    Args:
        student: learns.
        generator: makes the images.
        networks: the holders'; frozen here.
        settings: steps, learning rates, pool size.
        rng: source of z, labels, batches and views.
        progress: called with ("data-free distillation", round, rounds).
    """
    _freeze(networks)
    pool = torch.empty(0, dtype=torch.uint8)
    optimiser = torch.optim.Adam(generator.parameters(), lr=settings.generator_lr)
    for round_ in range(_DENSE_ROUNDS):
        for _ in range(_GENERATOR_STEPS):
            loss = _generator_loss(generator, networks, student, settings.batch, rng)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
        share = max(1, settings.pool // _DENSE_ROUNDS)
        pool = torch.cat([pool, _draw_images(generator, share, settings.batch, rng)])
        steps = max(1, settings.distil_steps // _DENSE_ROUNDS)
        distil(student, networks, pool, settings, steps, rng)
        progress("data-free distillation", round_ + 1, _DENSE_ROUNDS)


def _generator_loss(
    generator: Generator,
    networks: Sequence[Classifier],
    student: Classifier,
    batch: int,
    rng: torch.Generator,
) -> Tensor:
    device = next(generator.parameters()).device
    z = torch.randn(batch, generator.latent_dim, generator=rng).to(device)
    student.eval()
    generator.train()
    images = generator(z)
    sure = mean_logits(networks, images)
    # Labels drawn for images of an unconditional generator mean nothing image by image: each image
    # is to be sure of its own class, and the batch of all classes alike.
    own = F.cross_entropy(sure, sure.argmax(-1))
    mean = sure.softmax(-1).mean(0)
    balance = (mean * mean.clamp_min(1e-8).log()).sum()
    adversarial = -F.kl_div(
        student(images).log_softmax(-1), sure.softmax(-1), reduction="batchmean"
    )
    return own + _BALANCE * balance + _ADVERSARIAL * adversarial


def _draw_images(generator: Generator, n: int, batch: int, rng: torch.Generator) -> Tensor:
    device = next(generator.parameters()).device
    with torch.no_grad():
        parts = [
            generator(
                torch.randn(min(batch, n - i), generator.latent_dim, generator=rng).to(device)
            )
            for i in range(0, n, batch)
        ]
    return (torch.cat(parts).clamp(0, 1) * 255).round().to(torch.uint8).cpu()


def _divergence(networks: Sequence[Classifier], student: Classifier, images: Tensor) -> Tensor:
    with torch.no_grad():
        target = mean_logits(networks, images).softmax(-1)
    return F.kl_div(student(images).log_softmax(-1), target, reduction="batchmean")


def _freeze(networks: Sequence[Classifier]) -> None:
    for network in networks:
        network.eval().requires_grad_(False)


def train_locally(
    network: Classifier,
    images: ImageSet,
    settings: BaselineSettings,
    steps: int,
    rng: torch.Generator,
) -> None:
    """`steps` Adam steps of cross-entropy on the holder's own records, in place."""
    device = next(network.parameters()).device
    optimiser = torch.optim.Adam(network.parameters(), lr=settings.lr)
    network.train()
    for _ in range(steps):
        picked = torch.randint(0, len(images), (settings.batch,), generator=rng)
        views = augment(images.images[picked].to(device).float() / 255, settings.augment, rng)
        loss = F.cross_entropy(network(views), images.labels[picked].to(device))
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
