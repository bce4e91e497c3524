"""Diffusion models on disk, and images on their way in and out.

A file is the weights as safetensors with one header entry, which says how to build the network
and which noise schedule it was trained with: enough to sample from it.
"""

import json
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from fedtranscribe.errors import ConfigError, CorruptWeightsError
from fedtranscribe.models.schedule import Schedule
from fedtranscribe.models.unet import Denoiser, make_unet
from fedtranscribe.models.weights import load_state, read_metadata, restore, save

# The entry that `portable.py` uses too: one entry only, so that equal networks are equal files.
_HEADER = "network"
_KIND = "denoiser"


def to_signed(images: Tensor) -> Tensor:
    """Pixels uint8 -> float32 in [-1, 1], by constants (dp-promise, Remark 1)."""
    return images.float() / 127.5 - 1


def to_pixels(images: Tensor) -> Tensor:
    """Floats in [-1, 1] -> the nearest uint8 pixels; values outside are clamped."""
    return ((images.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)


def save_denoiser(denoiser: Denoiser, schedule: Schedule, path: Path) -> None:
    """Write weights, and in the file's header what `load_denoiser` needs.

    Raises:
        StorageError: a full disk or a read-only folder.
    """
    facts = {
        "kind": _KIND,
        "unet": denoiser.size_name.value,
        "channels": denoiser.channels,
        "size": denoiser.size,
        "classes": denoiser.classes,
        "schedule": asdict(schedule),
    }
    save(denoiser, path, {_HEADER: json.dumps(facts, sort_keys=True)})


def load_denoiser(path: Path) -> tuple[Denoiser, Schedule]:
    """The network in a file of `save_denoiser`, on the CPU, in evaluation mode; its schedule.

    Raises:
        WeightsNotFoundError: no such file.
        CorruptWeightsError: truncated, not written by `save_denoiser`, or with NaN.
        ConfigError: diffusers is not installed.
    """
    try:
        facts = json.loads(read_metadata(path).get(_HEADER, ""))
        if facts["kind"] != _KIND:
            raise ValueError(facts["kind"])
        shape = int(facts["channels"]), int(facts["size"]), int(facts["classes"])
        name, schedule = str(facts["unet"]), Schedule(**facts["schedule"])
    except (KeyError, TypeError, ValueError, ConfigError):
        raise CorruptWeightsError(
            f"{str(path)!r} does not say which diffusion model it holds; it was not written by a "
            "finished run of this version."
        ) from None
    denoiser = make_unet(name, *shape)
    restore(denoiser, load_state(path), path)
    return denoiser.eval(), schedule
