"""Privacy-preserving model transcription (DPSD) with an ε that an auditor would sign."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedtranscribe.releases import Release

__version__ = "0.2.0"


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
