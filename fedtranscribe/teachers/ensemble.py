"""Asking an ensemble of teachers, one shard in memory at a time."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from fedtranscribe.errors import CorruptWeightsError, ModelMismatchError, StorageError
from fedtranscribe.models import build, load_state, restore
from fedtranscribe.teachers.frozen import FrozenBackbone
from fedtranscribe.teachers.manifest import Manifest, load_manifest
from fedtranscribe.teachers.training import load_backbone, shard_file

# On CPU, small batches stay in cache: 4 times faster than 1,000 for the small networks.
_BATCH = 250


class Teachers:
    """The holder's teachers, opened from a folder made by `train_teachers`.

    Args:
        folder: teacher folder.
        device: where to run them.

    Raises:
        StorageError, ModelError: no manifest, a shard file that is truncated or holds NaN.
    """

    def __init__(self, folder: Path, device: torch.device) -> None:
        self.folder = folder
        self.device = device
        self.manifest: Manifest = load_manifest(folder)
        if not self.manifest.complete:
            raise StorageError(
                f"Training of the teachers in {folder} was interrupted; run it again to finish."
            )
        m = self.manifest
        self._network: nn.Module
        self._backbone: FrozenBackbone | None = None
        if m.mode == "heads":
            self._backbone = load_backbone(m, folder).to(device)
            self._network = nn.Linear(self._backbone.width, m.classes)
        else:
            self._network = build(m.architecture, m.classes, m.channels, m.size)
            self._network.to(device).eval()

    @property
    def shards(self) -> int:
        """How many disjoint shards there are, empty ones included."""
        return self.manifest.shards

    def check(self, classes: int, channels: int, size: int) -> None:
        """Refuse data of another shape, before anything is spent.

        Raises:
            ModelMismatchError: names both shapes.
        """
        have = (self.manifest.classes, self.manifest.channels, self.manifest.size)
        if have != (classes, channels, size):
            raise ModelMismatchError(
                f"The teachers in {self.folder} expect {have[0]} classes of {have[1]}x{have[2]}x"
                f"{have[2]} images, the data have {classes} classes of {channels}x{size}x{size}; "
                "use the data they were trained on, or train teachers on these."
            )

    def logits(self, images: Tensor) -> Iterator[Tensor]:
        """Every shard's logits on uint8 images [n, ch, s, s]: float32 [1, n, classes] each.

        An empty shard's logits are NaN, which every mechanism answers as a zero row.
        """
        features = self._features(images)
        for shard in range(self.shards):
            path = shard_file(self.folder, shard)
            if not path.exists():
                yield torch.full((1, len(images), self.manifest.classes), torch.nan)
                continue
            restore(self._network, load_state(path), path)
            if features is None:
                yield self._run(self._network, images)[None]
            else:
                with torch.no_grad():
                    yield self._network(features)[None]

    def verify(self) -> None:
        """Load every shard once.

        Raises:
            CorruptWeightsError: a file is truncated, foreign, or holds NaN.
        """
        blank = torch.zeros(1, self.manifest.channels, self.manifest.size, self.manifest.size)
        for shard, logits in enumerate(self.logits(blank.to(torch.uint8))):
            present = shard_file(self.folder, shard).exists()
            if present and not bool(torch.isfinite(logits).all()):
                raise CorruptWeightsError(
                    f"{shard_file(self.folder, shard)} gives non-finite outputs; "
                    "train that shard again."
                )

    def _features(self, images: Tensor) -> Tensor | None:
        return None if self._backbone is None else self._run(self._backbone, images)

    def _run(self, network: nn.Module, images: Tensor) -> Tensor:
        with torch.no_grad():
            parts = [
                network(part.to(self.device).float() / 255).cpu() for part in images.split(_BATCH)
            ]
        return torch.cat(parts)
