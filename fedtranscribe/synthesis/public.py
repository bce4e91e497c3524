"""Public images to start a diffusion model from, brought into the shape of the private ones."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedtranscribe.config import PUBLIC_SHAPES, SynthesizeSettings
from fedtranscribe.data import NamedData, draw_shapes, load_public
from fedtranscribe.models.diffusion import to_signed
from fedtranscribe.trainers.plan import DataFacts

_SHAPES = 8_000


@dataclass(frozen=True, eq=False)
class PublicImages:
    """Public images in the shape of the private ones.

    Attributes:
        name: of the set, as it was typed.
        data_id: of the set.
        images: float32 [m, c, h, w] in [-1, 1].
        labels: int64 [m]; None where the set has not as many classes as the private one.
    """

    name: str
    data_id: str
    images: Tensor
    labels: Tensor | None

    def __len__(self) -> int:
        return len(self.images)


def public_images(
    name: str, settings: SynthesizeSettings, facts: DataFacts, private: NamedData
) -> PublicImages:
    """A public set by name: colour becomes grey or grey colour, and another size is resampled.

    Args:
        name: `shapes`, or a data set.
        settings: where it lies.
        facts: the shape wanted.
        private: the private data, which cannot be public at the same time.

    Raises:
        ConfigError: the public images are the private ones; see `expect_public`.
        DataError: it is absent or unusable.
    """
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
    labels = found.labels if found.classes == facts.classes else None
    return PublicImages(name, found.data_id, images, labels)
