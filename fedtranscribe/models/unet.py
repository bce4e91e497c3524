"""The network of a diffusion model: diffusers' U-Net, conditional on time step and class.

Needs diffusers (`pip install 'fedtranscribe[diffusion]'`), which takes seconds to import: it is
imported when the first network is built.
"""

from dataclasses import dataclass
from enum import StrEnum

from torch import Tensor, nn

from fedtranscribe.errors import ConfigError
from fedtranscribe.models.classifier import fixed_randomness


class UNetSize(StrEnum):
    """How large a U-Net is; but for `tiny` these are the networks of dp-promise."""

    TINY = "tiny"  # 0.28M parameters: tests, a CPU
    SMALL = "small"  # 1.6M, for MNIST
    MEDIUM = "medium"  # 6.5M, for Fashion-MNIST
    LARGE = "large"  # 35.7M, for 32x32 and 64x64 in colour


@dataclass(frozen=True)
class _Shape:
    """Width per level, residual blocks per level, where attention is, groups of GroupNorm."""

    widths: tuple[int, ...]
    layers: int
    attention_sides: tuple[int, ...]
    groups: int
    head_width: int


# Attention resolution 7 at 28 pixels, which a 32x32 image meets as 8. Four heads.
_SHAPES = {
    UNetSize.TINY: _Shape((16, 32, 32), 1, (7, 8), groups=8, head_width=16),
    UNetSize.SMALL: _Shape((32, 64, 64), 2, (7, 8), groups=32, head_width=16),
    UNetSize.MEDIUM: _Shape((64, 128, 128), 2, (7, 8), groups=32, head_width=32),
    UNetSize.LARGE: _Shape((128, 256, 256, 256), 2, (16,), groups=32, head_width=64),
}


class Denoiser(nn.Module):
    """z_θ(x_t, t, y): guesses the noise in x_t. GroupNorm only, so rows never meet.

    Attributes:
        size_name: of the U-Net.
        channels: of an image.
        size: pixels a side.
        classes: labels are 0..classes − 1, and 0 classes mean an unconditional model.
        null_label: the label that says nothing, = classes.
        unet: diffusers' network, which could be used on its own.
    """

    def __init__(
        self, size_name: UNetSize, channels: int, image_size: int, classes: int, seed: int
    ) -> None:
        super().__init__()
        self.size_name = size_name
        self.channels = channels
        self.size = image_size
        self.classes = classes
        self.null_label = classes
        self.unet = _build(_SHAPES[size_name], channels, image_size, classes + 1, seed)

    def forward(self, x: Tensor, t: Tensor, labels: Tensor) -> Tensor:
        """Noise in x.

        Args:
            x: float [n, channels, size, size].
            t: int64 [n], each in 1..T.
            labels: int64 [n], each in 0..null_label.

        Returns:
            float [n, channels, size, size].
        """
        return self.unet(x, t - 1, labels, return_dict=False)[0]

    def freeze_time_embedding(self) -> None:
        """Leave the time embedding as it is from now on; the class embedding goes on learning."""
        self.unet.time_embedding.requires_grad_(False)


def make_unet(
    size_name: UNetSize | str, channels: int, image_size: int, classes: int, seed: int = 0
) -> Denoiser:
    """A fresh network for images [n, channels, image_size, image_size] in [-1, 1].

    Args:
        size_name: tiny, small, medium or large.
        channels: 1 for grey, 3 for colour.
        image_size: pixels a side: a multiple of 4, of 8 for `large`; 28 needs no padding.
        classes: of the labels; 0 for an unconditional model. The embedding has one row more, for
            the null label.
        seed: fixes the initial weights.
    """
    if size_name not in list(UNetSize):
        raise ConfigError(f"No U-Net {size_name!r}; choose one of {', '.join(UNetSize)}.")
    name = UNetSize(size_name)
    for label, value, least in (("channels", channels, 1), ("classes", classes, 0)):
        if value < least:
            raise ConfigError(f"Expected {label}={value} >= {least}.")
    factor = 2 ** (len(_SHAPES[name].widths) - 1)
    if image_size < 2 * factor or image_size % factor:
        raise ConfigError(
            f"Expected image size={image_size} to be a multiple of {factor} and >= {2 * factor} "
            f"for the {name} U-Net; pad the images or choose another size."
        )
    return Denoiser(name, channels, image_size, classes, seed)


def require_diffusers() -> None:
    """Check that diffusers can be imported, which takes seconds the first time."""
    try:
        import diffusers.models.unets.unet_2d  # noqa: F401
    except ImportError:
        raise ConfigError(
            "Diffusion models need diffusers; run: pip install 'fedtranscribe[diffusion]'"
        ) from None


def _build(shape: _Shape, channels: int, side: int, embeddings: int, seed: int) -> nn.Module:
    require_diffusers()
    from diffusers.models.unets.unet_2d import UNet2DModel

    attended = [side >> level in shape.attention_sides for level in range(len(shape.widths))]
    with fixed_randomness(seed):
        return UNet2DModel(
            sample_size=side,
            in_channels=channels,
            out_channels=channels,
            block_out_channels=shape.widths,
            layers_per_block=shape.layers,
            down_block_types=tuple("AttnDownBlock2D" if a else "DownBlock2D" for a in attended),
            up_block_types=tuple("AttnUpBlock2D" if a else "UpBlock2D" for a in attended[::-1]),
            attention_head_dim=shape.head_width,
            norm_num_groups=shape.groups,
            num_class_embeds=embeddings,
        )
