"""A trained diffusion model: drawing from it, its file, images on their way in and out.

A file is the weights as safetensors with one header entry, which says how to build the network,
which noise schedule it was trained with and how it is drawn from: all that sampling needs.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from fedtranscribe.errors import ConfigError, CorruptWeightsError
from fedtranscribe.models.sampling import Sampling, Spacing, sample
from fedtranscribe.models.schedule import Schedule
from fedtranscribe.models.unet import Denoiser, make_unet
from fedtranscribe.models.weights import load_state, read_metadata, restore, save

# The entry that `portable.py` uses too: one entry only, so that equal networks are equal files.
_HEADER = "network"
_KIND = "denoiser"

Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Synthesizer:
    """A trained network and how to draw from it: free post-processing, as often as wanted.

    Attributes:
        denoiser: averaged weights, in evaluation mode.
        schedule: that it was trained with.
        sampling: how, unless told otherwise.
        conditional: whether its images come by label.
    """

    denoiser: Denoiser
    schedule: Schedule
    sampling: Sampling
    conditional: bool

    @property
    def classes(self) -> int:
        """Labels that can be asked for; 0 where images come without."""
        return self.denoiser.classes if self.conditional else 0

    def to(self, device: torch.device) -> Self:
        """The same, its network moved to a device."""
        self.denoiser.to(device)
        return self

    def draw(
        self, labels: Tensor, seed: int, progress: Progress = lambda done, total: None
    ) -> Tensor:
        """One image per label, uint8 [n, channels, size, size].

        Args:
            labels: int64 [n] below `classes`; a network without labels takes no notice.
            seed: public randomness, never that of the training.
            progress: called with (images done, images in all).

        Raises:
            ConfigError: a label that the network does not know.
        """
        if not self.conditional:
            labels = torch.full_like(labels, self.denoiser.null_label)
        rng = torch.Generator().manual_seed(seed)
        images = sample(self.denoiser, self.schedule, labels, self.sampling, rng, progress=progress)
        return to_pixels(images)

    def told(self, steps: int | None, guidance: float | None) -> Self:
        """The same with other T' or w.

        Raises:
            ConfigError: out of range.
        """
        changes: dict[str, Any] = {"steps": steps, "guidance": guidance}
        given = {name: value for name, value in changes.items() if value is not None}
        sampling = replace(self.sampling, **given)
        if sampling.steps > self.schedule.steps:
            raise ConfigError(
                f"Expected steps={sampling.steps} <= T={self.schedule.steps}; lower them."
            )
        return replace(self, sampling=sampling)


def to_signed(images: Tensor) -> Tensor:
    """Pixels uint8 -> float32 in [-1, 1], by constants (dp-promise, Remark 1)."""
    return images.float() / 127.5 - 1


def to_pixels(images: Tensor) -> Tensor:
    """Floats in [-1, 1] -> the nearest uint8 pixels; values outside are clamped."""
    return ((images.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)


def save_synthesizer(model: Synthesizer, path: Path) -> None:
    """Write weights, and in the file's header what `load_synthesizer` needs.

    Raises:
        StorageError: a full disk or a read-only folder.
    """
    denoiser = model.denoiser
    facts = {
        "kind": _KIND,
        "unet": denoiser.size_name.value,
        "channels": denoiser.channels,
        "size": denoiser.size,
        "classes": denoiser.classes,
        "conditional": model.conditional,
        "schedule": asdict(model.schedule),
        "sampling": asdict(model.sampling),
    }
    save(denoiser, path, {_HEADER: json.dumps(facts, sort_keys=True)})


def load_synthesizer(path: Path) -> Synthesizer:
    """The model in a file of `save_synthesizer`, on the CPU, in evaluation mode.

    Raises:
        WeightsNotFoundError: no such file.
        CorruptWeightsError: truncated, not written by `save_synthesizer`, or with NaN.
        ConfigError: diffusers is not installed.
    """
    try:
        facts = json.loads(read_metadata(path).get(_HEADER, ""))
        if facts["kind"] != _KIND:
            raise ValueError(facts["kind"])
        shape = int(facts["channels"]), int(facts["size"]), int(facts["classes"])
        name, conditional = str(facts["unet"]), bool(facts["conditional"])
        schedule, drawn = Schedule(**facts["schedule"]), facts["sampling"]
        sampling = Sampling(**{**drawn, "spacing": Spacing(drawn["spacing"])})
    except (KeyError, TypeError, ValueError, ConfigError):
        raise CorruptWeightsError(
            f"{str(path)!r} does not say which diffusion model it holds; it was not written by a "
            "finished run of this version."
        ) from None
    denoiser = make_unet(name, *shape)
    restore(denoiser, load_state(path), path)
    return Synthesizer(denoiser.eval(), schedule, sampling, conditional)
