"""Where weights of public networks come from: a file, torchvision, or the Hugging Face hub."""

import importlib.util
import re
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlparse

from fedtranscribe.errors import ConfigError, WeightsNotFoundError
from fedtranscribe.models.timm_zoo import TIMM

IMAGENET = "imagenet"
_HUB = "hub:"
_ON_HUB = re.compile(r"hub:([\w.-]+/[\w.-]+)/([^@]+?)(?:@([\w./-]+))?")


def find_weights(given: str, network: str) -> Path:
    """The file that somebody means, fetched where it is not here yet.

    Args:
        given: a path; "imagenet" for torchvision's weights; or hub:OWNER/NAME/FILE, with @REVISION
            for a branch, tag or commit.
        network: that the weights are for.

    Raises:
        WeightsNotFoundError: it is neither here nor to be fetched.
        ConfigError: no such form, or the library that fetches it is not installed.
    """
    if given == IMAGENET:
        return _from_torchvision(network)
    if given.startswith(_HUB):
        return _from_hub(given)
    try:
        path = Path(given).expanduser().absolute()
        if path.is_file():
            return path
    except (OSError, RuntimeError, ValueError):
        pass  # too long, or the home of nobody
    raise WeightsNotFoundError(f"No weights file {given[:200]!r}; check the path.")


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


def _from_hub(given: str) -> Path:
    found = _ON_HUB.fullmatch(given)
    if found is None:
        raise ConfigError(f"Expected weights as hub:OWNER/NAME/FILE[@REVISION], got {given!r}.")
    if importlib.util.find_spec("huggingface_hub") is None:
        raise ConfigError(f"{given} needs huggingface-hub: pip install 'fedtranscribe[hub]'.")
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    repository, file, revision = found.groups()
    try:
        return Path(hf_hub_download(repository, file, revision=revision))
    # Names out of order are ValueErrors, too.
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        raise WeightsNotFoundError(
            f"{given} is not on this machine and could not be downloaded "
            f"({type(error).__name__}); check the name, connect to a network, or name a file."
        ) from error
