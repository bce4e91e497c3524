"""What images and labels have to be before a diffusion method does anything with them."""

import torch
from torch import Tensor

from fedtranscribe.errors import ConfigError
from fedtranscribe.models.unet import Denoiser


def check_images(images: Tensor, denoiser: Denoiser, whose: str) -> None:
    """Shape and range; the range is what the sensitivity of dp-promise's Phase I rests on.

    Args:
        images: [n, c, h, w].
        denoiser: that is to be trained on them.
        whose: private or public, for the message.

    Raises:
        ConfigError: names what was expected, and nothing of the images.
    """
    expected = denoiser.channels, denoiser.size, denoiser.size
    if images.dim() != 4 or tuple(images.shape[1:]) != expected or not len(images):
        raise ConfigError(
            f"Expected {whose} images as [n, {', '.join(map(str, expected))}], got "
            f"{list(images.shape)}; resize them, or build the network for them."
        )
    if not images.is_floating_point() or not bool((images.abs() <= 1).all()):
        raise ConfigError(
            f"Expected {whose} images as floats in [-1, 1]; scale pixels 0..255 by /127.5 - 1."
        )


def checked_labels(labels: Tensor | None, records: int, denoiser: Denoiser) -> Tensor:
    """int64 [n], null labels for an unconditional network.

    Raises:
        ConfigError: absent for a conditional network, of another shape, or foreign.
    """
    if denoiser.classes == 0:
        return torch.full((records,), denoiser.null_label)
    if labels is None:
        raise ConfigError(
            f"Expected labels for a network of {denoiser.classes} classes; give them, or build "
            "the network with 0 classes."
        )
    if tuple(labels.shape) != (records,) or labels.dtype != torch.int64:
        raise ConfigError(f"Expected labels as int64 [{records}], one per image.")
    if bool((labels < 0).any()) or bool((labels >= denoiser.classes).any()):
        raise ConfigError(f"Expected every label within 0..{denoiser.classes - 1}.")
    return labels


def checked_public(
    images: Tensor | None, labels: Tensor | None, denoiser: Denoiser
) -> tuple[Tensor, Tensor]:
    """Public images [m, c, h, w] and labels [m]: null labels where there are none, also for m = 0.

    Raises:
        ConfigError: as for private ones.
    """
    if images is None:
        images = torch.empty(0, denoiser.channels, denoiser.size, denoiser.size)
    else:
        check_images(images, denoiser, "public")
    if labels is None:
        return images, torch.full((len(images),), denoiser.null_label)
    return images, checked_labels(labels, len(images), denoiser)
