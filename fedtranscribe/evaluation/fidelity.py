"""FID, Inception Score, precision and recall, by torch-fidelity or a small public network."""

import hashlib
import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from fedtranscribe.config import PUBLIC_SHAPES
from fedtranscribe.config.evaluation import EvaluationSettings
from fedtranscribe.data import DataSplit, ImageSet, NamedData, expect_public, load, share_records
from fedtranscribe.data.imageset import groups_of
from fedtranscribe.data.shapes import augment
from fedtranscribe.errors import (
    CorruptWeightsError,
    DataNotFoundError,
    InvalidDataError,
    WeightsNotFoundError,
)
from fedtranscribe.models import build, fixed_randomness
from fedtranscribe.results.result import RunSettings

WIDTH = 64
_SEED = 0
_STEPS = 400
_FEATURE_BATCH = 128
_LR = 2e-3
_AUGMENT = 0.5

_numbers = count()


class FeatureNetwork(nn.Module):
    """Images of any shape -> 64 features and class logits."""

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
    network = FeatureNetwork(public.facts.groups, public.channels, public.size)
    rng = torch.Generator().manual_seed(_SEED)
    optimiser = torch.optim.Adam(network.parameters(), lr=_LR)
    network.train()
    for _ in range(steps):
        picked = torch.randint(0, len(public), (_FEATURE_BATCH,), generator=rng)
        views = augment(public.images[picked].float() / 255, _AUGMENT, rng)
        loss = F.cross_entropy(network(views)[1], groups_of(public.labels[picked]))
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
    """Train a feature network on a public set and make it known to torch-fidelity."""
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

    class PublicNetworkFeatures(FeatureExtractorBase):
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

    return PublicNetworkFeatures


# For runs without a labelled public set; the second where the first are the private records.
_PACKAGED = ("uci-digits", "digits")
_OTHER_FEATURES = "give --inception FILE, or --no-fidelity."
_INCEPTION = "inception-v3-compat"
# First digits of the SHA-256 of torch-fidelity's own weights; the name of their file ends in it.
_USUAL = "6726825d"
_BATCH = 64
# Precision and recall look at the third neighbour.
_LEAST = 4


@dataclass(frozen=True)
class FeatureSource:
    """Where features come from."""

    extractor: str  # the name that torch-fidelity knows it by
    weights: Path | None  # its file, where there is one
    colour: bool  # whether images must have three channels
    words: str  # what to call it in a result


def feature_source(
    settings: EvaluationSettings, run: RunSettings, private: NamedData
) -> FeatureSource:
    """Inception from a file or fetched, else a network trained on public images."""
    if settings.inception is not None:
        digest = check_inception(settings.inception)
        usual = digest.startswith(_USUAL)
        words = f"Inception v3, weights {settings.inception.name} (sha256 {digest[:8]})"
        words += "" if usual else "; not torch-fidelity's own: not comparable with published FID"
        return FeatureSource(_INCEPTION, settings.inception, True, words)
    if settings.download:
        return FeatureSource(_INCEPTION, None, True, "Inception v3, torch-fidelity's weights")
    extractor, words = _public_features(settings, run, private)
    return FeatureSource(extractor, None, False, words)


def check_inception(path: Path) -> str:
    """Read a weights file as tensors alone, before torch-fidelity unpickles it."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise WeightsNotFoundError(
            f"Cannot read the Inception weights {path}: {error.strerror or error}; give a file, "
            "--download, or neither for a network trained on public images."
        ) from None
    from torch_fidelity import FeatureExtractorInceptionV3

    try:
        torch.load(path, map_location="cpu", weights_only=True)
        FeatureExtractorInceptionV3("check", ["2048"], feature_extractor_weights_path=str(path))
    except Exception:  # torch raises many kinds for a foreign file
        raise CorruptWeightsError(
            f"{path} does not hold the Inception v3 weights of torch-fidelity (a dictionary of "
            "tensors); give that file, or --download."
        ) from None
    return hashlib.sha256(content).hexdigest()


def measure(
    synthetic: Tensor, real: Tensor, source: FeatureSource, device: torch.device
) -> dict[str, Any]:
    """FID, IS, precision and recall of synthetic images.

    Args:
        synthetic: uint8 [n, ch, s, s].
        real: uint8 [m, ch, s, s].
        source: of the features.
        device: where to extract them.
    """
    import torch_fidelity

    compared = len(real) >= _LEAST
    try:
        found = torch_fidelity.calculate_metrics(
            input1=_Images(synthetic, source.colour),
            input2=_Images(real, source.colour) if compared else None,
            isc=True,
            fid=compared,
            prc=compared,
            feature_extractor=source.extractor,
            feature_extractor_weights_path=str(source.weights) if source.weights else None,
            cuda=device.type == "cuda",
            batch_size=_BATCH,
            cache=False,
            # Images are in memory already: processes that load them would only copy them.
            save_cpu_ram=True,
            verbose=False,
        )
    except OSError as error:
        raise WeightsNotFoundError(
            f"torch-fidelity could not fetch its Inception weights ({error}); give the file with "
            "--inception, or leave out --download."
        ) from None
    names = {
        "fid": torch_fidelity.KEY_METRIC_FID,
        "inception_score": torch_fidelity.KEY_METRIC_ISC_MEAN,
        "inception_score_std": torch_fidelity.KEY_METRIC_ISC_STD,
        "precision": torch_fidelity.KEY_METRIC_PRECISION,
        "recall": torch_fidelity.KEY_METRIC_RECALL,
    }
    return {name: _finite(found.get(key)) for name, key in names.items()}


def _public_features(
    settings: EvaluationSettings, run: RunSettings, private: NamedData
) -> tuple[str, str]:
    """A feature network on the run's labelled public set, or on a packaged one."""
    packaged = next(name for name in _PACKAGED if not share_records(name, private.data_id))
    name = run.public_data
    if name is None or name in ("none", PUBLIC_SHAPES, packaged):
        return _features_of(packaged, None, private)
    try:
        return _features_of(name, settings.data_root or run.data_root, private)
    except (DataNotFoundError, InvalidDataError):
        # The result names the set that was used.
        return _features_of(packaged, None, private)


def _features_of(name: str, root: Path | None, private: NamedData) -> tuple[str, str]:
    public = NamedData.of(name, public_set(name, root))
    expect_public("public_data", public, private, _OTHER_FEATURES)
    return registered(name, root)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


class _Images(Dataset[Tensor]):
    """A tensor of images as torch-fidelity reads it; grey ones as a PNG reader would show them."""

    def __init__(self, images: Tensor, colour: bool) -> None:
        self._images = images
        self._repeat = 3 if colour and images.shape[1] == 1 else 1

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> Tensor:
        return self._images[index].expand(self._repeat * len(self._images[index]), -1, -1)
