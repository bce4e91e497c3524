import json
import math
from dataclasses import replace

import pytest
import rfc8785
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import rdp_privacy_accountant

from fedtranscribe.errors import ConfigError, UnsupportedAdjacencyError
from fedtranscribe.privacy.accountant import epsilon, guarantee
from fedtranscribe.privacy.diffusion import Discriminator, DpPromisePlan, DpSadPlan, Teacher
from fedtranscribe.privacy.diffusion_noise import (
    CalibrateBy,
    calibrated,
    smallest_boundary,
    sound_epsilon,
)
from fedtranscribe.privacy.events import Event, Gaussian, PoissonGaussian, Together
from fedtranscribe.privacy.published import TIME_STEPS
from fedtranscribe.privacy.release_plan import MechanismRelease, PrivacyPlan
from fedtranscribe.privacy.released_images import ReleasedImages
from fedtranscribe.privacy.units import Adjacency, Unit

DELTA = 1e-5
ZERO_OUT, REPLACE, ADD_REMOVE = Adjacency.ZERO_OUT, Adjacency.REPLACE, Adjacency.ADD_REMOVE

MNIST = DpPromisePlan(60_000, 784, 900, 4096, 50, 7.0, 32, 3)
ALONE = replace(MNIST, boundary=TIME_STEPS + 1)
SAD = DpSadPlan(60_000, 128, 100, 1.9)
SMALL = DpPromisePlan(1_000, 64, 940, 100, 5, 2.0, 20, 2)


@pytest.mark.parametrize(
    ("adjacency", "whole", "first"), [(ZERO_OUT, 1.006, 0.106), (REPLACE, 2.13, 0.201)]
)
def test_dp_promise_of_the_privacy_law(adjacency: Adjacency, whole: float, first: float) -> None:
    assert sound_epsilon(MNIST, DELTA, adjacency) == pytest.approx(whole, rel=0.005)
    images = MNIST.phase1_event(adjacency)
    assert isinstance(images, ReleasedImages)
    assert epsilon([images], DELTA) == pytest.approx(first, rel=0.005)
    assert (MNIST.phase1_steps, MNIST.phase2.steps) == (5_625, 733)
    assert MNIST.published(DELTA).epsilon == pytest.approx(1.005, rel=0.002)


def test_dp_promise_books_what_it_releases() -> None:
    release = MNIST.release()
    event = release.event(Unit.RECORD, ZERO_OUT)
    assert event == Together((MNIST.phase1_event(ZERO_OUT), MNIST.phase2.event(ZERO_OUT)))  # pyright: ignore[reportArgumentType]
    with pytest.raises(UnsupportedAdjacencyError):
        release.event(Unit.RECORD, ADD_REMOVE)
    assert MechanismRelease.from_json(json.loads(rfc8785.dumps(release.to_json()))) == release
    plan = PrivacyPlan((release,), Unit.RECORD, ZERO_OUT, DELTA)
    assert guarantee(plan).epsilon == sound_epsilon(MNIST, DELTA)


def test_without_phase_one_it_is_dp_sgd_under_three_adjacencies() -> None:
    assert not ALONE.has_phase1
    assert (ALONE.mu, ALONE.phase1_steps, ALONE.phase1_event(ZERO_OUT)) == (0.0, 0, None)
    for adjacency in Adjacency:
        expected = PoissonGaussian(4096 / 60_000, 7.0, 733, adjacency)
        assert ALONE.release().event(Unit.RECORD, adjacency) == expected
    assert replace(ALONE, sigma=7.0) == ALONE
    bare = replace(ALONE, phase1_batch=None, phase1_epochs=None)
    assert bare.event(ZERO_OUT) == ALONE.event(ZERO_OUT)
    assert bare.published(DELTA).epsilon == ALONE.published(DELTA).epsilon


def test_cached_images_are_one_gaussian_whatever_the_epochs() -> None:
    cached = replace(MNIST, cached=True)
    assert cached.phase1_event(REPLACE) == Gaussian(MNIST.mu)
    assert cached.phase1_event(ZERO_OUT) == Gaussian(MNIST.mu / 2)
    for epochs in (None, 1.0, 1_000.0):
        assert replace(cached, phase1_epochs=epochs).event(REPLACE) == cached.event(REPLACE)
    # One image each for ever costs more than three epochs of fresh ones, less than very many.
    fresh = epsilon([MNIST.phase1_event(ZERO_OUT)], DELTA)  # pyright: ignore[reportArgumentType]
    assert epsilon([cached.phase1_event(ZERO_OUT)], DELTA) > fresh  # pyright: ignore[reportArgumentType]


