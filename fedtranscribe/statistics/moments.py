"""Moments: sums over all records of their features and of products of these."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from fedtranscribe.data import ImageSet
from fedtranscribe.errors import ConfigError, ModelMismatchError
from fedtranscribe.mechanisms import Mechanism, gaussian_mechanism, moment_sums, moments_bound
from fedtranscribe.models.backbones import NO_BACKBONES, Backbones
from fedtranscribe.privacy.noise_plan import NoisePlan
from fedtranscribe.query import MOST_FEATURES, Kind, MomentsQuery, Scalar
from fedtranscribe.statistics.record_rows import SCRATCH_GIB, RecordRows
from fedtranscribe.statistics.record_sums import RecordSums
from fedtranscribe.tracking import Progress, silent


class Moments:
    """Second moments of the records' features and, if asked, their sums by class.

    Args:
        images: the holder's private records.
        device, scratch, backbones, scratch_gib: of `RecordRows`.
        progress: of `RecordSums`.

    Attributes:
        rows: of the records, which other sums may share.

    Guarantee:
        The bound is that of `moments_bound`; rows are those of `RecordRows`.
    """

    kind = Kind.MOMENTS

    def __init__(
        self,
        images: ImageSet,
        device: torch.device,
        scratch: Path | None = None,
        backbones: Backbones = NO_BACKBONES,
        *,
        scratch_gib: float = SCRATCH_GIB,
        progress: Progress = silent,
    ) -> None:
        self._images = images
        sums = RecordSums(images, scratch, progress)
        self.rows = RecordRows(sums, device, scratch, backbones, scratch_gib)

    def expect(self, shapes: Mapping[str, tuple[int, ...]], terms: Mapping[str, Scalar]) -> int:
        """See `Statistic`."""
        raw = self.rows.numbers(terms.get("features"))
        _, k = shapes["map"]
        if shapes != {"centre": (raw,), "map": (raw, k)} or not 1 <= k < MOST_FEATURES:
            raise ConfigError(f"Expected a centre [{raw}] and a map [{raw}, k], got {shapes}.")
        if terms.get("classes") not in (0, self._images.classes):
            raise ConfigError(f"Expected sums by {self._images.classes} classes.")
        return 1

    def check(self, query: MomentsQuery) -> None:
        """See `Statistic`."""
        self.rows.check(query)
        if query.classes not in (0, self._images.classes):
            raise ModelMismatchError(
                f"Expected sums by {self._images.classes} classes, got {query.classes}."
            )

    def mechanism(self, query: MomentsQuery, plan: NoisePlan) -> Mechanism:
        """See `Statistic`."""
        return gaussian_mechanism(moments_bound(query.entries, query.classes or None), plan)

    def values(self, query: MomentsQuery) -> Tensor:
        """See `Statistic`."""

        def part(records: range) -> Tensor:
            rows = self.rows.blocks(query, records)
            return moment_sums(rows, query.entries, query.classes or None)

        return self.rows.sums.total(query, part)[None]
