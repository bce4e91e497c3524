"""Public networks whose features stand in for our own fixed ones, and their weights."""

import hashlib
import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlparse

import torch
from torch import Tensor, nn

from fedtranscribe.config.catalogue import torchvision_networks, unknown_network
from fedtranscribe.errors import ConfigError, WeightsNotFoundError
from fedtranscribe.models.classifier import parts
from fedtranscribe.models.weights import State, load_state, restore
from fedtranscribe.models.zoo import (
    AUXILIARY,
    TIMM,
    build_timm,
    build_zoo,
    expect_timm,
    timm_side,
    usual_side,
)

SMALLEST_SIDE, LARGEST_SIDE = 8, 512
"""Pixels a side that a network may be given; a holder's time grows with its square."""

# One spelling only: another one would be another question about the same features.
_NAME = re.compile(r"((?:timm/)?[A-Za-z0-9_.-]{1,80})/([1-9][0-9]{0,3})@([0-9a-f]{64})")
# Images whose maps fit into memory with large networks, too.
_TOGETHER = 32


@dataclass(frozen=True)
class Backbone:
    """Which features: part of a question's digest, of a ledger's line and of a student's file."""

    network: str  # torchvision's name, or timm's after `TIMM`
    side: int  # pixels; images of other sizes are brought to it
    digest: str  # SHA-256 of the weights' file, in hexadecimal

    @classmethod
    def parse(cls, name: str | None) -> "Backbone | None":
        """The backbone that a name stands for; None for any other name."""
        found = _NAME.fullmatch(name or "")
        if found is None:
            return None
        backbone = cls(found[1], int(found[2]), found[3])
        expect_side(backbone.side)
        return backbone

    @property
    def name(self) -> str:
        """`parse` is the inverse."""
        return f"{self.network}/{self.side}@{self.digest}"

    @property
    def pinned_name(self) -> str:
        """Network and digest, as holders state which they allow."""
        return f"{self.network}@{self.digest}"

    @property
    def words(self) -> str:
        """For people: enough of the digest to tell two files apart."""
        return f"features of {self.network} at {self.side} pixels (weights {self.digest[:12]}…)"


def expect_side(side: int) -> None:
    """Refuse images too small or too large for a network."""
    if not SMALLEST_SIDE <= side <= LARGEST_SIDE:
        raise ConfigError(
            f"Expected features-side={side} within {SMALLEST_SIDE}..{LARGEST_SIDE} pixels."
        )


def backbone_of(network: str, weights: Path, size: int, side: int | None = None) -> Backbone:
    """The backbone that a network and a file make."""
    expect_backbone(network)
    timm = network.startswith(TIMM)
    if side is None:
        side = timm_side(network.removeprefix(TIMM)) if timm else usual_side(network, size)
    expect_side(side)
    return Backbone(network, side, file_digest(weights))


def expect_backbone(network: str) -> None:
    """Refuse a name that neither library has."""
    if network.startswith(TIMM):
        expect_timm(network.removeprefix(TIMM))
    elif network not in torchvision_networks():
        raise unknown_network(network)


def file_digest(path: Path) -> str:
    """SHA-256 of a file of weights, in hexadecimal."""
    if not path.is_file():
        raise WeightsNotFoundError(f"No weights file {str(path)!r}; check the path.")
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


class FrozenBackbone(nn.Module):
    """Images [n, ch, s, s] in [0, 1] -> [n, d]: what the network's last layer would see.

    Its weights are part of the student's, so that a released student needs no other file. They are
    never trained, and statistics of batches are never taken. But a library's kernels may round an
    image by its place in a batch, so sums over records pass one image at a time.
    """

    def __init__(self, backbone: Backbone, channels: int) -> None:
        super().__init__()
        # Both libraries make more than classifiers, and fetch weights for some of it.
        expect_backbone(backbone.network)
        if channels not in (1, 3):
            raise ConfigError(
                f"Expected images of 1 or 3 channels for {backbone.network}, got {channels}."
            )
        self.backbone = backbone
        if backbone.network.startswith(TIMM):
            network = backbone.network.removeprefix(TIMM)
            self.adapter, self.layers, self._last = build_timm(network, channels, backbone.side)
        else:
            whole = build_zoo(backbone.network, 2, channels, backbone.side, side=backbone.side)
            self.adapter, self.layers = whole.adapter, whole.backbone
            self._last = (f"{whole.original_head}.", *AUXILIARY)
        self.requires_grad_(False)
        self.eval()

    def train(self, mode: bool = True) -> "FrozenBackbone":
        """Stay in evaluation mode, whatever the classifier around it does."""
        return super().train(False)

    def forward(self, images: Tensor) -> Tensor:
        """float [n, ch, s, s] -> float [n, d]."""
        return torch.cat([self.layers(self.adapter(part)) for part in parts(images, _TOGETHER)])

    def load(self, path: Path) -> None:
        """Take the weights of a file, which must be the one that the features are called by."""
        state = load_state(path, self.backbone.digest)
        restore(self.layers, self._own_layout(state), path)

    def _own_layout(self, state: State) -> State:
        """What belongs to the layers below the last, by the names that they have here."""
        ours, last = "backbone.", ("head.", "adapter.")
        if not any(key.startswith(ours) for key in state):
            ours, last = "", self._last
        return {k.removeprefix(ours): t for k, t in state.items() if not k.startswith(last)}


