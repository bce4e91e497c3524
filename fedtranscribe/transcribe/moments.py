"""Runs that learn from moments of the records instead of teachers' answers.

When a run does, what it costs, and how it is carried out.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from fedtranscribe.config import TranscribeSettings
from fedtranscribe.errors import ConfigError
from fedtranscribe.mechanisms import NoisyMoments
from fedtranscribe.methods.moments import (
    AnswersMoments,
    class_moments,
    second_moments,
    set_head,
    train_generator,
)
from fedtranscribe.models.scattering import NAME as SCATTER
from fedtranscribe.models.scattering import row_width
from fedtranscribe.privacy.closed_forms import gaussian_mu
from fedtranscribe.privacy.forecasts import Forecast, moments_forecast
from fedtranscribe.privacy.release_plan import Release
from fedtranscribe.transcribe.rundir import RunDirectory
from fedtranscribe.transcribe.session import Progress, StudentSide

TEACHER = "cnn"
"""The teachers' architecture, where nobody said."""

# Of μ², which adds up: the first question only has to show which axes matter.
_FIRST_SHARE = 0.3


@dataclass(frozen=True)
class MomentsPlan:
    """Two questions about moments, fixed before the first of them.

    Attributes:
        first: second moments of features on public axes.
        second: second moments and sums by class on the axes that the first answer showed.
        forecast: what can be learned from them.
        words: what was picked and what it trades, a line each.
    """

    first: NoisyMoments
    second: NoisyMoments
    forecast: Forecast
    words: tuple[str, ...]

    # What a plan of rows says of itself: no paper has a formula for moments, and nobody is taught.
    published = None
    shards = 0

    @property
    def noise_std(self) -> float:
        """Std of the noise on the sums by class."""
        return self.second.noise_std

    def releases(self, *, positional_ids: bool) -> tuple[Release, ...]:
        """What both answers give away."""
        both = self.first, self.second
        return tuple(mechanism.release(positional_ids=positional_ids) for mechanism in both)


def with_source(settings: TranscribeSettings) -> TranscribeSettings:
    """The settings with source, student and teacher picked, where nobody said.

    Who names a teacher, a student or a number of rows wants answers of teachers. So does who hides
    labels or a whole holder, asks for gradients, goes by a published formula, or brings a
    generator: moments protect records, and no paper's formula counts them.

    Raises:
        ConfigError: moments were asked for and do not fit the rest.
    """
    against = _against_moments(settings)
    source = settings.source or ("teachers" if against else "moments")
    if source == "teachers":
        teacher, student = settings.teacher or TEACHER, settings.student_architecture
        picked = {"source": source, "teacher": teacher, "student": student}
    elif against:
        raise ConfigError(
            f"Expected --source teachers with {against}: moments are those of records' features, "
            "without teachers, rows or labels of their own; leave one of the two out."
        )
    else:
        picked = {"source": source, "student": SCATTER}
    return settings.model_copy(update=picked)


def _against_moments(settings: TranscribeSettings) -> str:
    """The first option that only answers of teachers can serve; empty if there is none."""
    typed = {
        "--teacher": settings.teacher,
        "--teacher-weights": settings.teacher_weights,
        "--student": settings.student if settings.student != SCATTER else None,
        "--shards": settings.shards,
        "--rows": settings.rows,
        "--top-k": settings.top_k,
        "--generator": settings.generator,
        "--privacy": settings.privacy if settings.privacy != "vote" else None,
        "--unit": settings.unit if settings.unit != "record" else None,
        "--calibrate-by": settings.calibrate_by if settings.calibrate_by != "sound" else None,
    }
    return next((f"{name} {value}" for name, value in typed.items() if value is not None), "")


def plan_moments(
    settings: TranscribeSettings, records: int, classes: int, channels: int, size: int
) -> MomentsPlan:
    """How both questions share the budget.

    Args:
        settings: the run's.
        records: how many there are; public.
        classes: of the task.
        channels: of the images.
        size: pixels a side.
    """
    mu = gaussian_mu(settings.epsilon, settings.delta)
    first = NoisyMoments.of_mu(mu * math.sqrt(_FIRST_SHARE), by_class=False)
    second = NoisyMoments.of_mu(mu * math.sqrt(1 - _FIRST_SHARE), by_class=True)
    width = row_width(channels, size)
    words = (
        f"no teachers: two noisy sums over all {records:,} records, of wavelet features and of "
        "their products; each meets the noise once",
        f"the student is linear in {width} features; for teachers' answers instead, add "
        "--source teachers",
    )
    outlook = moments_forecast(records, classes, width, second.noise_std)
    return MomentsPlan(first, second, outlook, words)


def learn_from_moments(
    side: StudentSide,
    plan: MomentsPlan,
    holder: AnswersMoments,
    run: RunDirectory,
    settings: TranscribeSettings,
    progress: Progress,
    report: Callable[[int], None],
) -> None:
    """Ask both questions, set the student by the answers, and train the generator against it.

    Each question is stored before it is asked: after a crash the same one goes out again, byte
    for byte, and the ledger replays its answer.

    Args:
        side: changed in place.
        plan: the run's.
        holder: of the records.
        run: where questions are kept.
        settings: of the run.
        progress: shows the work.
        report: called with how many questions have been answered.
    """
    name, stage = run.run_id, "moments of the records"
    progress(stage, 0, 2)
    first = run.keep_moments_query(0, lambda: second_moments(side.student, name))
    shown = holder.answer(first, plan.first)
    progress(stage, 1, 2)
    report(1)
    second = run.keep_moments_query(1, lambda: class_moments(first, shown, plan.first, name))
    answer = holder.answer(second, plan.second)
    progress(stage, 2, 2)
    report(2)
    set_head(side.student, second, answer, plan.second)

    def show(done: int, total: int) -> None:
        progress("generator", done, total)

    train_generator(side.generator, side.student, answer, settings.dpsd, side.rng, show)
