"""What a holder can be asked for, a file per kind: see `Statistic`."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedtranscribe.data import ImageSet
from fedtranscribe.models.backbones import NO_BACKBONES, Backbones
from fedtranscribe.models.teachers import Teachers
from fedtranscribe.questions.descent import Descent, DescentQuery
from fedtranscribe.questions.gradients import MeanGradients
from fedtranscribe.questions.labels import Labels
from fedtranscribe.questions.mixture import Mixture, MixtureQuery
from fedtranscribe.questions.moments import Moments, MomentsQuery
from fedtranscribe.questions.question import Kind, Query, Scalar
from fedtranscribe.questions.records import SCRATCH_GIB
from fedtranscribe.questions.rows import ImageQuery
from fedtranscribe.questions.statistic import Statistic
from fedtranscribe.questions.votes import MeanVotes
from fedtranscribe.results.progress import Progress, silent

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


QUERIES: Mapping[Kind, type[Query]] = {
    Kind.GRADIENT: ImageQuery,
    Kind.LABEL: ImageQuery,
    Kind.VOTE: ImageQuery,
    Kind.MOMENTS: MomentsQuery,
    Kind.MIXTURE: MixtureQuery,
    Kind.DESCENT: DescentQuery,
}
"""The form that queries of each kind have."""


def query_from(
    kind: str, query_id: str, arrays: Mapping[str, Tensor], terms: Mapping[str, Scalar]
) -> Query:
    """A query out of what `Query.to_dict` holds, or a message.

    Raises:
        ConfigError, TypeError, ValueError: it cannot be read.
    """
    known = Kind(kind)
    return QUERIES[known](id=query_id, kind=known, **arrays, **terms)
