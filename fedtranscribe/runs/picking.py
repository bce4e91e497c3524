"""What is picked from public facts where nobody chose, and how long long sums will take."""

from typing import Any, Literal

from fedtranscribe.config import TranscribeSettings
from fedtranscribe.errors import ConfigError
from fedtranscribe.models import is_small
from fedtranscribe.models.fixed_features import (
    features_for,
    is_fixed,
    row_length,
    row_width,
    words_for,
)
from fedtranscribe.privacy.units import Unit
from fedtranscribe.questions.question import Kind
from fedtranscribe.rounds.plan import KINDS, Plan
from fedtranscribe.rounds.roster import against_start
from fedtranscribe.text import counted

TEACHER = "cnn"
"""The teachers' architecture."""

TrainingMode = Literal["full", "heads"]
"""A network per shard, or a linear head per shard on one frozen backbone."""

# With fewer records a shard's teacher is little better than chance.
_RECORDS_PER_SHARD = 16
# More shards than this cost time and bring little at the ε that this picks for.
_SHARDS = 250


def default_shards(records: int) -> int:
    """How many disjoint teachers to train on so many records."""
    return max(1, min(_SHARDS, records // _RECORDS_PER_SHARD))


def training_mode(architecture: str, weights: str | None) -> TrainingMode:
    """Whether every shard trains a whole network.

    Hundreds of large networks do not fit in minutes on two cores, and a network from given public
    weights needs only a head.
    """
    return "full" if is_small(architecture) and weights is None else "heads"


def kind_of(settings: TranscribeSettings) -> Kind:
    """What will be asked for."""
    return Kind.MOMENTS if settings.source == "moments" else KINDS[settings.privacy]


def with_source(settings: TranscribeSettings) -> TranscribeSettings:
    """The settings with source, student and teacher picked, where nobody said.

    A student that sums set follows from the images, see `features_for`.

    Who names a teacher, a student or a number of rows wants answers of teachers. So does who hides
    labels or a whole holder, asks for gradients, goes by a published formula, or brings a
    generator: moments protect records, and no paper's formula counts them.
    """
    against = _against_moments(settings)
    source = settings.source or ("teachers" if against else "moments")
    if source == "teachers":
        shared = settings.teachers_share is not None
        start = settings.start or ("moments" if shared else "none")
        picked: dict[str, Any] = {
            "source": source,
            "start": start,
            "teacher": settings.teacher or TEACHER,
        }
        if start == "moments":
            _expect_startable(settings)
        elif settings.features is not None and settings.unit != Unit.RECORD:
            raise ConfigError(
                f"Expected no --features {settings.features} with --unit {settings.unit}: a sum "
                "over records hides no whole holder."
            )
        elif settings.features is not None:
            raise ConfigError(
                f"Expected no --features {settings.features} where teachers alone are asked: sums "
                "over records set a student on them; add --start moments, or leave it out."
            )
        else:
            picked["student"] = settings.student_architecture
    elif against:
        raise ConfigError(
            f"Expected --source teachers with {against}: moments are those of records' features, "
            "without teachers, rows or labels of their own; leave one of the two out."
        )
    else:
        picked = {"source": source}
    picked["mixture_share"] = _mixture_share(settings, sums=picked.get("start") != "none")
    return settings.model_copy(update=picked)


def _mixture_share(settings: TranscribeSettings, *, sums: bool) -> float | None:
    """None where the plan is to choose. A run that is begun without a generator buys none later."""
    asked = settings.mixture_share
    if asked and not sums:
        raise ConfigError(
            f"Expected no --mixture-share {asked:g} where teachers alone are asked; add --start "
            "moments, or leave it out."
        )
    if asked and not settings.with_generator:
        raise ConfigError(
            f"Expected no --mixture-share {asked:g} with --no-generator; leave one of the two out."
        )
    return asked if sums and settings.with_generator else 0.0


def _expect_startable(settings: TranscribeSettings) -> None:
    """Refuse a start from moments where something else leaves no room for it."""
    against_start(settings)
    for name, value in (
        ("--generator", settings.generator),
        ("--calibrate-by", settings.calibrate_by if settings.calibrate_by != "sound" else None),
    ):
        if value is not None:
            raise ConfigError(
                f"Expected no {name} {value} with --start moments; leave one of the two out."
            )


def _against_moments(settings: TranscribeSettings) -> str:
    """The first option that only answers of teachers can serve; empty if there is none."""
    typed = {
        "--teacher": settings.teacher,
        "--start": "none" if settings.start == "none" else None,
        "--teachers-share": settings.teachers_share,
        "--teacher-weights": settings.teacher_weights,
        "--student": None if is_fixed(settings.student) else settings.student,
        "--shards": settings.shards,
        "--rows": settings.rows,
        "--top-k": settings.top_k,
        "--generator": settings.generator,
        "--privacy": settings.privacy if settings.privacy != "vote" else None,
        "--unit": settings.unit if settings.unit != "record" else None,
        "--calibrate-by": settings.calibrate_by if settings.calibrate_by != "sound" else None,
    }
    return next((f"{name} {value}" for name, value in typed.items() if value is not None), "")


def could_start(settings: TranscribeSettings) -> bool:
    """Whether --start moments is open to a run that asks teachers alone."""
    return (
        settings.start == "none"
        and settings.generator is None
        and settings.calibrate_by == "sound"
        and settings.privacy != "label"
        and settings.unit == Unit.RECORD
    )


def picked_words(
    settings: TranscribeSettings, plan: Plan, mode: TrainingMode | None, first: Plan | None
) -> tuple[str, ...]:
    """What was picked and what it trades, a line each.

    Args:
        settings: of the run.
        plan: of the run.
        mode: how teachers are trained; None where there are none.
        first: the plan with --start moments; None where teachers alone are asked by necessity, or
            the run starts so already.
    """
    facts = plan.facts
    features = features_for(settings.student, facts.channels)
    axes = row_width(features, facts.channels, facts.size) - 1
    width = row_length(axes, plan.products)
    sums = (
        f"two noisy sums over all {facts.records:,} records, of {words_for(features)} and of "
        f"their products; noise is added to each once"
    )
    linear_in = f"linear in {width} features"
    linear = f"the student is {linear_in}"
    if plan.teachers is None and settings.source == "moments":
        instead = "; for teachers' answers instead, add --source teachers"
        return (
            f"no teachers: {sums}",
            f"{linear}{'' if facts.multilabel else instead}",
            *filter(None, (plan.words,)),
        )
    if plan.teachers is None:
        return plan.words, sums, linear
    if plan.starts:
        start = plan.words, f"first {sums}", linear
    elif first is None:
        start = ("teachers alone are asked",)
    else:
        start = (
            "teachers alone are asked; --start moments would begin with two noisy sums over all "
            f"{facts.records:,} records at the same ε, for a student {linear_in}: "
            f"{first.words}. {first.forecast.words}",
        )
    return (
        *start,
        f"{counted(facts.shards, 'teacher')} on disjoint shards of about "
        f"{counted(round(facts.records / facts.shards), 'record')}: more of them carry more signal "
        "through the noise, each knows less",
        f"{plan.teachers.rows:,} synthetic rows in all: more rows see more noise each, at the "
        "same ε",
        (
            "a network per shard"
            if mode == "full"
            else f"one frozen {settings.teacher} backbone "
            f"({settings.teacher_weights or 'random'} weights) and a linear head per shard: "
            "minutes instead of days, for weaker teachers"
        ),
    )
