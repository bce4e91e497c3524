"""What a holder can be asked for, a file per kind: see `Statistic`."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from fedtranscribe.data import ImageSet
from fedtranscribe.models.backbones import NO_BACKBONES, Backbones
from fedtranscribe.query import Kind
from fedtranscribe.statistics.descent import Descent
from fedtranscribe.statistics.gradients import MeanGradients
from fedtranscribe.statistics.labels import Labels
from fedtranscribe.statistics.mixture import Mixture
from fedtranscribe.statistics.moments import Moments
from fedtranscribe.statistics.record_rows import SCRATCH_GIB
from fedtranscribe.statistics.statistic import Statistic
from fedtranscribe.statistics.votes import MeanVotes
from fedtranscribe.teachers import Teachers
from fedtranscribe.tracking import Progress, silent

__all__ = [
    "Descent",
    "Labels",
    "MeanGradients",
    "MeanVotes",
    "Mixture",
    "Moments",
    "Statistic",
    "by_kind",
    "of_records",
    "of_teachers",
]


def of_teachers(teachers: Teachers) -> Mapping[Kind, Statistic[Any]]:
    """Everything that can be asked of an ensemble."""
    return by_kind([MeanVotes(teachers), MeanGradients(teachers), Labels(teachers)])


def of_records(
    images: ImageSet,
    device: torch.device,
    scratch: Path,
    moments: Moments | None = None,
    *,
    backbones: Backbones = NO_BACKBONES,
    scratch_gib: float = SCRATCH_GIB,
    progress: Progress = silent,
) -> Mapping[Kind, Statistic[Any]]:
    """Everything that can be summed over records.

    Args:
        images: the records.
        device: where to compute features.
        scratch: see `RecordRows`.
        moments: of these records, whose features are there already.
        backbones: see `RecordRows`.
        scratch_gib: see `RecordRows`.
        progress: see `RecordSums`.
    """
    moments = moments or Moments(
        images, device, scratch, backbones, scratch_gib=scratch_gib, progress=progress
    )
    return by_kind([moments, Descent(moments.rows), Mixture(images, moments.rows.sums)])


def by_kind(statistics: Iterable[Statistic[Any]]) -> Mapping[Kind, Statistic[Any]]:
    """Statistics by what they answer."""
    return {statistic.kind: statistic for statistic in statistics}
