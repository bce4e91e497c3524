"""A small feature network trained on public images, for fidelity without Inception weights.

It is made anew from a fixed seed, so that the same public set gives the same network. Figures
under it compare runs with each other; they say nothing about published FID.
"""

from functools import lru_cache
from itertools import count
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedtranscribe.data import DataSplit, ImageSet, augment, load
from fedtranscribe.models import build, fixed_randomness

WIDTH = 64
_SEED = 0
_STEPS = 400
_BATCH = 128
_LR = 2e-3
_AUGMENT = 0.5

_numbers = count()


class FeatureNetwork(nn.Module):
    """Images of any shape -> 64 features and class logits.

    Args:
        classes: of the public set.
        channels: of its images.
        size: of its images, in pixels.
    """

    def __init__(self, classes: int, channels: int, size: int) -> None:
        super().__init__()
        self.channels = channels
        self.size = size
        with fixed_randomness(_SEED):
            self.body = build("cnn", WIDTH, channels, size, seed=_SEED)
            self.head = nn.Linear(WIDTH, classes)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """float [n, ch, s, s] in [0, 1] -> features [n, 64], logits [n, classes]."""
        if images.shape[1] != self.channels:
            images = images.mean(1, keepdim=True).expand(-1, self.channels, -1, -1)
        if images.shape[-1] != self.size:
            images = F.interpolate(
                images, size=(self.size, self.size), mode="bilinear", align_corners=False
            )
        features = self.body(images).relu()
        return features, self.head(features)


def train_features(public: ImageSet, steps: int = _STEPS) -> FeatureNetwork:
    """Train a feature network as a classifier of labelled public images."""
    network = FeatureNetwork(public.classes, public.channels, public.size)
    rng = torch.Generator().manual_seed(_SEED)
    optimiser = torch.optim.Adam(network.parameters(), lr=_LR)
    network.train()
    for _ in range(steps):
        picked = torch.randint(0, len(public), (_BATCH,), generator=rng)
        views = augment(public.images[picked].float() / 255, _AUGMENT, rng)
        loss = F.cross_entropy(network(views)[1], public.labels[picked])
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
    return network.eval().requires_grad_(False)


@lru_cache(maxsize=1)
def public_set(name: str, root: Path | None) -> DataSplit:
    """The public set of that name; raises as `load`."""
    return load(name, root)


@lru_cache
def registered(name: str, root: Path | None) -> tuple[str, str]:
    """Train a feature network on a public set and make it known to torch-fidelity.

    Args:
        name: of the public set, which the caller has compared with the private records.
        root: where it lies.

    Returns:
        The name that torch-fidelity knows it by, and what to call it in a result.

    Raises:
        DataError: the set is absent or unusable.
    """
    from torch_fidelity import register_feature_extractor

    public = public_set(name, root).train
    known = f"fedtranscribe-{next(_numbers)}"
    register_feature_extractor(known, _extractor(train_features(public)))
    colour = "grey" if public.channels == 1 else "colour"
    return known, (
        f"cnn-{WIDTH} trained on {name} ({colour}, {public.size}x{public.size}); "
        "not Inception: not comparable with published FID"
    )


def _extractor(network: FeatureNetwork) -> type:
    """A network as a class that torch-fidelity can build."""
    from torch_fidelity import FeatureExtractorBase

    class PublicFeatures(FeatureExtractorBase):
        def __init__(self, name: str, features_list: list[str], **_: object) -> None:
            super().__init__(name, features_list)
            self.network = network

        @staticmethod
        def get_provided_features_list() -> tuple[str, ...]:
            return "features", "logits"

        @staticmethod
        def get_default_feature_layer_for_metric(metric: str) -> str:
            return "logits" if metric == "isc" else "features"

        @staticmethod
        def can_be_compiled() -> bool:
            return False

        def forward(self, input: Tensor) -> tuple[Tensor, ...]:  # noqa: A002  # the base's name
            features, logits = self.network(input.float() / 255)
            values = {"features": features, "logits": logits}
            return tuple(values[name] for name in self.features_list)

    return PublicFeatures
