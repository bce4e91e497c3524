"""Public images to start a diffusion model from, and labels from clusters of them."""

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedtranscribe.config import PUBLIC_SHAPES, SynthesizeSettings
from fedtranscribe.data import DataSplit, ImageSet, NamedData, draw_shapes, load_public
from fedtranscribe.errors import ConfigError
from fedtranscribe.models.diffusion import to_signed
from fedtranscribe.trainers.plan import DataFacts

_SHAPES = 8_000


@dataclass(frozen=True, eq=False)
class PublicImages:
    """Public images in the shape of the private ones."""

    name: str  # of the set, as it was typed
    data_id: str  # of the set
    images: Tensor  # float32 [m, c, h, w] in [-1, 1]
    # int64 [m]; None where the set has not as many classes as the private one
    labels: Tensor | None

    def __len__(self) -> int:
        return len(self.images)


def public_images(
    name: str, settings: SynthesizeSettings, facts: DataFacts, private: NamedData
) -> PublicImages:
    """A public set by name: colour becomes grey or grey colour, and another size is resampled."""
    if name == PUBLIC_SHAPES:
        rng = torch.Generator().manual_seed(settings.seed)
        drawn = draw_shapes(_SHAPES, facts.channels, facts.size, rng)
        return PublicImages(name, name, to_signed(drawn), None)
    root, download = settings.data_root, settings.download
    own = settings.as_public.model_copy(update={"image_size": facts.size})
    found = load_public("pretrain_data", name, private, root, download, own)
    images = to_signed(found.images)
    if found.channels > facts.channels:
        images = images.mean(1, keepdim=True)
    size = (facts.size, facts.size)
    if found.size != facts.size:
        images = F.interpolate(images, size, mode="bilinear", antialias=True).clamp(-1, 1)
    images = images.expand(-1, facts.channels, *size).contiguous()
    fits = found.classes == facts.classes and not found.multilabel
    labels = found.labels if fits else None
    return PublicImages(name, found.data_id, images, labels)


_COMPONENTS = 50
_BATCH = 4_096


class Clusters:
    """k-means over the principal components of public images [m, c, h, w] in [-1, 1]."""

    def __init__(self, public: Tensor, count: int, seed: int) -> None:
        if len(public) < count:
            raise ConfigError(
                f"Expected clusters={count} <= {len(public)} public images; lower it, or name a "
                "larger set by --pretrain-data."
            )
        self.count = count
        pixels = public.flatten(1).numpy()
        components = min(_COMPONENTS, *pixels.shape)
        self._steps = _pipeline(components, count, seed).fit(pixels)

    def labels(self, images: Tensor) -> Tensor:
        """The nearest centre of each image [n, c, h, w] in [-1, 1], int64 [n]."""
        parts = [
            torch.from_numpy(self._steps.predict(part.flatten(1).numpy())).long()
            for part in images.split(_BATCH)
        ]
        return torch.cat(parts)

    def relabelled(self, split: DataSplit) -> DataSplit:
        """The same records under their clusters."""
        return DataSplit(self._with_labels(split.train), self._with_labels(split.test))

    def of_public(self, public: PublicImages) -> PublicImages:
        """The public images under the same clusters."""
        return replace(public, labels=self.labels(public.images))

    def _with_labels(self, part: ImageSet) -> ImageSet:
        labels = self.labels(to_signed(part.images))
        return replace(part, labels=labels, classes=self.count, class_names=None)


def _pipeline(components: int, count: int, seed: int) -> Any:
    try:
        from sklearn.cluster import KMeans
        from sklearn.decomposition import PCA
        from sklearn.pipeline import make_pipeline
    except ImportError:
        raise ConfigError(
            "Labels by k-means need scikit-learn: pip install 'fedtranscribe[digits]'."
        ) from None
    return make_pipeline(PCA(components, random_state=seed), KMeans(count, random_state=seed))
