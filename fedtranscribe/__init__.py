"""Privacy-preserving model transcription (DPSD) with an ε that an auditor would sign.

import fedtranscribe as ft

run = ft.transcribe(images, labels, classes=10, data_id="digits-2024", epsilon=5)
run.predict(images)
run.release()
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtranscribe.errors import FedtranscribeError

if TYPE_CHECKING:
    from fedtranscribe.api import simulate, synthesize, transcribe
    from fedtranscribe.releases import Release
    from fedtranscribe.run import Run, evaluate, release

__version__ = "0.2.0"

__all__ = [
    "FedtranscribeError",
    "Release",
    "Run",
    "__version__",
    "evaluate",
    "load",
    "release",
    "simulate",
    "synthesize",
    "transcribe",
]


def load(folder: str | Path, verify: bool = True) -> "Release":
    """Open a release made by `fedtranscribe release`, ready to predict and to draw samples.

    Args:
        folder: the release.
        verify: compare every listed file with its digest first.

    Raises:
        StorageError: there is no release in the folder, or a file of it is absent.
        PrivacyError: a file is not the one that was released, or `privacy.json` is damaged.
        ModelError: a network's file is damaged.
    """
    # torch takes seconds to import; who only wants the version, or --help, should not wait.
    from fedtranscribe.releases.loading import load as open_release

    return open_release(Path(folder), verify=verify)


def __getattr__(name: str) -> Any:
    """The rest of the public names, which import torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "Release":
        from fedtranscribe.releases import Release

        return Release
    from fedtranscribe import api, run

    return getattr(run if name in ("Run", "evaluate", "release") else api, name)


def __dir__() -> list[str]:
    """The public names."""
    return [*__all__]
