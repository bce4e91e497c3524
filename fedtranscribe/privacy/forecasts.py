"""What a plan can carry at most, said before any budget is spent.

A public rule on public numbers. The noise decides how much information about the teachers fits
through the answers, whatever the student does with them:

- Gaussian rows of norm 1 with noise std s: n rows carry at most n / (2 s²) nats. We call n / s²
  the signal; it is (M μ*/2)² for gradients of M teachers and does not depend on n.
- Labels: the capacity of the randomised channel, times n. Signal is again twice the nats.

A noiseless label out of c classes is worth ln c nats, so a signal says how many clean labels the
answers can be worth at best. Fewer than 200 (100 nats: 43 labels of ten classes) is hopeless:
nobody can learn the task from that, however many rows are asked. Below 15,000 (3,257 labels) is
poor: expect little beyond what public data give. The privacy law's table (section 2) sits right
with both: at ε = 10 five teachers are hopeless, 50 poor, 250 fine; at ε = 1 it takes 1,000.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from fedtranscribe.errors import ConfigError
from fedtranscribe.privacy.calibrate import EnsembleLayout, mean_sensitivity
from fedtranscribe.privacy.closed_forms import gaussian_mu
from fedtranscribe.privacy.units import NoiseMode, RowAnswer, Unit

HOPELESS_BELOW = 200.0
POOR_BELOW = 15_000.0
_MOMENTS_HOPELESS = 0.1


class Verdict(StrEnum):
    """Whether anything can be learned."""

    HOPELESS = "hopeless"
    POOR = "poor"
    FINE = "fine"


@dataclass(frozen=True)
class Forecast:
    """The most that a plan's answers can say about the teachers.

    Attributes:
        signal: twice the nats that all answers together carry at most; None where it depends on
            what nobody has declared.
        verdict: by the module's public rule.
        words: the same in one sentence, with the fix where there is one.
    """

    signal: float | None
    verdict: Verdict
    words: str

    @property
    def hopeless(self) -> bool:
        """Whether it would be a waste of budget."""
        return self.verdict is Verdict.HOPELESS


def forecast(
    epsilon: float,
    delta: float,
    layout: EnsembleLayout,
    unit: Unit = Unit.RECORD,
    answer: str = RowAnswer.GRADIENT,
    noise: NoiseMode = NoiseMode.CENTRAL,
    classes: int = 10,
) -> Forecast:
    """What Gaussian rows at (ε, δ) can carry; the number of rows makes no difference.

    Raises:
        ConfigError: a value is out of range.
    """
    _expect_classes(classes)
    sensitivity = mean_sensitivity(layout, unit, answer, noise)
    signal = (gaussian_mu(epsilon, delta) / sensitivity) ** 2
    # The signal grows with the square of what is averaged, or its holders' root under local noise.
    grows = "teachers" if unit is Unit.RECORD else "holders"
    there = layout.teachers if unit is Unit.RECORD else layout.holders
    linear = noise is NoiseMode.LOCAL and unit is Unit.HOLDER
    factor = POOR_BELOW / signal if linear else math.sqrt(POOR_BELOW / signal)
    fix = f"it takes about {math.ceil(there * factor):,} {grows} at this ε, or a larger ε"
    return _judge(signal, classes, fix)


def label_forecast(strength: float, classes: int, rows: int) -> Forecast:
    """What `rows` randomised labels can carry.

    Args:
        strength: ε0 of randomised response, or η times the number of votes: the log odds with
            which a class that all teachers name is drawn.
        classes: size of the set that is randomised over.
        rows: labels in all.

    Raises:
        ConfigError: a value is out of range.
    """
    _expect_classes(classes)
    if rows < 1 or not strength >= 0:
        raise ConfigError(f"Expected rows={rows} >= 1 and strength={strength} >= 0.")
    signal = 2 * rows * _channel_capacity(strength, classes)
    return _judge(signal, classes, "it takes more teachers who vote, or a larger ε")


def moments_forecast(records: int, classes: int, width: int, noise_std: float) -> Forecast:
    """What noisy moments of features can teach a linear classifier.

    The noise alone has eigenvalues up to √(2 k) τ. A class of n / c records adds unit rows, so
    n / c is what its part of the sum has to stand out by. Where that is a tenth of the noise,
    nothing is seen; where it is less than all of it, little: the packaged digits reach 45 % at
    a quarter of it (ε = 0.1) and 91 % at twice (ε = 1).

    Args:
        records: n; all images of one id are one record.
            0 where it is not declared: nothing can be said then.
        classes: c.
        width: k, entries of a row.
        noise_std: τ of the sums by class.

    Raises:
        ConfigError: a value is out of range.
    """
    _expect_classes(classes)
    if records < 0 or width < 1 or not noise_std > 0:
        raise ConfigError(
            f"Expected records={records} >= 0 and width={width}, noise_std={noise_std} > 0."
        )
    if not records:
        words = "Not all holders declare how many records they have, so nothing can be forecast."
        return Forecast(None, Verdict.FINE, words)
    each = records / classes
    ratio = each / (noise_std * math.sqrt(2 * width))
    strength = (
        f"An average class of {each:,.0f} records (n / {classes}) is {in_short(ratio)} times as "
        "strong as the noise"
    )
    if ratio < _MOMENTS_HOPELESS:
        words = f"{strength} of the moments: nothing is seen; it takes more records, or a larger ε."
        return Forecast(ratio**2, Verdict.HOPELESS, words)
    if ratio < 1:
        words = f"{strength} of the moments: little is seen; it takes more records, or a larger ε."
        return Forecast(ratio**2, Verdict.POOR, words)
    return Forecast(ratio**2, Verdict.FINE, f"{strength} of the moments: enough to learn from.")


def in_short(ratio: float) -> str:
    """Two digits, or all that stand before the point."""
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.2g}"


def _judge(signal: float, classes: int, fix: str) -> Forecast:
    nats = signal / 2
    worth = (
        f"The answers carry at most {nats:,.1f} nats about the teachers, as much as "
        f"{nats / math.log(classes):,.1f} clean labels of {classes} classes: "
    )
    if signal < HOPELESS_BELOW:
        return Forecast(signal, Verdict.HOPELESS, f"{worth}nobody can learn from that; {fix}.")
    if signal < POOR_BELOW:
        return Forecast(
            signal,
            Verdict.POOR,
            f"{worth}little beyond what public data give; {fix}, for a good student.",
        )
    return Forecast(signal, Verdict.FINE, f"{worth}enough to learn from.")


def _channel_capacity(strength: float, classes: int) -> float:
    # ln k minus the entropy of one answer; the channel is symmetric, so uniform input is best.
    log_q = -float(np.logaddexp(strength, math.log(classes - 1)))
    q = math.exp(log_q)
    p = math.exp(log_q + strength)
    entropy = -p * (log_q + strength) - (classes - 1) * q * log_q
    return max(0.0, math.log(classes) - entropy)


def _expect_classes(classes: int) -> None:
    if classes < 2:
        raise ConfigError(f"Expected classes={classes} >= 2.")
