"""Labels for records whose own are absent or too many: k-means clusters of public images.

Guarantee
    Features and centres come from public images alone. The label of a record is then a function of
    that record and of nothing else, like a change of its pixels: it costs nothing, and what
    training promises of a record covers its label. Centres of the private records themselves
    would be a release of their own, which nobody here makes.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedtranscribe.data import DataSplit, ImageSet
from fedtranscribe.errors import ConfigError
from fedtranscribe.models.diffusion import to_signed
from fedtranscribe.synthesis.public import PublicImages

_COMPONENTS = 50
_BATCH = 4_096


class Clusters:
    """k-means over the principal components of public images.

    Args:
        public: float32 [m, c, h, w] in [-1, 1].
        count: k.
        seed: of the first centres.

    Raises:
        ConfigError: fewer public images than clusters, or scikit-learn is not installed.
    """

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
        """The nearest centre of each image, int64 [n].

        Args:
            images: float32 [n, c, h, w] in [-1, 1], of the public images' shape.
        """
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
