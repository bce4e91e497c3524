import math

import pytest

from fedtranscribe.errors import ConfigError
from fedtranscribe.privacy.published import (
    diffusion_signal,
    dp_promise_theorem2,
    dp_sad_theorem4,
    dpsd_theorem1,
    dpsd_theorem2,
    published_sigma,
    sampling_probability,
    sgd_steps,
    sound_dp_promise,
    sound_dp_sad,
    sound_dpsd,
    whole_batch_signal,
)

DELTA = 1e-5
N = 60_000


@pytest.mark.parametrize(("beta", "expected"), [(1e-3, 0.046), (5e-3, 0.261)])
def test_theorem1_at_the_published_settings(beta: float, expected: float) -> None:
    paper = dpsd_theorem1(100, beta, 10, 256, 200, DELTA)
    assert paper.epsilon == pytest.approx(expected, abs=5e-4)
    assert "beta" in paper.reason
    assert "Theorem 1" in paper.source


def test_theorem1_is_its_own_formula_at_the_best_order() -> None:
    rate = 2 * 5e-3**2 * 10 * 256 * 200 / 100**2
    orders = [1 + i / 100 for i in range(1, 400_000)]
    formula = min(rate * q + math.log((q - 1) / q) - math.log(q * DELTA) / (q - 1) for q in orders)
    paper = dpsd_theorem1(100, 5e-3, 10, 256, 200, DELTA)
    assert paper.epsilon == pytest.approx(formula, rel=1e-3)


def test_sound_readings_of_eq3() -> None:
    readings = sound_dpsd(100, 256, 200, DELTA)
    assert readings["row-wise"] == pytest.approx(28.8, abs=0.05)
    assert readings["whole-batch"] == pytest.approx(1.06, abs=0.005)
    assert whole_batch_signal(100, 10, 256) == pytest.approx(2e-4, rel=0.02)


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 10.0])
def test_published_sigma_inverts_theorem1(epsilon: float) -> None:
    sigma = published_sigma(epsilon, DELTA, 1e-3, 10, 51_200)
    assert dpsd_theorem1(sigma, 1e-3, 10, 256, 200, DELTA).epsilon == pytest.approx(epsilon)


def test_theorem2_prints_what_one_label_costs() -> None:
    paper = dpsd_theorem2(0.1)
    assert (paper.epsilon, paper.delta) == (0.1, 0.0)
    assert "compose" in paper.reason


def test_dp_sad() -> None:
    steps = sgd_steps(100, 128, N)
    assert steps == 46_875
    paper = dp_sad_theorem4(1.9, 1e-6, 784, 128, steps, DELTA)
    rate = 2 * 1e-12 * 784 * 128 * steps / 1.9**2
    orders = [1 + i / 100 for i in range(1, 400_000)]
    formula = min(rate * q + math.log((q - 1) / q) - math.log(q * DELTA) / (q - 1) for q in orders)
    assert paper.epsilon == pytest.approx(formula, rel=1e-3)
    readings = sound_dp_sad(1.9, 128, N, steps, 500, DELTA)
    assert readings["undiluted"] == pytest.approx(0.977, abs=1e-3)
    assert readings["diluted"] == pytest.approx(5e6, rel=0.05)
    assert readings["image-space"] == math.inf


def test_dp_promise() -> None:
    q1, q2 = 32 / N, 4096 / N
    steps1, steps2 = sgd_steps(3, 32, N), sgd_steps(50, 4096, N)
    assert (steps1, steps2) == (5625, 733)
    paper = dp_promise_theorem2(7, 784, 900, q1, steps1, q2, steps2, DELTA)
    # The paper calls this ε = 1.
    assert paper.epsilon == pytest.approx(1.0, abs=0.02)
    readings = sound_dp_promise(7, q2, steps2, steps1, DELTA)
    assert readings["as published"] == math.inf
    # The privacy law has 1.006 and 2.13 for both phases of the fixed method.
    assert 0.9 < readings["phase II alone, zero-out"] < 1.006
    assert 2.0 < readings["phase II alone, replace"] < 2.13
    assert "Phase I as published has no guarantee" in paper.reason
    without = sound_dp_promise(7, q2, steps2, 0, DELTA)
    assert without["as published"] == without["phase II alone, zero-out"]
    paper = dp_promise_theorem2(7, 784, 900, q1, 0, q2, steps2, DELTA)
    assert paper.epsilon < without["as published"]
    assert "Phase I" not in paper.reason
    assert "central limit theorem" in paper.reason


def test_dp_promise_by_hand() -> None:
    kept = diffusion_signal(900)
    mu1 = 32 / N * math.sqrt(5625 * math.expm1(4 * 784 * kept / (1 - kept)))
    mu2 = 4096 / N * math.sqrt(733 * math.expm1(1 / 49))
    paper = dp_promise_theorem2(7, 784, 900, 32 / N, 5625, 4096 / N, 733, DELTA)
    mu = math.hypot(mu1, mu2)

    def phi(x: float) -> float:
        return math.erfc(-x / math.sqrt(2)) / 2

    e = paper.epsilon
    assert phi(mu / 2 - e / mu) - math.exp(e) * phi(-mu / 2 - e / mu) == pytest.approx(
        DELTA, rel=1e-6
    )


def test_dp_promise_with_a_hopeless_boundary_is_infinite() -> None:
    assert dp_promise_theorem2(7, 784, 1, 0.1, 10, 0.1, 10, DELTA).epsilon == math.inf


def test_diffusion_signal() -> None:
    assert diffusion_signal(1) == pytest.approx(1 - 1e-4)
    assert diffusion_signal(1000) == pytest.approx(4.04e-5, rel=1e-2)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: dpsd_theorem1(0, 1e-3, 10, 256, 200, DELTA), "sigma=0 > 0"),
        (lambda: dpsd_theorem1(100, -1, 10, 256, 200, DELTA), "beta=-1 > 0"),
        (lambda: dpsd_theorem1(100, 1, 10, 256, 200, 1.5), "delta=1.5"),
        (lambda: dpsd_theorem2(-0.1), "epsilon0=-0.1"),
        (lambda: dp_sad_theorem4(1, 0, 1, 1, 1, DELTA), "clip=0"),
        (lambda: sampling_probability(100, 10), "batch=100 <= records=10"),
        (lambda: sgd_steps(0, 1, 1), "epochs=0 > 0"),
        (lambda: dp_promise_theorem2(7, 784, 1001, 0.1, 1, 0.1, 1, DELTA), "boundary=1001"),
        (lambda: dp_promise_theorem2(7, 784, 900, 0.1, -1, 0.1, 1, DELTA), "steps1=-1"),
    ],
)
def test_values_out_of_range(build, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build()
