"""Public images to start a diffusion model from, brought into the shape of the private ones."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedtranscribe.config import PUBLIC_SHAPES, SynthesizeSettings
from fedtranscribe.data import draw_shapes, load
from fedtranscribe.errors import ConfigError
from fedtranscribe.models.diffusion import to_signed
from fedtranscribe.synthesize.method import Facts

_SHAPES = 8_000
# Sets that are drawn from one another: one of them is not public where the other is private.
_SAME_IMAGES = ({"digits", "mnist"}, {"cifar10", "cifar10-jpeg"})


@dataclass(frozen=True, eq=False)
class PublicImages:
    """Public images in the shape of the private ones.

    Attributes:
        name: of the set.
        images: float32 [m, c, h, w] in [-1, 1].
        labels: int64 [m]; None where the set has not as many classes as the private one.
    """

    name: str
    images: Tensor
    labels: Tensor | None

    def __len__(self) -> int:
        return len(self.images)


def public_images(
    name: str, settings: SynthesizeSettings, facts: Facts, private_id: str
) -> PublicImages:
    """A public set by name: colour becomes grey or grey colour, and another size is resampled.

    Args:
        name: `shapes`, or a data set.
        settings: where it lies.
        facts: the shape wanted.
        private_id: of the private data, which cannot be public at the same time.

    Raises:
        ConfigError: the set holds the private images.
        DataError: it is absent or unusable.
    """
    if name == PUBLIC_SHAPES:
        rng = torch.Generator().manual_seed(settings.seed)
        drawn = draw_shapes(_SHAPES, facts.channels, facts.size, rng)
        return PublicImages(name, to_signed(drawn), None)
    found = load(name, settings.data_root, settings.download, facts.size).train
    pair = {found.data_id, private_id}
    if len(pair) == 1 or any(pair <= same for same in _SAME_IMAGES):
        raise ConfigError(
            f"Expected pretrain_data={name!r} to be public images, and they are those of "
            f"data={settings.data!r}; choose another set, or 'none'."
        )
    images = to_signed(found.images)
    if found.channels > facts.channels:
        images = images.mean(1, keepdim=True)
    size = (facts.size, facts.size)
    if found.size != facts.size:
        images = F.interpolate(images, size, mode="bilinear", antialias=True).clamp(-1, 1)
    images = images.expand(-1, facts.channels, *size).contiguous()
    return PublicImages(name, images, found.labels if found.classes == facts.classes else None)
