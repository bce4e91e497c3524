"""Features for photographs: small patches of an image, held against patches of drawn ones.

Convolutional networks of one fixed layer (Coates and Ng 2012): patches are brought to mean zero and
equal contrast, whitened, and correlated with a bank of whitened patches; what exceeds a threshold
is averaged over nine parts of the image. The bank comes from images of `data.leaves`, so that no
person's data stand behind it; `benchmarks/learn_patches.py` has made the file beside this module.

Colour images are photographs as a rule, and what they show is the same in a mirror: the bank sees
the image and its mirror image, and both count alike (exactly, where a side is an even number of
pixels). Letters and digits are not, so grey ones are left as they are.
"""

from functools import lru_cache
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from fedtranscribe.errors import ConfigError
from fedtranscribe.models.classifier import parts, shrunk

BANK = Path(__file__).with_suffix(".safetensors")
"""Of channels 1 and 3: filters float32 [ch · p · p, q] of normalised patches, thresholds [q]."""
SIDE = 6
"""p, of a patch in pixels."""
FAINT = 0.01
"""Added to a patch's variance: where nothing is to be seen, noise is not made larger."""
_STRIDE = 2
_THRESHOLD = 0.5
_PARTS = 3  # a side
_TINY = 1e-12


class Patches(nn.Module):
    """Images [n, ch, s, s] in [0, 1] -> [n, d]: by part of the image, sign and filter.

    Large images are brought to 64 pixels a side.
    """

    filters: Tensor
    offsets: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        if channels not in (1, 3):
            raise ConfigError(f"Expected images of 1 or 3 channels for patches, got {channels}.")
        bank = _bank()
        filters, offsets = bank[f"filters-{channels}"], bank[f"offsets-{channels}"]
        self._mirrored = channels == 3
        if self._mirrored:
            turned = filters.view(channels, SIDE, SIDE, -1).flip(2).flatten(0, 2)
            filters, offsets = torch.cat([filters, turned], 1), offsets.repeat(2)
        # Constants of the code, so no part of a student's weights.
        self.register_buffer("filters", filters, persistent=False)
        self.register_buffer("offsets", offsets, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """float [n, ch, s, s] -> float [n, d]."""
        # One at a time: maps stay in a processor's cache, which makes it faster than 16 at a time,
        # and what comes of an image does not depend on its place.
        return torch.cat([self._pooled(image) for image in parts(images, 1)])

    def _pooled(self, images: Tensor) -> Tensor:
        images = shrunk(images)
        found = contrasts(F.unfold(images, SIDE, stride=_STRIDE).transpose(1, 2))
        found = found @ self.filters + self.offsets
        pool = _averages((images.shape[-1] - SIDE) // _STRIDE + 1).to(found)
        signs = [pool @ F.relu(sign - _THRESHOLD) for sign in (found, -found)]
        by_part = torch.stack(signs, 2)
        if self._mirrored:
            seen, turned = by_part.unflatten(1, (_PARTS, _PARTS)).chunk(2, -1)
            by_part = seen + turned.flip(2)
        # Square roots even out what few bright patches and many faint ones amount to.
        return (by_part.flatten(1) + _TINY).sqrt()


def contrasts(patches: Tensor) -> Tensor:
    """Patches [..., p · p · ch] of mean zero and variance one, but for faint ones."""
    centred = patches - patches.mean(-1, keepdim=True)
    return centred * (centred.square().mean(-1, keepdim=True) + FAINT).rsqrt()


@lru_cache(maxsize=1)
def _bank() -> dict[str, Tensor]:
    return load_file(BANK)


@lru_cache(maxsize=4)
def _averages(places: int) -> Tensor:
    """A matrix [parts², places²] that averages maps of so many places a side over their parts."""
    # Kept, so never on the device of whoever asks first.
    each = torch.eye(places**2, device="cpu").view(-1, 1, places, places)
    return F.adaptive_avg_pool2d(each, _PARTS).flatten(1).T.contiguous()
