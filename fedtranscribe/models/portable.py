"""Networks on disk that say themselves how to build them again."""

import json
from pathlib import Path
from typing import Any

from fedtranscribe.errors import CorruptWeightsError
from fedtranscribe.models.classifier import Classifier
from fedtranscribe.models.generator import Generator
from fedtranscribe.models.registry import build
from fedtranscribe.models.weights import load_state, read_metadata, restore, save

# One entry only: safetensors writes several in no fixed order, and equal networks should be equal
# files.
_HEADER = "network"


def save_network(network: Classifier | Generator, path: Path) -> None:
    """Write weights, and in the file's header what `load_network` needs to build the network.

    Raises:
        StorageError: a full disk or a read-only folder.
    """
    save(network, path, {_HEADER: json.dumps(_describe(network), sort_keys=True)})


def load_network(path: Path) -> Classifier | Generator:
    """The network in a file of `save_network`, on the CPU, in evaluation mode.

    Raises:
        WeightsNotFoundError: no such file.
        CorruptWeightsError: truncated, not written by `save_network`, or with NaN.
        UnknownArchitectureError: a torchvision architecture, and torchvision is not installed.
    """
    header = read_metadata(path).get(_HEADER, "")
    try:
        network = _build(json.loads(header))
    except (KeyError, TypeError, ValueError):
        raise CorruptWeightsError(
            f"{str(path)!r} does not say which network it holds; it was not written by a "
            "finished run of this version."
        ) from None
    restore(network, load_state(path), path)
    return network.eval()


def _describe(network: Classifier | Generator) -> dict[str, str | int]:
    facts: dict[str, str | int] = {"channels": network.channels, "size": network.size}
    if isinstance(network, Generator):
        facts |= {"kind": "generator", "latent_dim": network.latent_dim, "width": network.width}
    else:
        facts |= {
            "kind": "classifier",
            "architecture": network.architecture,
            "classes": network.classes,
        }
    return facts


def _build(facts: dict[str, Any]) -> Classifier | Generator:
    channels, size = int(facts["channels"]), int(facts["size"])
    if facts["kind"] == "generator":
        return Generator(int(facts["latent_dim"]), channels, size, int(facts["width"]))
    if facts["kind"] == "classifier":
        return build(str(facts["architecture"]), int(facts["classes"]), channels, size)
    raise ValueError(facts["kind"])
