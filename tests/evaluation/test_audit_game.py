"""Planted faults in mechanisms are found by watching them; sound mechanisms are not accused."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedtranscribe.errors import AuditError, ConfigError
from fedtranscribe.evaluation.findings import Check, Claim, expect_sound, risk_of
from fedtranscribe.evaluation.game import play, play_run
from fedtranscribe.evaluation.sums_game import check_noise
from fedtranscribe.noise.mechanisms import gaussian_mechanism
from fedtranscribe.noise.randomized_labels import TopKRandomizedResponse
from fedtranscribe.noise.sources import SeededBits, SeededNoise
from fedtranscribe.privacy.accountant import delta_of, epsilon
from fedtranscribe.privacy.calibrate import EnsembleLayout, noise_std
from fedtranscribe.privacy.events import Gaussian, PoissonGaussian
from fedtranscribe.privacy.label_events import RandomizedResponse
from fedtranscribe.privacy.release_plan import MechanismRelease, NoisePlan
from fedtranscribe.privacy.units import Adjacency, NoiseMode, RowAnswer, Unit
from fedtranscribe.questions.mixture import energies_bound, products_bound
from fedtranscribe.questions.moments import moments_bound
from tests.mechanisms_for import (
    masked_mean_rows,
    masked_std,
    noisy_mean_rows,
    noisy_moments_of_mu,
    raw_mean_rows,
)
from tests.results import changed, result_of

DELTA = 1e-5
CLAIM = Claim(1.0, DELTA)
LAYOUT = EnsembleLayout(4)


@pytest.mark.long
@pytest.mark.parametrize("answer", list(RowAnswer))
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("fault", [1.0, 0.5])
def test_halved_noise_is_found_in_a_million_trials(answer, rows, fault):
    std = noise_std(1.0, DELTA, rows, LAYOUT, Unit.RECORD, answer, NoiseMode.LOCAL)
    used = noisy_mean_rows(LAYOUT, std * fault, answer)
    first, second = torch.zeros(2, rows, 3, dtype=torch.float64)
    # One shard of four turns round: as far as a record can move the mean.
    first[:, 0] = 1 / 4
    if answer is RowAnswer.GRADIENT:
        second[:, 0] = -1 / 4
    else:
        second[:, 1] = 1 / 4
    found = play(used, first, second, CLAIM, source=SeededNoise(1), trials=1_000_000)
    assert found.figures["trials"] == 1_000_000
    assert found.confidence == 0.999
    assert not found.private
    if fault == 1.0:
        assert 0.4 < found.lower < 1.0
        expect_sound([found])
    else:
        assert found.lower > 1.0
        with pytest.raises(AuditError, match=r"game: at least ε = 1\.\d+ with confidence 0.999"):
            expect_sound([found])


@pytest.mark.parametrize("fault", [1.0, 2.0])
def test_labels_that_are_told_too_truly_are_found(fault):
    first, second = torch.eye(3)[:2].split(1)
    mechanism = TopKRandomizedResponse(fault, 3)
    found = play(mechanism, first, second, CLAIM, source=SeededNoise(2), trials=200_000)
    assert found.contradicts is (fault == 2.0)
    assert found.lower > 0.9


def test_operating_system_entropy_is_the_default():
    std = noise_std(1.0, DELTA, 1, LAYOUT, Unit.RECORD, RowAnswer.VOTE, NoiseMode.LOCAL)
    used = noisy_mean_rows(LAYOUT, std, RowAnswer.VOTE)
    rows = torch.tensor([[[0.25, 0.0]], [[0.0, 0.25]]])
    found = play(used, rows[0], rows[1], CLAIM, trials=100_000)
    assert 0 <= found.lower < 1.0


def test_inputs_that_do_not_differ_are_refused():
    mechanism = TopKRandomizedResponse(1.0, 3)
    with pytest.raises(ConfigError, match="two different inputs"):
        play(mechanism, torch.eye(3)[:1], torch.eye(3)[:1], CLAIM)
    with pytest.raises(ConfigError, match="two different inputs"):
        play(mechanism, torch.eye(3)[:1], torch.eye(3), CLAIM)


# ---------------------------------------------------------------- the mechanism of a run


def as_run(mechanism, rows, **more):
    release = mechanism.release(rows, positional_ids=False)
    result = result_of(delta=DELTA, rows=rows, private=True, **more)
    return result, {"the holder": (release,)}


@pytest.mark.parametrize("privacy", ["vote", "data"])
@pytest.mark.parametrize("mode", list(NoiseMode))
@pytest.mark.parametrize("fault", [1.0, 0.5])
def test_a_runs_own_noise_is_judged_by_its_events(privacy, mode, fault):
    answer = RowAnswer.VOTE if privacy == "vote" else RowAnswer.GRADIENT
    layout, rows = EnsembleLayout(90, 3), 400
    if mode is NoiseMode.SECAGG:
        target = (10.0, DELTA, rows, layout, Unit.RECORD, answer, 10, 1)
        mechanism = masked_mean_rows(layout, masked_std(*target), answer, 10, 1)
        source = SeededBits(5)
    else:
        std = noise_std(10.0, DELTA, rows, layout, Unit.RECORD, answer, mode)
        kind = noisy_mean_rows if mode is NoiseMode.LOCAL else raw_mean_rows
        mechanism, source = kind(layout, std, answer), SeededNoise(5)
    facts = {"holders": 3, "shards": dict.fromkeys("abc", 30), "noise": mode.value}
    told = mechanism.noise_std * fault
    result, given = as_run(mechanism, rows, noise_std=told, privacy=privacy, **facts)
    trials = 200_000 if mode is NoiseMode.SECAGG else 1_000_000
    found = play_run(result, given, Adjacency.ADD_REMOVE, trials, 0.999, source)
    assert found is not None
    assert 1.7 < found.claim.epsilon < 2.2
    assert found.figures["rows_played"] < rows == found.figures["rows_of_the_run"]
    if fault == 1.0:
        assert 0.7 < found.lower < found.claim.epsilon
    else:
        assert found.contradicts


@pytest.mark.parametrize("shards", [20, 5])
@pytest.mark.parametrize("fault", [1.0, 0.5])
def test_a_holder_is_played_with_its_own_number_of_teachers(shards, fault):
    """The mean number of teachers of all holders says nothing about the most exposed one."""
    layout, rows = EnsembleLayout(3 * shards, 3), 400
    gradient = RowAnswer.GRADIENT
    std = noise_std(10.0, DELTA, rows, layout, Unit.RECORD, gradient, NoiseMode.LOCAL)
    few = noisy_mean_rows(layout, std, gradient)
    many = noisy_mean_rows(EnsembleLayout(180, 3), std, gradient)
    facts = {"holders": 3, "shards": {"a": 60, "b": shards, "c": 60}, "noise": "local"}
    result, given = as_run(few, rows, noise_std=std * fault, privacy="data", **facts)
    given = {"a": (many.release(rows, positional_ids=False),), "b": given["the holder"]}
    found = play_run(result, given, Adjacency.ADD_REMOVE, 300_000, 0.999, SeededNoise(5))
    assert found is not None
    assert found.contradicts is (fault == 0.5)
    assert found.lower > 0.3 * found.claim.epsilon


def test_label_runs_are_played_one_label_at_a_time():
    result, given = as_run(TopKRandomizedResponse(1.5, 4), 100, privacy="label", teachers=1)
    played = play_run(result, given, Adjacency.REPLACE, 100_000, 0.99, SeededNoise(1))
    assert played is not None
    assert 1.3 < played.lower < played.claim.epsilon == pytest.approx(1.5, abs=0.01)
    assert play_run(result, {}, Adjacency.REPLACE, 1000, 0.99) is None
    # Nothing is claimed of a seeded run, so nothing can contradict it.
    seeded = play_run(changed(result, private=False), given, Adjacency.REPLACE, 1000, 0.99)
    assert seeded is not None
    assert seeded.claim.epsilon is None
    assert not seeded.contradicts


# ---------------------------------------------------------------- ε in words


def test_the_risk_of_a_gaussian_by_closed_form_and_by_its_profile(monkeypatch):
    events = (Gaussian(0.02, 10_000),)
    claim = Claim(epsilon(events, DELTA), DELTA)
    risk = risk_of(claim, events)
    assert risk is not None
    assert risk.right == pytest.approx(0.8413, abs=1e-4)
    assert risk.found[0.01] == pytest.approx(0.372, abs=1e-3)
    assert "84.1 %" in risk.words
    monkeypatch.setitem(__import__("sys").modules, "riskcal", None)
    alone = risk_of(claim, events)
    assert alone is not None
    assert alone.source.startswith("closed form")
    assert alone.advantage == pytest.approx(risk.advantage)
    assert alone.found == pytest.approx(risk.found)


def test_of_several_holders_each_figure_is_the_worst():
    """A label leaves the larger advantage, the Gaussian more at few false alarms."""
    lists = ((RandomizedResponse(1.2, 2),), (Gaussian(1.0),))
    claim = Claim(4.0, DELTA)
    label, gaussian = (risk_of(claim, events) for events in lists)
    both = risk_of(claim, *lists)
    assert both.advantage == label.advantage > gaussian.advantage
    assert both.found[0.001] == gaussian.found[0.001] > label.found[0.001]
    assert both.found == {rate: max(label.found[rate], gaussian.found[rate]) for rate in both.found}


def test_the_risk_of_other_events_and_of_an_epsilon_alone():
    events = (RandomizedResponse(0.5, 2),)
    risk = risk_of(Claim(epsilon(events, DELTA), DELTA), events)
    assert risk is not None
    q = 1 / (1 + math.exp(-0.5))
    assert risk.advantage == pytest.approx(2 * q - 1, abs=1e-6)
    assert risk.found[0.1] == pytest.approx(0.1 * math.exp(0.5), rel=0.02)
    alone = risk_of(Claim(0.5, DELTA), ())
    assert alone is not None
    assert alone.advantage == pytest.approx(2 * q - 1, abs=1e-4)
    assert alone.found[0.1] >= risk.found[0.1] - 1e-4
    assert risk_of(Claim(None, DELTA), events) is None


def test_the_risk_of_more_steps_than_the_grid_holds():
    """It follows from ε and δ alone, and survives an ε whose power of e is no double."""
    events = (PoissonGaussian(1e-3, 1.0, 2_000_001),)
    claimed = epsilon(events, DELTA)
    assert claimed > 710
    assert risk_of(Claim(claimed, DELTA), events) == risk_of(Claim(claimed, DELTA), ())
    risk = risk_of(Claim(0.5, DELTA), (PoissonGaussian(1e-6, 1.0, 2_000_001),))
    assert risk is not None
    assert risk.found[0.1] == pytest.approx(0.1 * math.exp(0.5) + DELTA)


def test_no_attack_beats_the_risk_that_is_stated():
    events = (Gaussian(1.0),)
    risk = risk_of(Claim(epsilon(events, DELTA), DELTA), events)
    assert risk is not None
    assert risk.advantage == pytest.approx(delta_of(events, 0.0))
    rng = np.random.default_rng(0)
    others, members = rng.normal(size=200_000), rng.normal(1.0, size=200_000)
    for rate, found in risk.found.items():
        threshold = np.quantile(others, 1 - rate)
        assert (members > threshold).mean() < found + 0.01


@pytest.mark.parametrize("adjacency", [Adjacency.ZERO_OUT, Adjacency.REPLACE])
@pytest.mark.parametrize("fault", [1.0, 0.5])
def test_moments_are_played_on_the_worst_pair_of_records(adjacency, fault):
    second = noisy_moments_of_mu(0.5, 2, 2)
    first = noisy_moments_of_mu(0.3, 2, None)
    booked = [noise.release(1, positional_ids=False) for noise in (first, second)]
    stds = [fault * noise.noise_std for noise in (first, second)]
    result = result_of(private=True, delta=DELTA, rows=2, sums_stds=stds)
    found = play_run(result, {"holder": tuple(booked)}, adjacency, 200_000, 0.999, SeededNoise(0))
    assert found is not None
    assert "all 2 sums over records, together" in found.words
    assert found.contradicts is (fault == 0.5)
    claimed = epsilon([release.event(Unit.RECORD, adjacency) for release in booked], DELTA)
    assert found.lower > 0.4 * claimed
    # A holder that did not answer both has no game of both.
    assert play_run(result, {"holder": tuple(booked[1:])}, adjacency, 1_000, 0.99) is None


def sums_of(mode: NoiseMode, holders: int, stds: tuple[float, ...]) -> list[MechanismRelease]:
    """Releases of a holder under a plan of these stds: two of moments, three of a mixture."""
    bounds = [
        moments_bound(2, None),
        moments_bound(2, 2),
        products_bound(2, 1),
        products_bound(2, 2),
        energies_bound(2),
    ]
    return [
        gaussian_mechanism(bound, NoisePlan(mode, std, holders)).release(1, positional_ids=False)
        for bound, std in zip(bounds, stds, strict=True)
    ]


@pytest.mark.long
@pytest.mark.parametrize("mode", list(NoiseMode))
@pytest.mark.parametrize("adjacency", [Adjacency.ZERO_OUT, Adjacency.REPLACE])
@pytest.mark.parametrize("fault", [1.0, 0.3])
def test_sums_are_played_together_as_whoever_may_see_them_sees_them(mode, adjacency, fault):
    stds = (2.0, 1.6, 2.0, 2.0, 3.0)
    releases = sums_of(mode, 3, stds)
    result = result_of(
        private=True,
        delta=DELTA,
        rows=5,
        noise=mode.value,
        sums_stds=[fault * std for std in stds],
        holders=3,
    )
    source = SeededBits(0) if mode is NoiseMode.SECAGG else SeededNoise(0)
    found = play_run(result, {"holder": tuple(releases)}, adjacency, 20_000, 0.999, source)
    assert found is not None
    assert "all 5 sums over records, together" in found.words
    assert found.contradicts is (fault == 0.3)
    claimed = epsilon([r.event(Unit.RECORD, adjacency) for r in releases], DELTA)
    assert found.lower > 0.2 * claimed
    # Beside answers of teachers, whose noise is stated apart, sums are played alone.
    started = (*releases, replace(releases[1], mechanism="noisy-mean-votes"))
    beside = changed(result, noise_std=0.1)
    again = play_run(beside, {"holder": started}, adjacency, 20_000, 0.999, source)
    assert again is not None
    assert "Other answers were not played" in again.words
    assert again.contradicts is (fault == 0.3)


@pytest.mark.parametrize("mode", list(NoiseMode))
@pytest.mark.parametrize("adjacency", [Adjacency.ZERO_OUT, Adjacency.REPLACE])
def test_one_answer_with_too_little_noise_is_found_without_chance(mode, adjacency):
    stds = (2.0, 1.6, 2.0, 2.0, 3.0)
    releases = tuple(sums_of(mode, 3, stds))
    result = result_of(
        private=True, delta=DELTA, rows=5, noise=mode.value, sums_stds=stds, holders=3
    )

    def found(told: tuple[float, ...], given: tuple[MechanismRelease, ...] = releases) -> Check:
        check = check_noise(changed(result, sums_stds=told), {"holder": given}, adjacency)
        assert check is not None
        return check

    assert found(stds).ok
    assert found((2.0, 2.0, 2.0, 2.0, 3.0)).ok  # more noise than was booked
    for at in range(5):
        less = tuple(0.99 * std if here == at else std for here, std in enumerate(stds))
        check = found(less)
        assert check.ok is False
        assert "the events say" in check.words
    twice = replace(releases[2], rows=2)
    assert found(stds, (*releases[:2], twice, *releases[3:])).ok is False
    assert check_noise(result_of(private=True, noise_std=1.0), {}, adjacency) is None


def test_a_sum_that_is_not_booked_is_missed():
    stds = (2.0, 1.6, 2.0, 2.0, 3.0)
    releases = tuple(sums_of(NoiseMode.LOCAL, 3, stds))
    alone = result_of(private=True, delta=DELTA, rows=5, sums_stds=stds)
    several = {"holders": 3, "answered_rounds": {"holder": 5}, "privacy": "moments"}
    for result in (alone, changed(alone, **several)):
        check = check_noise(result, {"holder": releases[:4]}, Adjacency.ZERO_OUT)
        assert check is not None
        assert check.ok is False
        assert "answered 5 sums, the events book 4" in check.words


@pytest.mark.parametrize("mode", list(NoiseMode))
def test_a_holder_that_gave_sums_and_left_before_teachers_is_not_accused(mode):
    stds = (2.0, 1.6)
    releases = tuple(sums_of(mode, 3, (*stds, 2.0, 2.0, 3.0)))[:2]
    result = result_of(
        private=True,
        delta=DELTA,
        rows=12,
        noise=mode.value,
        privacy="vote",
        noise_std=0.01,
        sums_stds=stds,
        holders=3,
        answered_rounds={"stays": 4, "leaves": 2},
        shards={"stays": 5, "leaves": 5},
    )
    votes = noisy_mean_rows(EnsembleLayout(5), 0.5, RowAnswer.VOTE)
    stays = (*releases, votes.release(10, positional_ids=False))
    given = {"leaves": releases, "stays": stays}
    check = check_noise(result, given, Adjacency.ZERO_OUT)
    assert check is not None
    assert check.ok
    source = SeededBits(0) if mode is NoiseMode.SECAGG else SeededNoise(0)
    found = play_run(result, given, Adjacency.ZERO_OUT, 20_000, 0.999, source)
    assert found is not None
    assert not found.contradicts