def test_a_later_boundary_costs_less() -> None:
    costs = [sound_epsilon(replace(SMALL, boundary=s), DELTA) for s in (900, 940, 980, 1001)]
    assert costs == sorted(costs, reverse=True)
    assert replace(SMALL, boundary=1).mu > 1_000


@pytest.mark.long
@pytest.mark.parametrize("adjacency", [ZERO_OUT, REPLACE])
def test_calibrated_dp_promise_reaches_its_target_from_below(adjacency: Adjacency) -> None:
    plan = calibrated(SMALL, 3.0, DELTA, adjacency)
    assert 3.0 * (1 - 1e-3) <= sound_epsilon(plan, DELTA, adjacency) <= 3.0
    assert replace(plan, sigma=SMALL.sigma) == SMALL


@pytest.mark.long
@pytest.mark.parametrize("adjacency", [ZERO_OUT, REPLACE])
@pytest.mark.parametrize("plan", [SMALL, DpSadPlan(1_000, 100, 5, 1.0)])
def test_what_comes_before_is_part_of_the_target(
    plan: DpPromisePlan | DpSadPlan, adjacency: Adjacency
) -> None:
    before = [Gaussian(0.3), Gaussian(0.4)]
    left = calibrated(plan, 3.0, DELTA, adjacency, before=before)
    found = epsilon([*before, left.event(adjacency)], DELTA)
    assert 3.0 * (1 - 1e-3) <= found <= 3.0
    assert epsilon([Together((*before, left.event(adjacency)))], DELTA) == found
    assert left.sigma > calibrated(plan, 3.0, DELTA, adjacency).sigma


@pytest.mark.long
def test_a_target_that_what_comes_before_exceeds_alone_is_refused() -> None:
    with pytest.raises(ConfigError, match="noise multiplier below"):
        calibrated(SAD, 1.0, DELTA, before=[Gaussian(1.0)])
    with pytest.raises(ConfigError, match="Phase I and the private start cost epsilon="):
        calibrated(SMALL, 1.0, DELTA, before=[Gaussian(1.0)])


@pytest.mark.parametrize("target", [1.0, 10.0])
def test_calibrated_by_the_papers_figures(target: float) -> None:
    promise = calibrated(SMALL, target, DELTA, by=CalibrateBy.PUBLISHED)
    sad = calibrated(SAD, target, DELTA, by=CalibrateBy.PUBLISHED)
    for printed in (promise.published(DELTA), sad.published(DELTA)):
        assert target * (1 - 1e-3) <= printed.epsilon <= target
    assert sad.multiplier < 0.7  # where even one private training costs more than 8


def test_phase_one_beyond_the_budget_names_the_smallest_boundary_that_fits() -> None:
    plan = replace(SMALL, boundary=700, cached=True)
    with pytest.raises(ConfigError, match=r"boundary=700 >= \d+: Phase I alone.*raise") as refused:
        calibrated(plan, 1.0, DELTA)
    smallest = int(str(refused.value).split(">= ")[1].split(":")[0])
    assert smallest_boundary(plan, 1.0, DELTA, above=smallest - 2) == smallest
    fits, fails = (
        replace(plan, boundary=s).phase1_event(ZERO_OUT) for s in (smallest, smallest - 1)
    )
    assert fits is not None
    assert fails is not None
    assert epsilon([fits], DELTA) < 1.0
    assert epsilon([fails], DELTA) > 1.0 * (1 - 3e-3)


