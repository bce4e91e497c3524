"""Networks on disk: safetensors that say how to build them again, read strictly."""

import io
import pickle
import zipfile
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Annotated, TypeVar

import safetensors.torch
import torch
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from fedtranscribe.config.facts import MOST_CHANNELS, MOST_SIDE
from fedtranscribe.config.run import MOST_CLASSES
from fedtranscribe.errors import (
    ConfigError,
    CorruptWeightsError,
    ModelMismatchError,
    WeightsNotFoundError,
)
from fedtranscribe.files import write_atomically

State = dict[str, Tensor]


def save(module: nn.Module, path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write the module's state as safetensors; the file appears whole or not at all."""
    state = {k: v.detach().cpu().contiguous().clone() for k, v in module.state_dict().items()}
    write_atomically(path, safetensors.torch.save(state, dict(metadata or {})))


def load_state(path: Path, digest: str | None = None) -> State:
    """Read a state dictionary, on the CPU, and check that it is finite.

    `.safetensors` is read as such; anything else as torch's own format with `weights_only`,
    so that no pickled code runs.

    Args:
        path: of the file.
        digest: SHA-256 in hexadecimal that the very bytes must have which are read.
    """
    if not path.is_file():
        raise WeightsNotFoundError(f"No weights file {str(path)!r}; check the path.")
    content = path.read_bytes() if digest is not None else None
    if content is not None and (found := sha256(content).hexdigest()) != digest:
        raise ModelMismatchError(
            f"Expected weights with SHA-256 {digest}, {str(path)!r} has {found}; give the file "
            "that the run began with."
        )
    read = _read_safetensors if path.suffix == ".safetensors" else _read_torch
    state = read(path, content)
    for name, tensor in state.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise _not_finite(name, path)
    return state


def read_metadata(path: Path) -> dict[str, str]:
    """The strings that `save` was given; raises like `load_state`."""
    if not path.is_file():
        raise WeightsNotFoundError(f"No weights file {str(path)!r}; check the path.")
    try:
        with safe_open(path, framework="pt") as file:
            return dict(file.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise _corrupt(path, error) from error


def restore(module: nn.Module, state: State, path: Path) -> None:
    """Put a state into a module that it fits exactly."""
    expected = module.state_dict()
    expect_shapes(expected, state, path)
    for name, tensor in expected.items():
        stored = state[name]
        # A number that is finite in the file may be none in the network's precision.
        if tensor.is_floating_point() and not bool(torch.isfinite(stored.to(tensor.dtype)).all()):
            raise _not_finite(name, path)
    module.load_state_dict(state)


def expect_shapes(expected: Mapping[str, Tensor], state: State, path: Path) -> None:
    """Refuse a state that does not fit, before a tensor is copied."""
    absent, strange = sorted(expected.keys() - state.keys()), sorted(state.keys() - expected.keys())
    for words, names in (("lacks", absent), ("has an unknown", strange)):
        if names:
            raise CorruptWeightsError(
                f"{str(path)!r} holds another network: it {words} {names[0]!r} "
                f"({len(names)} such entries); give the weights of this architecture."
            )
    for name, tensor in expected.items():
        if tensor.shape != state[name].shape:
            raise ModelMismatchError(
                f"Expected {name!r} in {str(path)!r} as {tuple(tensor.shape)}, got "
                f"{tuple(state[name].shape)}: made for other images or another architecture."
            )
        if tensor.is_floating_point() != state[name].is_floating_point():
            raise CorruptWeightsError(
                f"Expected {name!r} in {str(path)!r} as {tensor.dtype}, got {state[name].dtype}; "
                "give the weights of this architecture."
            )


def _read_safetensors(path: Path, content: bytes | None) -> State:
    try:
        if content is not None:
            return safetensors.torch.load(content)
        return safetensors.torch.load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise _corrupt(path, error) from error


def _read_torch(path: Path, raw: bytes | None) -> State:
    try:
        source = path if raw is None else io.BytesIO(raw)
        content = torch.load(source, map_location="cpu", weights_only=True)
    except (
        pickle.UnpicklingError,
        zipfile.BadZipFile,
        RuntimeError,
        ValueError,
        KeyError,
        EOFError,
        OSError,
    ) as error:
        raise _corrupt(path, error) from error
    if isinstance(content, Mapping) and isinstance(content.get("state_dict"), Mapping):
        content = content["state_dict"]
    if not isinstance(content, Mapping) or not all(isinstance(v, Tensor) for v in content.values()):
        raise CorruptWeightsError(
            f"Expected a dictionary of tensors in {str(path)!r}; save the state_dict alone."
        )
    for name, tensor in content.items():
        # A view may claim any shape of a few numbers: no more than is stored may be unfolded.
        if tensor.layout is not torch.strided or _claimed(tensor) > _stored(tensor):
            raise CorruptWeightsError(
                f"Expected {str(name)!r} in {str(path)!r} to be stored in full; save plain tensors."
            )
    return {str(k): v for k, v in content.items()}


def _claimed(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _stored(tensor: Tensor) -> int:
    return 0 if tensor.is_meta else tensor.untyped_storage().nbytes()


def _not_finite(name: str, path: Path) -> CorruptWeightsError:
    return CorruptWeightsError(
        f"Weights {name!r} in {str(path)!r} hold NaN or infinity; train or fetch again."
    )


def _corrupt(path: Path, error: Exception) -> CorruptWeightsError:
    return CorruptWeightsError(
        f"Cannot read weights from {str(path)!r} ({type(error).__name__}): truncated or of "
        f"another kind; train or fetch them again."
    )


# One entry only: safetensors writes several in no fixed order, and equal networks should be equal
# files.
ENTRY = "network"


_Classes = Annotated[int, Field(ge=2, le=MOST_CLASSES)]
_Channels = Annotated[int, Field(ge=1, le=MOST_CHANNELS)]
_Side = Annotated[int, Field(ge=8, le=MOST_SIDE)]
_Width = Annotated[int, Field(ge=1, le=1_000_000)]


class Header(BaseModel):
    """Strict: every number has a type and a range."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


H = TypeVar("H")


def read_header(path: Path, kind: TypeAdapter[H]) -> H:
    """The header of a file."""
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
    """Hold the layers that a network would have against the tensors of a file."""
    try:
        with torch.device("meta"):
            planned = make()
    except ConfigError as error:
        raise unusable(path, str(error)) from None
    expect_shapes(planned.state_dict(), state, path)
