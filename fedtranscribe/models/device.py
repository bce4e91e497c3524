"""Where networks run."""

import torch

from fedtranscribe.errors import ConfigError


def pick_device(name: str) -> torch.device:
    """Turn `auto`, `cpu`, `cuda`, `cuda:1`, `mps` into a device that works.

    Raises:
        ConfigError: unknown, or not on this machine.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError):
        raise ConfigError(
            f"--device {name} is not available on this machine; use --device cpu or auto."
        ) from None
    return device