def test_a_refusal_composes_once_and_names_a_boundary_that_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server may make a holder plan what does not fit, as often as it likes."""
    composed: list[list[Event]] = []

    def count(events: list[Event], delta: float) -> float:
        composed.append(events)
        return epsilon(events, delta)

    monkeypatch.setattr("fedtranscribe.privacy.diffusion_noise.epsilon_of_plan", count)
    plan = replace(SMALL, boundary=700)
    with pytest.raises(ConfigError, match=r"boundary=700 >= \d+: Phase I alone") as refused:
        calibrated(plan, 1.0, DELTA)
    assert len({tuple(events) for events in composed}) <= 1
    named = int(str(refused.value).split(">= ")[1].split(":")[0])
    assert sound_epsilon(replace(plan, boundary=named, sigma=1e3), DELTA) < 1.0


@pytest.mark.parametrize(("target", "delta"), [(1e-9, DELTA), (2e-4, 0.01)])
def test_an_epsilon_that_cannot_be_told_from_none(target: float, delta: float) -> None:
    with pytest.raises(ConfigError, match=f"epsilon={target:g}"):
        calibrated(DpSadPlan(1_500, 100, 1.0, 1.0), target, delta)


def test_no_boundary_fits_a_tiny_budget() -> None:
    plan = replace(SMALL, dimensions=10**6, boundary=900, cached=True)
    with pytest.raises(ConfigError, match="no Phase I at all"):
        calibrated(plan, 0.01, DELTA)


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (SAD, 0.977),
        (replace(SAD, sigma=0.6), 9.48),
        (replace(SAD, sigma=2.54, teacher=Teacher.DP), 1.0),
        (replace(SAD, sigma=0.66, teacher=Teacher.DP), 10.0),
    ],
)
def test_dp_sad_of_the_privacy_law(plan: DpSadPlan, expected: float) -> None:
    assert sound_epsilon(plan, DELTA, ADD_REMOVE) == pytest.approx(expected, rel=0.01)
    assert sound_epsilon(plan, DELTA, ZERO_OUT) == sound_epsilon(plan, DELTA, ADD_REMOVE)
    # Renyi as the second opinion, by the library.
    accountant = rdp_privacy_accountant.RdpAccountant()
    step = PoissonSampledDpEvent(128 / 60_000, GaussianDpEvent(plan.sigma))
    accountant.compose(step, plan.steps)
    second = accountant.get_epsilon(DELTA)
    assert sound_epsilon(plan, DELTA, ADD_REMOVE) <= second <= 1.15 * expected


def test_dp_sad_counts_its_private_trainings() -> None:
    assert SAD.steps == 46_875
    assert replace(SAD, teacher=Teacher.DP).steps == 2 * SAD.steps
    all_three = replace(SAD, teacher=Teacher.DP, discriminator=Discriminator.DP)
    assert (all_three.trainings, all_three.steps) == (3, 3 * SAD.steps)
    assert set(SAD.release().costs[Unit.RECORD]) == set(Adjacency)


def test_diluted_noise_costs_millions() -> None:
    diluted = replace(SAD, dilution=500)
    assert diluted.multiplier == pytest.approx(0.0038)
    assert sound_epsilon(diluted, DELTA) > 1e6
    # To reach ε = 1 after all, ask for 500 times the noise.
    small = DpSadPlan(1_000, 100, 5, 1.0, dilution=500)
    plain = replace(small, dilution=1)
    assert calibrated(small, 1.0, DELTA).sigma == pytest.approx(
        500 * calibrated(plain, 1.0, DELTA).sigma, rel=2e-3
    )


@pytest.mark.long
def test_calibrated_dp_sad_reaches_its_target_from_below() -> None:
    small = DpSadPlan(1_000, 100, 5, 1.0, Teacher.DP)
    for target in (0.5, 8.0):
        plan = calibrated(small, target, DELTA, REPLACE)
        assert target * (1 - 1e-3) <= sound_epsilon(plan, DELTA, REPLACE) <= target


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: replace(MNIST, boundary=0), "boundary=0 between 1 and 1001"),
        (lambda: replace(MNIST, boundary=1002), "boundary=1002"),
        (lambda: replace(MNIST, phase1_batch=70_000), "phase1_batch=70000 <= 60000 records"),
        (lambda: replace(MNIST, phase2_batch=70_000), "phase2_batch=70000 <= 60000 records"),
        (lambda: replace(MNIST, phase2_batch=0), "phase2_batch=0"),
        (lambda: replace(MNIST, phase1_batch=None), "batch and epochs for Phase I"),
        (lambda: replace(MNIST, phase1_epochs=0), "phase1_epochs=0 > 0"),
        (lambda: replace(MNIST, phase2_epochs=-1), "epochs=-1 > 0"),
        (lambda: replace(MNIST, sigma=0).event(ZERO_OUT), "sigma=0 > 0"),
        (lambda: replace(MNIST, sigma=math.nan), "sigma=nan"),
        (lambda: replace(MNIST, dimensions=0), "dimensions=0 >= 1"),
        (lambda: replace(MNIST, records=0), "records=0 >= 1"),
        (lambda: replace(SAD, batch=60_001), "batch=60001 <= 60000 records"),
        (lambda: replace(SAD, dilution=0), "dilution=0 >= 1"),
        (lambda: replace(SAD, epochs=0), "epochs=0 > 0"),
        (lambda: calibrated(SAD, 0.0, DELTA), "epsilon=0.0 > 0"),
        (lambda: calibrated(SAD, 1.0, 1.0), "delta=1.0 < 1"),
    ],
)
def test_values_out_of_range(build, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build()