@dataclass(frozen=True)
class Backbones:
    """The public networks that a holder allows, or that a run was given."""

    files: Mapping[str, Path] = field(default_factory=dict)  # of weights, by network
    digests: Mapping[str, str] = field(default_factory=dict)  # of the files, by network

    @classmethod
    def of(cls, files: Mapping[str, Path]) -> "Backbones":
        """Read the files once, to know them by their digests."""
        for network in files:
            expect_backbone(network)
        return cls(files, {network: file_digest(path) for network, path in files.items()})

    @property
    def names(self) -> tuple[str, ...]:
        """Network and digest of each, as holders state them."""
        return tuple(f"{network}@{digest}" for network, digest in sorted(self.digests.items()))

    def allows(self, backbone: Backbone) -> bool:
        """Whether the backbone is one of these, weights and all."""
        return self.digests.get(backbone.network) == backbone.digest

    def load(self, frozen: FrozenBackbone) -> None:
        """Give a backbone its weights; raises like `FrozenBackbone.load`."""
        frozen.load(self.files[frozen.backbone.network])


NO_BACKBONES = Backbones()


IMAGENET = "imagenet"
_HUB = "hub:"
_ON_HUB = re.compile(r"hub:([\w.-]+/[\w.-]+)/([^@]+?)(?:@([\w./-]+))?")


def find_weights(place: str, network: str) -> Path:
    """The file that somebody means, fetched where it is not here yet."""
    if place == IMAGENET:
        return _from_torchvision(network)
    if place.startswith(_HUB):
        return _from_hub(place)
    try:
        path = Path(place).expanduser().absolute()
        if path.is_file():
            return path
    except (OSError, RuntimeError, ValueError):
        pass  # too long, or the home of nobody
    raise WeightsNotFoundError(f"No weights file {place[:200]!r}; check the path.")


def _from_torchvision(network: str) -> Path:
    if network.startswith(TIMM):
        raise ConfigError(
            f"Expected a file or hub:OWNER/NAME/FILE as weights of {network}, got {IMAGENET!r}: "
            "that is for torchvision's networks."
        )
    import torch
    from torchvision import models

    url = models.get_model_weights(network)["DEFAULT"].url
    path = Path(torch.hub.get_dir()) / "checkpoints" / Path(urlparse(url).path).name
    if not path.is_file():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.hub.download_url_to_file(url, str(path), progress=False)
        except (OSError, URLError, RuntimeError) as error:
            raise WeightsNotFoundError(
                f"No ImageNet weights for {network!r} in {path} and none could be downloaded "
                f"({type(error).__name__}); connect to a network, or name a file."
            ) from error
    return path


def _from_hub(place: str) -> Path:
    found = _ON_HUB.fullmatch(place)
    if found is None:
        raise ConfigError(f"Expected weights as hub:OWNER/NAME/FILE[@REVISION], got {place!r}.")
    if importlib.util.find_spec("huggingface_hub") is None:
        raise ConfigError(f"{place} needs huggingface-hub: pip install 'fedtranscribe[hub]'.")
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    repository, file, revision = found.groups()
    try:
        return Path(hf_hub_download(repository, file, revision=revision))
    # Names out of order are ValueErrors, too.
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        raise WeightsNotFoundError(
            f"{place} is not on this machine and could not be downloaded "
            f"({type(error).__name__}); check the name, connect to a network, or name a file."
        ) from error
