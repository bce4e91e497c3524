"""Plain training of a classifier on a holder's own records: baselines, and judges of samples."""

import torch
import torch.nn.functional as F

from fedtranscribe.config import BaselineSettings
from fedtranscribe.data import ImageSet, augment
from fedtranscribe.models import Classifier


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
