"""MLP and CNN on synthetic images, as dp-promise trains them: Adam 3e-4, batches of 128.

The epoch is chosen on a sixth of the SYNTHETIC images. No real image is in reach of this module:
choosing on private records would be a release that nobody charged.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedtranscribe.models import build, fixed_randomness

_BATCH = 128
_LR = 3e-4
_VALIDATION = 6
_HIDDEN = (256, 128)
_PREDICT_BATCH = 500

Epochs = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class ChosenNet:
    """A network after training.

    Attributes:
        network: with the weights of the chosen epoch.
        epoch: which one it was, from 1.
        validation: its accuracy on synthetic validation images.
    """

    network: nn.Module
    epoch: int
    validation: float


def build_net(name: str, classes: int, channels: int, size: int, seed: int) -> nn.Module:
    """An MLP with layers of 256 and 128, or our small `cnn`; fresh weights from the seed."""
    if name == "cnn":
        return build("cnn", classes, channels, size, seed=seed)
    with fixed_randomness(seed):
        layers: list[nn.Module] = [nn.Flatten()]
        before = channels * size * size
        for width in _HIDDEN:
            layers += [nn.Linear(before, width), nn.ReLU()]
            before = width
        return nn.Sequential(*layers, nn.Linear(before, classes))


def train_net(
    name: str,
    images: Tensor,
    labels: Tensor,
    classes: int,
    *,
    epochs: int,
    patience: int,
    seed: int,
    device: torch.device,
    progress: Epochs,
) -> ChosenNet:
    """Train on five sixths of the synthetic images, choose the epoch on the rest.

    Args:
        name: mlp or cnn.
        images: synthetic, uint8 [n, ch, s, s].
        labels: the student's, int64 [n].
        classes: of the task.
        epochs: at most so many.
        patience: epochs without a better score on the rest, then it ends.
        seed: of weights, split and batches; public.
        device: where to train.
        progress: called with (epochs done, epochs at most).
    """
    rng = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(images), generator=rng)
    held, trained = order.split([len(order) // _VALIDATION, len(order) - len(order) // _VALIDATION])
    network = build_net(name, classes, images.shape[1], images.shape[2], seed).to(device)
    optimiser = torch.optim.Adam(network.parameters(), lr=_LR)
    best = ChosenNet(network, 0, -1.0)
    for epoch in range(1, epochs + 1):
        _pass(network, optimiser, images, labels, trained, rng)
        score = int((predict(network, images[held]) == labels[held]).sum()) / len(held)
        if score > best.validation:
            best = ChosenNet(copy.deepcopy(network), epoch, score)
        progress(epoch, epochs)
        if epoch - best.epoch >= patience:
            break
    progress(epochs, epochs)
    return best


def predict(network: nn.Module, images: Tensor) -> Tensor:
    """Likeliest class of each uint8 image [n, ch, s, s]: int64 [n]."""
    device = next(network.parameters()).device
    network.eval()
    with torch.no_grad():
        parts = [
            network(part.to(device).float() / 255).argmax(-1).cpu()
            for part in images.split(_PREDICT_BATCH)
        ]
    return torch.cat(parts)


def _pass(
    network: nn.Module,
    optimiser: torch.optim.Optimizer,
    images: Tensor,
    labels: Tensor,
    rows: Tensor,
    rng: torch.Generator,
) -> None:
    device = next(network.parameters()).device
    network.train()
    for picked in rows[torch.randperm(len(rows), generator=rng)].split(_BATCH):
        logits = network(images[picked].to(device).float() / 255)
        loss = F.cross_entropy(logits, labels[picked].to(device))
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
