"""A trained diffusion model: drawing from it, its file, images on their way in and out.

A file is the weights as safetensors with one header entry, which says how to build the network,
which noise schedule it was trained with and how it is drawn from: all that sampling needs.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from pydantic import TypeAdapter
from torch import Tensor

from fedtranscribe.errors import ConfigError
from fedtranscribe.models.headers import ENTRY, DenoiserHeader, expect_fit, read_header, unusable
from fedtranscribe.models.sampling import Sampling, sample
from fedtranscribe.models.schedule import Schedule
from fedtranscribe.models.unet import Denoiser, make_unet, require_diffusers
from fedtranscribe.models.weights import load_state, restore, save

_HEADER: TypeAdapter[DenoiserHeader] = TypeAdapter(DenoiserHeader)

Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Synthesizer:
    """A trained network and how to draw from it: free post-processing, as often as wanted.

    Attributes:
        denoiser: averaged weights, in evaluation mode.
        schedule: that it was trained with.
        sampling: how, unless set otherwise.
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
        sampling.expect_within(self.schedule)
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
        "kind": "denoiser",
        "unet": denoiser.size_name.value,
        "channels": denoiser.channels,
        "size": denoiser.size,
        "classes": denoiser.classes,
        "conditional": model.conditional,
        "schedule": asdict(model.schedule),
        "sampling": asdict(model.sampling),
    }
    save(denoiser, path, {ENTRY: json.dumps(facts, sort_keys=True)})


def load_synthesizer(path: Path) -> Synthesizer:
    """The model in a file of `save_synthesizer`, on the CPU, in evaluation mode.

    Raises:
        WeightsNotFoundError: no such file.
        CorruptWeightsError: truncated, not written by `save_synthesizer`, or with NaN.
        ModelMismatchError: its header does not fit its tensors.
        ConfigError: diffusers is not installed.
    """
    header = read_header(path, _HEADER)
    try:
        schedule, sampling = header.diffusion()
    except ConfigError as error:
        raise unusable(path, str(error)) from None
    require_diffusers()
    state = load_state(path)
    make = partial(make_unet, header.unet, header.channels, header.size, header.classes)
    expect_fit(make, state, path)
    denoiser = make()
    restore(denoiser, state, path)
    return Synthesizer(denoiser.eval(), schedule, sampling, header.conditional)
