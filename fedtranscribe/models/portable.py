"""Networks on disk that say themselves how to build them again."""

from pathlib import Path

from fedtranscribe.errors import CorruptWeightsError
from fedtranscribe.models.classifier import Classifier
from fedtranscribe.models.generator import Generator
from fedtranscribe.models.registry import build
from fedtranscribe.models.weights import load_state, read_metadata, restore, save

_NETWORK = "network"


def save_network(network: Classifier | Generator, path: Path) -> None:
    """Write weights, and in the file's header what `load_network` needs to build the network.

    Raises:
        StorageError: a full disk or a read-only folder.
    """
    save(network, path, _describe(network))


def load_network(path: Path) -> Classifier | Generator:
    """The network in a file of `save_network`, on the CPU, in evaluation mode.

    Raises:
        WeightsNotFoundError: no such file.
        CorruptWeightsError: truncated, not written by `save_network`, or with NaN.
        UnknownArchitectureError: a torchvision architecture, and torchvision is not installed.
    """
    header = read_metadata(path)
    try:
        network = _build(header)
    except (KeyError, ValueError):
        raise CorruptWeightsError(
            f"{str(path)!r} does not say which network it holds; it was not written by a "
            "finished run of this version."
        ) from None
    restore(network, load_state(path), path)
    return network.eval()


def _describe(network: Classifier | Generator) -> dict[str, str]:
    facts: dict[str, str | int] = {"channels": network.channels, "size": network.size}
    if isinstance(network, Generator):
        facts |= {
            _NETWORK: "generator",
            "latent_dim": network.latent_dim,
            "width": network.width,
        }
    else:
        facts |= {
            _NETWORK: "classifier",
            "architecture": network.architecture,
            "classes": network.classes,
        }
    return {name: str(value) for name, value in facts.items()}


def _build(header: dict[str, str]) -> Classifier | Generator:
    channels, size = int(header["channels"]), int(header["size"])
    if header[_NETWORK] == "generator":
        return Generator(int(header["latent_dim"]), channels, size, int(header["width"]))
    if header[_NETWORK] == "classifier":
        return build(header["architecture"], int(header["classes"]), channels, size)
    raise ValueError(header[_NETWORK])
