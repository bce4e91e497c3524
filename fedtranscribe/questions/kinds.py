"""What a holder can be asked for, a file per kind: see `Statistic`."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedtranscribe.config.facts import Facts
from fedtranscribe.data import ImageSet
from fedtranscribe.errors import ConfigError
from fedtranscribe.models.backbones import NO_BACKBONES, Backbones
from fedtranscribe.models.teachers import Teachers
from fedtranscribe.noise.bounds import Bound
from fedtranscribe.questions.class_moments import ClassMoments, ClassMomentsQuery
from fedtranscribe.questions.descent import Descent, DescentQuery
from fedtranscribe.questions.gradients import MeanGradients
from fedtranscribe.questions.labels import Labels
from fedtranscribe.questions.mixture import Mixture, MixtureQuery
from fedtranscribe.questions.moments import Moments, MomentsQuery
from fedtranscribe.questions.question import Kind, Query, Scalar
from fedtranscribe.questions.record_rows import SCRATCH_GIB
from fedtranscribe.questions.rows import ImageQuery
from fedtranscribe.questions.statistic import Statistic
from fedtranscribe.questions.votes import MeanVotes
from fedtranscribe.results.progress import Progress, silent
from fedtranscribe.text import expect_name


def of_teachers(teachers: Teachers) -> Mapping[str, Statistic[Any]]:
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
) -> Mapping[str, Statistic[Any]]:
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
    # Those of other packages are made for one label per image.
    brought = {} if images.multilabel else registered()
    others = [question.statistic(images) for question in brought.values()]
    rows = moments.rows
    ours = (moments, Descent(rows), Mixture(images, rows.sums), ClassMoments(rows))
    return by_kind([*ours, *others])


def by_kind(statistics: Iterable[Statistic[Any]]) -> Mapping[str, Statistic[Any]]:
    """Statistics by what they answer."""
    return {statistic.kind: statistic for statistic in statistics}


QUERIES: Mapping[str, type[Query]] = {
    Kind.GRADIENT: ImageQuery,
    Kind.LABEL: ImageQuery,
    Kind.VOTE: ImageQuery,
    Kind.MOMENTS: MomentsQuery,
    Kind.MIXTURE: MixtureQuery,
    Kind.DESCENT: DescentQuery,
    Kind.CLASS_MOMENTS: ClassMomentsQuery,
}
"""The form that queries of each of our own kinds have."""


# ---------------------------------------------------------------- questions of other packages

GROUP = "fedtranscribe.questions"
"""Entry points of this group name a `Question`."""

_REGISTERED: dict[str, "Question"] = {}


@dataclass(frozen=True)
class Question:
    """A kind of question about records that another package brings; a run asks it once.

    Attributes:
        kind: its name, in policies and settings.
        query: the form of its queries.
        ask: makes a run's query from an id and what holders state in public.
        bound: of one holder's answer, from the same facts; it needs a *Guarantee*.
        statistic: answers queries from a holder's private records.
    """

    kind: str
    query: type[Query]
    ask: Callable[[str, Facts], Query]
    bound: Callable[[Facts], Bound]
    statistic: Callable[[ImageSet], Statistic[Any]]

    def __post_init__(self) -> None:
        """Refuse a name that is taken, or that is none."""
        expect_name("kind", self.kind)
        if self.kind in QUERIES:
            raise ConfigError(f"Expected another kind than {self.kind!r}, which is ours.")


def register(question: Question) -> None:
    """Let holders and runs of this process know a question, as an entry point does for all."""
    _REGISTERED[question.kind] = question


def registered() -> Mapping[str, Question]:
    """Every question that other packages bring, by kind."""
    return {**_from_entry_points(), **_REGISTERED}


@cache
def _from_entry_points() -> Mapping[str, Question]:
    found = [point.load() for point in entry_points(group=GROUP)]
    return {question.kind: question for question in found}


def question_of(kind: str) -> Question:
    """The question of a name.

    Raises:
        ConfigError: nobody has registered it.
    """
    known = registered()
    if kind not in known:
        names = ", ".join(sorted(known)) or "none is installed"
        raise ConfigError(
            f"Expected a question that a package brings, got {kind!r}; known: {names}."
        )
    return known[kind]


def form_of_kind(kind: str) -> type[Query]:
    """The form of a kind's queries.

    Raises:
        ConfigError: an unknown kind.
    """
    return QUERIES[kind] if kind in QUERIES else question_of(kind).query


def query_from(
    kind: str, query_id: str, arrays: Mapping[str, Tensor], terms: Mapping[str, Scalar]
) -> Query:
    """A query out of what `Query.to_dict` holds, or a message.

    Raises:
        ConfigError, TypeError, ValueError: it cannot be read.
    """
    form = form_of_kind(kind)
    known = Kind(kind) if kind in QUERIES else kind
    return form(id=query_id, kind=known, **arrays, **terms)
