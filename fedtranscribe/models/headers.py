"""What a network's file says of itself, read strictly and held against the tensors in the file.

A header is a few hundred bytes that decide how much memory is taken. So every number in it has a
type and a range, and no layer is made before its shape is known to be that of a tensor in the
file: what a file can claim costs no more than what it holds.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from torch import nn

from fedtranscribe.errors import ConfigError, CorruptWeightsError
from fedtranscribe.models.sampling import Sampling, Spacing
from fedtranscribe.models.schedule import Schedule
from fedtranscribe.models.unet import UNetSize
from fedtranscribe.models.weights import State, expect_shapes, read_metadata

# One entry only: safetensors writes several in no fixed order, and equal networks should be equal
# files.
ENTRY = "network"

MOST_CLASSES, MOST_CHANNELS, MOST_SIDE = 100_000, 4_096, 4_096
"""Beyond these no file and no manifest describes images that anybody has."""

_Classes = Annotated[int, Field(ge=2, le=MOST_CLASSES)]
_Channels = Annotated[int, Field(ge=1, le=MOST_CHANNELS)]
_Side = Annotated[int, Field(ge=8, le=MOST_SIDE)]
_Width = Annotated[int, Field(ge=1, le=1_000_000)]


class Header(BaseModel):
    """Strict: every number has a type and a range."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


class ClassifierHeader(Header):
    """Of `student.safetensors`."""

    kind: Literal["classifier"]
    architecture: Annotated[str, Field(max_length=200)]
    classes: _Classes
    channels: _Channels
    size: _Side


class GeneratorHeader(Header):
    """Of `generator.safetensors`."""

    kind: Literal["generator"]
    latent_dim: _Width
    width: _Width
    channels: _Channels
    size: _Side


class _Schedule(Header):
    steps: int
    first: float
    last: float


class _Sampling(Header):
    steps: int
    eta: float
    guidance: float
    spacing: Spacing
    clip: bool


class DenoiserHeader(Header):
    """Of `denoiser.safetensors`."""

    kind: Literal["denoiser"]
    unet: UNetSize
    channels: _Channels
    size: _Side
    classes: Annotated[int, Field(ge=0, le=MOST_CLASSES)]
    conditional: bool
    schedule: _Schedule
    sampling: _Sampling

    def diffusion(self) -> tuple[Schedule, Sampling]:
        """How the network was trained and how it is drawn from.

        Raises:
            ConfigError: out of range, or more steps are visited than there are.
        """
        schedule = Schedule(**self.schedule.model_dump())
        sampling = Sampling(**self.sampling.model_dump())
        sampling.expect_within(schedule)
        return schedule, sampling


H = TypeVar("H")


def read_header(path: Path, kind: TypeAdapter[H]) -> H:
    """The header of a file.

    Raises:
        WeightsNotFoundError: no such file.
        CorruptWeightsError: truncated, or its header is absent or not of this kind.
    """
    try:
        return kind.validate_json(read_metadata(path).get(ENTRY, ""))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "header"
        raise unusable(path, f"{where}: {first['msg']}") from None


def unusable(path: Path, why: str) -> CorruptWeightsError:
    """The one-line error for a header that no finished run of this version writes."""
    return CorruptWeightsError(
        f"{str(path)!r} does not say which network it holds ({why.rstrip('.')}); it was not "
        "written by a finished run of this version."
    )


def expect_fit(make: Callable[[], nn.Module], state: State, path: Path) -> None:
    """Hold the layers that a network would have against the tensors of a file.

    Args:
        make: builds the network; called without memory being taken for its weights.
        state: of the file.
        path: of the file, for the message.

    Raises:
        CorruptWeightsError: other layers, or nothing can be built so.
        ModelMismatchError: the same layers in other shapes.
    """
    try:
        with torch.device("meta"):
            planned = make()
    except ConfigError as error:
        raise unusable(path, str(error)) from None
    expect_shapes(planned.state_dict(), state, path)
