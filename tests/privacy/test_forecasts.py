import math

import numpy as np
import pytest

from fedtranscribe.errors import ConfigError
from fedtranscribe.privacy.calibrate import EnsembleLayout, noise_std
from fedtranscribe.privacy.forecasts import Verdict, forecast, label_forecast
from fedtranscribe.privacy.units import NoiseMode, Unit

DELTA = 1e-5


@pytest.mark.parametrize(
    ("epsilon", "teachers", "signal"),
    [
        (10, 1, 1.0),
        (10, 50, 2.5e3),
        (10, 250, 6.3e4),
        (10, 1000, 1e6),
        (1, 1, 0.018),
        (1, 50, 45),
        (1, 250, 1.1e3),
        (1, 1000, 1.8e4),
    ],
)
def test_signal_of_the_privacy_law(epsilon: float, teachers: int, signal: float) -> None:
    assert forecast(epsilon, DELTA, EnsembleLayout(teachers)).signal == pytest.approx(
        signal, rel=0.03
    )


@pytest.mark.parametrize(
    ("epsilon", "teachers", "verdict"),
    [
        (10, 1, Verdict.HOPELESS),
        (10, 5, Verdict.HOPELESS),
        (10, 50, Verdict.POOR),
        (10, 250, Verdict.FINE),
        (1, 1, Verdict.HOPELESS),
        (1, 50, Verdict.HOPELESS),
        (1, 250, Verdict.POOR),
        (1, 1000, Verdict.FINE),
    ],
)
def test_verdict_of_the_privacy_law(epsilon: float, teachers: int, verdict: Verdict) -> None:
    seen = forecast(epsilon, DELTA, EnsembleLayout(teachers))
    assert seen.verdict is verdict
    assert seen.hopeless is (verdict is Verdict.HOPELESS)


@pytest.mark.parametrize("noise", [NoiseMode.CENTRAL, NoiseMode.LOCAL])
@pytest.mark.parametrize("unit", list(Unit))
@pytest.mark.parametrize("rows", [1, 10_000])
def test_signal_is_rows_over_variance(unit: Unit, noise: NoiseMode, rows: int) -> None:
    layout = EnsembleLayout(200, 10)
    std = noise_std(3.0, DELTA, rows, layout, unit, "vote", noise)
    seen = forecast(3.0, DELTA, layout, unit, "vote", noise)
    assert seen.signal == pytest.approx(rows / std**2, rel=1e-9)


@pytest.mark.parametrize("noise", list(NoiseMode))
@pytest.mark.parametrize("unit", list(Unit))
def test_the_mend_is_enough(unit: Unit, noise: NoiseMode) -> None:
    layout = EnsembleLayout(8, 4)
    words = forecast(10.0, DELTA, layout, unit, "gradient", noise).words
    needed = int(words.split("takes about ")[1].split()[0].replace(",", ""))
    if unit is Unit.RECORD:
        fixed = EnsembleLayout(4 * math.ceil(needed / 4), 4)
    else:
        fixed = EnsembleLayout(2 * needed, needed)
    assert forecast(10.0, DELTA, fixed, unit, "gradient", noise).verdict is Verdict.FINE


def test_label_signal_is_the_capacity_of_the_channel() -> None:
    weights = np.array([math.exp(0.8), 1, 1])
    answer = weights / weights.sum()
    capacity = math.log(3) + float((answer * np.log(answer)).sum())
    assert label_forecast(0.8, 3, 500).signal == pytest.approx(2 * 500 * capacity)
    assert label_forecast(0.0, 3, 500).signal == pytest.approx(0.0, abs=1e-9)


def test_labels_of_one_teacher_are_hopeless_and_certain_labels_are_fine() -> None:
    assert label_forecast(0.1, 10, 1000).hopeless
    assert label_forecast(50.0, 10, 5000).verdict is Verdict.FINE


def test_values_out_of_range() -> None:
    with pytest.raises(ConfigError, match="classes=1"):
        forecast(1.0, DELTA, EnsembleLayout(1), classes=1)
    with pytest.raises(ConfigError, match="rows=0"):
        label_forecast(0.1, 10, 0)
    with pytest.raises(ConfigError, match="strength=nan"):
        label_forecast(math.nan, 10, 1)
