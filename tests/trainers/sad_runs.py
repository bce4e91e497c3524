"""A DP-SAD that finishes in seconds, for several test files."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedtranscribe.models.diffusion import Sampling, Schedule, sample
from fedtranscribe.models.unet import UNetSize
from fedtranscribe.noise.sources import SeededBits, SeededNoise
from fedtranscribe.privacy.diffusion import Teacher
from fedtranscribe.trainers.dp_sad import DpSad, DpSadSettings, SadNetworks, SadStage, make_networks
from fedtranscribe.trainers.per_sample import Backend
from fedtranscribe.trainers.stages import TrainingInputs

RECORDS, SIDE, CLASSES = 24, 8, 2
TINY = DpSadSettings(
    noise_multiplier=1.0,
    batch=6,
    epochs=0.5,
    lr=1e-3,
    teacher_lr=1e-3,
    discriminator_lr=1e-3,
    pretrain_batch=8,
    pretrain_epochs=0.5,
    pretrain_lr=1e-3,
    discriminator_batch=4,
    synthetic_images=4,
    ema_decay=0.9,
    unet=UNetSize.TINY,
    schedule=Schedule(40, 1e-3, 0.2),
    sampling=Sampling(3),
)
PRIVATE_TEACHER = replace(TINY, teacher=Teacher.DP)


def blobs(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A bright half on dark ground, left or right by class, [n, 1, 8, 8] in [-1, 1]."""
    labels = torch.arange(n) % CLASSES
    images = torch.full((n, 1, SIDE, SIDE), -0.9)
    images[labels == 0, :, :, :4] = 0.8
    images[labels == 1, :, :, 4:] = 0.8
    rng = torch.Generator().manual_seed(seed)
    return (images + 0.1 * torch.randn(images.shape, generator=rng)).clamp(-1, 1), labels


def parts(
    settings: DpSadSettings = TINY, *, seed: int = 0, **others: Any
) -> tuple[DpSad, SadNetworks, Tensor]:
    """A run on blobs, its networks, and its private images.

    There are public blobs too, with labels, for a public teacher.
    """
    images, labels = blobs(RECORDS)
    public, public_labels = (
        blobs(16, seed=5) if settings.teacher is Teacher.PUBLIC else (None, None)
    )
    arguments: dict[str, Any] = {
        "images": images,
        "labels": labels,
        "public": public,
        "public_labels": public_labels,
        "noise": SeededNoise(0),
        "bits": SeededBits(0),
        "rng": torch.Generator().manual_seed(0),
        "backend": Backend.CONTRACTED,
        "physical_batch": 8,
    }
    arguments |= others
    networks = make_networks(settings, (1, SIDE, CLASSES), seed)
    method = DpSad(networks, settings, TrainingInputs(**arguments))
    return method, networks, arguments["images"]


def run(settings: DpSadSettings = TINY, **others: Any) -> DpSad:
    """The run alone."""
    return parts(settings, **others)[0]


def to_stage(method: DpSad, stage: SadStage) -> DpSad:
    while method.stage is not stage:
        method.train(1)
    return method


def drawn(method: Any, labels: Tensor) -> Tensor:
    """Images of a trainer's averaged weights, from a fixed seed."""
    settings, rng = method.settings, torch.Generator().manual_seed(0)
    return sample(method.network, settings.schedule, labels, settings.sampling, rng)
