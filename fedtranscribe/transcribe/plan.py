"""What a run will do, decided from public facts only and before anything is spent.

Public by decision: how many records there are, classes, image shape, cores, the settings. Nothing
here may look at an image, a label, or a teacher's accuracy.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

from fedtranscribe.config import TranscribeSettings
from fedtranscribe.errors import ConfigError
from fedtranscribe.exchange import AnswerKind
from fedtranscribe.holder import Mechanism
from fedtranscribe.mechanisms import ExponentialVoteLabels, NoisyMeanRows, TopKRandomizedResponse
from fedtranscribe.models import is_small
from fedtranscribe.privacy.accountant import epsilon_filter
from fedtranscribe.privacy.calibrate import (
    EnsembleLayout,
    NoiseMode,
    RowAnswer,
    label_epsilon0,
    noise_std,
    row_mu,
    vote_eta,
)
from fedtranscribe.privacy.closed_forms import gaussian_epsilon
from fedtranscribe.privacy.forecasts import Forecast, forecast, label_forecast
from fedtranscribe.privacy.published import (
    Published,
    dpsd_theorem1,
    dpsd_theorem2,
    published_sigma,
)
from fedtranscribe.privacy.release_plan import Release
from fedtranscribe.privacy.units import Unit

KINDS = {"data": AnswerKind.GRADIENT, "label": AnswerKind.LABEL, "vote": AnswerKind.VOTE}

# With fewer records a shard's teacher is little better than chance.
_RECORDS_PER_SHARD = 16
# More shards than this cost time and bring little at the ε that this picks for.
_SHARDS = 250
# Rows: enough for the student, few enough for minutes on two cores.
_ROWS_PER_CLASS = 400
_NO_ENSEMBLES = (
    "And it knows no ensembles: a record that reaches one of M teachers moves the mean of their "
    "rows by 1/M of what it counts, so that here it may print more than the sound figure."
)
# In label mode a class that all M teachers name has log odds η·M; of synthetic images about half
# of them agree.
_AGREEMENT = 0.5


@dataclass(frozen=True)
class TaskFacts:
    """What is public about the private data."""

    records: int
    classes: int
    channels: int
    size: int


@dataclass(frozen=True)
class Plan:
    """Everything that decides the guarantee of a run; fixed before the first query.

    Attributes:
        kind: what is asked per row.
        rows: how many rows in all.
        shards: disjoint teachers.
        mode: "full" trains a network per shard, "heads" a linear head per shard on one frozen
            backbone.
        mechanism: what every answer passes through.
        noise_std: std per coordinate on the mean row; None in label mode.
        sharpness: nats per unit of agreement between an answer and a class.
        forecast: what can be learned at all.
        published: the paper's own figure for the same noise.
        words: what was picked and what it trades, a line each.
    """

    kind: AnswerKind
    rows: int
    shards: int
    mode: Literal["full", "heads"]
    mechanism: Mechanism
    noise_std: float | None
    sharpness: float
    forecast: Forecast
    published: Published
    words: tuple[str, ...]

    def releases(self, *, positional_ids: bool) -> tuple[Release, ...]:
        """What all answers give away."""
        return (self.mechanism.release(self.rows, positional_ids=positional_ids),)


def default_shards(records: int) -> int:
    """How many disjoint teachers to train on so many records, where nobody said."""
    return max(1, min(_SHARDS, records // _RECORDS_PER_SHARD))


def training_mode(architecture: str, weights: str | None) -> Literal["full", "heads"]:
    """Whether every shard trains a whole network.

    Hundreds of large networks do not fit in minutes on two cores, and a network from given public
    weights needs only a head.
    """
    return "full" if is_small(architecture) and weights is None else "heads"


def make_plan(
    settings: TranscribeSettings, facts: TaskFacts, shards: int, mode: Literal["full", "heads"]
) -> Plan:
    """Choose rows and noise for a run.

    Args:
        settings: what the user asked for.
        facts: public facts about the task.
        shards: how many teachers there are or will be.
        mode: how they were or will be trained.

    Raises:
        ConfigError: top-k beyond the classes, shards beyond the records.
    """
    if settings.top_k is not None and settings.top_k > facts.classes:
        raise ConfigError(
            f"Expected top-k={settings.top_k} <= {facts.classes} classes; ask for fewer."
        )
    if settings.top_k == 1:
        raise ConfigError("Expected top-k=1 >= 2: a set of one class tells nothing.")
    if settings.privacy == "label" and settings.unit == "holder" and shards > 1:
        raise ConfigError(
            f"Expected one teacher for --privacy label --unit holder, got shards={shards}: a "
            "holder moves all votes; use --shards 1, or --privacy vote."
        )
    if shards > facts.records:
        raise ConfigError(
            f"Expected shards={shards} <= {facts.records} records; ask for fewer shards."
        )
    rows = settings.rows or _ROWS_PER_CLASS * facts.classes
    k = settings.top_k or facts.classes
    words = (
        f"{shards} teachers on disjoint shards of about {facts.records / shards:.0f} records: "
        "more of them carry more signal through the noise, each knows less",
        f"{rows:,} synthetic rows in all: more rows see more noise each, at the same ε",
        (
            "a network per shard"
            if mode == "full"
            else f"one frozen {settings.teacher} backbone "
            f"({settings.teacher_weights or 'random'} weights) and a linear head per shard: "
            "minutes instead of days, for weaker teachers"
        ),
    )
    kind = KINDS[settings.privacy]
    if kind is AnswerKind.LABEL:
        return _label_plan(settings, facts, rows, shards, k, mode, words)
    return _gaussian_plan(settings, facts, rows, shards, mode, words)


def _paper_beta(epsilon: float) -> float:
    """β as the paper sets it; it changes its formula only, since noise and rows both scale by β."""
    return 1e-3 if epsilon <= 1 else 5e-3


def _gaussian_plan(
    settings: TranscribeSettings,
    facts: TaskFacts,
    rows: int,
    shards: int,
    mode: Literal["full", "heads"],
    words: tuple[str, ...],
) -> Plan:
    kind, unit = KINDS[settings.privacy], Unit(settings.unit)
    answer = RowAnswer.GRADIENT if kind is AnswerKind.GRADIENT else RowAnswer.VOTE
    layout = EnsembleLayout(shards)
    if settings.calibrate_by == "published":
        std = published_sigma(
            settings.epsilon, settings.delta, _paper_beta(settings.epsilon), facts.classes, rows
        )
    else:
        std = noise_std(
            settings.epsilon, settings.delta, rows, layout, unit, answer, NoiseMode.LOCAL
        )
    # A plan calibrated by the published formula spends another ε than it says: forecast that one.
    spent = gaussian_epsilon(
        row_mu(std, layout, unit, answer, NoiseMode.LOCAL) * math.sqrt(rows), settings.delta
    )
    outlook = forecast(spent, settings.delta, layout, unit, answer, NoiseMode.LOCAL, facts.classes)
    # The paper has no votes, but its formula knows a row by its norm and noise alone.
    published = dpsd_theorem1(
        std, _paper_beta(settings.epsilon), facts.classes, rows, 1, settings.delta
    )
    if shards > 1:
        published = replace(published, reason=f"{published.reason} {_NO_ENSEMBLES}")
    return Plan(
        kind=kind,
        rows=rows,
        shards=shards,
        mode=mode,
        mechanism=NoisyMeanRows(layout, std, answer),
        noise_std=std,
        sharpness=1 / std**2,
        forecast=outlook,
        published=published,
        words=words,
    )


def _label_plan(
    settings: TranscribeSettings,
    facts: TaskFacts,
    rows: int,
    shards: int,
    k: int,
    mode: Literal["full", "heads"],
    words: tuple[str, ...],
) -> Plan:
    # The ledger admits every label by its filter, so that is what the noise is calibrated to.
    target = (settings.epsilon, settings.delta, rows)
    if shards == 1:
        strength = (
            settings.epsilon
            if settings.calibrate_by == "published"
            else label_epsilon0(*target, k, epsilon_filter)
        )
        mechanism: Mechanism = TopKRandomizedResponse(strength, k)
        sharpness = strength
    else:
        strength = (
            settings.epsilon
            if settings.calibrate_by == "published"
            else vote_eta(*target, epsilon_filter)
        )
        mechanism = ExponentialVoteLabels(strength, k)
        sharpness = strength * shards * _AGREEMENT
    return Plan(
        kind=AnswerKind.LABEL,
        rows=rows,
        shards=shards,
        mode=mode,
        mechanism=mechanism,
        noise_std=None,
        sharpness=min(sharpness, math.log(1e6)),
        forecast=label_forecast(min(sharpness, 50.0), k, rows),
        published=dpsd_theorem2(strength),
        words=words,
    )
