"""The papers' own formulas, each with the reason why its figure is not a guarantee.

A published figure is never called ε on a screen without the sound one beside it. Each function
evaluates its formula to the letter; the `sound_…` functions say what the same settings really
cost, under the readings of the text that have a guarantee at all.
"""

import math
from dataclasses import dataclass

from fedtranscribe.errors import ConfigError
from fedtranscribe.privacy.accountant import epsilon as epsilon_of_plan
from fedtranscribe.privacy.closed_forms import gaussian_epsilon, root, zcdp_epsilon
from fedtranscribe.privacy.events import PoissonGaussian
from fedtranscribe.privacy.units import Adjacency, expect_delta, expect_epsilon

_DPSD = "Privacy-Preserving Model Transcription with Differentially Private Synthetic Distillation"
_DP_SAD = "Learning Differentially Private Diffusion Models via Stochastic Adversarial Distillation"
_DP_PROMISE = "dp-promise: Differentially Private Diffusion Probabilistic Models"

BETA_FIRST, BETA_LAST = 1e-4, 2e-2

TIME_STEPS = 1_000
"""T of dp-promise, over which its betas rise linearly."""


_OF_PHASE1 = (
    "Phase I as published has no guarantee: its regression target and the noisy image together "
    "give back the private image exactly, so the gradient is not a function of the noisy image. "
    "Theorem 2 also mixes two adjacencies (replace in Phase I, add-remove in Phase II), and its "
    "central limit theorem is not an upper bound."
)
_OF_PHASE2 = "Theorem 2 rests on a central limit theorem, which is not an upper bound on ε."


@dataclass(frozen=True)
class Published:
    """A paper's figure.

    Attributes:
        epsilon: what the formula prints.
        delta: at this δ.
        reason: why it is no guarantee.
        source: paper and theorem.
    """

    epsilon: float
    delta: float
    reason: str
    source: str


def dpsd_theorem1(
    sigma: float, beta: float, classes: int, batch: int, rounds: int, delta: float
) -> Published:
    """DPSD Theorem 1: ε = 2 β² c b T q / σ² + ln((q − 1)/q) − ln(δ q)/(q − 1), best q > 1.

    That is the conversion of ρ-zCDP with ρ = 2 β² c b T / σ².

    Args:
        sigma: σ of Eq. 3.
        beta: norm bound β of a row.
        classes: c.
        batch: b, rows per round.
        rounds: T.
        delta: δ.

    Raises:
        ConfigError: a value is not positive, or delta is not inside (0, 1).
    """
    _expect_positive(sigma=sigma, beta=beta, classes=classes, batch=batch, rounds=rounds)
    expect_delta(delta)
    return Published(
        zcdp_epsilon(2 * beta**2 * classes * batch * rounds / sigma**2, delta),
        delta,
        "Eq. 3 adds noise of std sigma*beta to rows of norm beta, so beta cancels. Theorem 1 has "
        "beta in the sensitivity and forgets it in the noise, as if there were 1/beta times more "
        "noise than there is; it also takes a row to be sqrt(c) times longer than it is.",
        f"{_DPSD}, Theorem 1",
    )


def published_sigma(epsilon: float, delta: float, beta: float, classes: int, rows: int) -> float:
    """σ at which Theorem 1 prints `epsilon` for `rows` = b·T rows; for `--calibrate-by published`.

    Raises:
        ConfigError: a value is out of range.
    """
    expect_epsilon(epsilon)
    expect_delta(delta)
    _expect_positive(beta=beta, classes=classes, rows=rows)
    upper = 1.0
    while zcdp_epsilon(upper, delta) < epsilon:
        upper *= 2
    rho = root(lambda rho: zcdp_epsilon(rho, delta) - epsilon, 0.0, upper)
    return beta * math.sqrt(2 * classes * rows / rho)


def sound_dpsd(sigma: float, batch: int, rounds: int, delta: float) -> dict[str, float]:
    """ε of the two readings of Eq. 3 for one teacher, by name; β cancels in both.

    - "row-wise": each row normalised to β, noise std σβ: μ = 2 √(b T) / σ.
    - "whole-batch": the gradient matrix of a batch normalised to β as a whole, the same noise:
      μ = 2 √T / σ, with a signal per entry far below the noise.

    Raises:
        ConfigError: a value is not positive, or delta is not inside (0, 1).
    """
    _expect_positive(sigma=sigma, batch=batch, rounds=rounds)
    expect_delta(delta)
    return {
        "row-wise": gaussian_epsilon(2 * math.sqrt(batch * rounds) / sigma, delta),
        "whole-batch": gaussian_epsilon(2 * math.sqrt(rounds) / sigma, delta),
    }


def whole_batch_signal(sigma: float, classes: int, batch: int) -> float:
    """Size of one entry over its noise when a whole batch is normalised: 1 / (σ √(b c))."""
    _expect_positive(sigma=sigma, classes=classes, batch=batch)
    return 1 / (sigma * math.sqrt(batch * classes))


def dpsd_theorem2(epsilon0: float) -> Published:
    """DPSD Theorem 2: label-sensitive mode is (ε0, 0)-LabelDP, however many images are labelled.

    Raises:
        ConfigError: epsilon0 is negative or not finite.
    """
    if not (epsilon0 >= 0 and math.isfinite(epsilon0)):
        raise ConfigError(f"Expected epsilon0={epsilon0} >= 0 and finite.")
    return Published(
        epsilon0,
        0.0,
        "Theorem 2 protects the teacher's label of one synthetic image. One private record can "
        "change the labels of all images, so for the training set the queries compose. Besides, "
        "Eq. 5 with Eq. 4 over all classes is not (epsilon, 0)-DP even for one image; the sound "
        "figure randomises over the student's own set.",
        f"{_DPSD}, Theorem 2",
    )


def dp_sad_theorem4(
    sigma: float, clip: float, dimensions: int, batch: int, steps: int, delta: float
) -> Published:
    """DP-SAD Theorem 4: ε = 2 C² s B N λ / σ² + ln((λ − 1)/λ) − ln(δ λ)/(λ − 1), best λ > 1.

    Args:
        sigma: σ of Eq. 14.
        clip: norm bound C.
        dimensions: s, length of a gradient vector.
        batch: B.
        steps: N, iterations.
        delta: δ.

    Raises:
        ConfigError: a value is not positive, or delta is not inside (0, 1).
    """
    _expect_positive(sigma=sigma, clip=clip, dimensions=dimensions, batch=batch, steps=steps)
    expect_delta(delta)
    return Published(
        zcdp_epsilon(2 * clip**2 * dimensions * batch * steps / sigma**2, delta),
        delta,
        "The 1/T of Eqs. 14-17 divides the noise but not the sensitivity, so the real multiplier "
        "is sigma/T; the noise has std sigma*C, so C cancels, which Theorem 4 forgets. Eq. 17 "
        "clips in image space and then multiplies by a Jacobian that depends on the private "
        "image, which has no guarantee at all, and the teacher is not private.",
        f"{_DP_SAD}, Theorem 4",
    )


def sound_dp_sad(
    sigma: float, batch: int, records: int, steps: int, time_steps: int, delta: float
) -> dict[str, float]:
    """ε of the student's updates under readings of Eqs. 14-17, zero-out, by name.

    All suppose Poisson batches, per-sample clipping, and a teacher and discriminator that are
    public or private themselves.

    - "diluted": parameter-space clipping and noise divided by T, Eqs. 14-15.
    - "undiluted": noise not divided by T; ordinary DP-SGD.
    - "image-space": Eq. 17 as printed; infinite.

    Raises:
        ConfigError: a value is not positive, or batch exceeds records.
    """
    _expect_positive(sigma=sigma, batch=batch, records=records, steps=steps, time_steps=time_steps)
    q = sampling_probability(batch, records)
    return {
        "diluted": epsilon_of_plan([PoissonGaussian(q, sigma / time_steps, steps)], delta),
        "undiluted": epsilon_of_plan([PoissonGaussian(q, sigma, steps)], delta),
        "image-space": math.inf,
    }


def dp_promise_theorem2(
    sigma: float,
    dimensions: int,
    boundary: int,
    sampling1: float,
    steps1: int,
    sampling2: float,
    steps2: int,
    delta: float,
) -> Published:
    """dp-promise Theorem 2: μ² = μ1² + μ2², μi = p_i √(N_i (e^{m_i²} − 1)), then δ(ε) of μ-GDP.

    Phase I has m1² = 4 d ᾱ_S / (1 − ᾱ_S), Phase II m2 = 1/σ. Betas rise linearly from 1e-4 to
    2e-2 over 1,000 time steps, as in the paper.

    Args:
        sigma: noise multiplier of Phase II.
        dimensions: d, numbers in an image.
        boundary: S, the first time step of Phase I, 1..1000.
        sampling1: p1 = m1/n of Phase I.
        steps1: N1; 0 leaves Phase I out.
        sampling2: p2 = m2/n of Phase II.
        steps2: N2.
        delta: δ.

    Raises:
        ConfigError: a value is out of range.
    """
    _expect_positive(sigma=sigma, dimensions=dimensions, sampling1=sampling1, sampling2=sampling2)
    expect_delta(delta)
    if not 1 <= boundary <= TIME_STEPS:
        raise ConfigError(f"Expected boundary={boundary} between 1 and {TIME_STEPS}.")
    if steps1 < 0 or steps2 < 0:
        raise ConfigError(f"Expected steps1={steps1} >= 0 and steps2={steps2} >= 0.")
    signal = diffusion_signal(boundary)
    squares = [
        p**2 * steps * _expm1(exponent)
        for p, steps, exponent in (
            (sampling1, steps1, 4 * dimensions * signal / (1 - signal)),
            (sampling2, steps2, 1 / sigma**2),
        )
        if steps
    ]
    return Published(
        gaussian_epsilon(math.sqrt(sum(squares)), delta),
        delta,
        _OF_PHASE1 if steps1 else _OF_PHASE2,
        f"{_DP_PROMISE}, Theorem 2",
    )


def sound_dp_promise(
    sigma: float, sampling2: float, steps2: int, steps1: int, delta: float
) -> dict[str, float]:
    """ε of the published dp-promise by name: infinite with Phase I, else that of Phase II.

    Raises:
        ConfigError: a value is out of range.
    """
    readings = {
        f"phase II alone, {adjacency.value}": epsilon_of_plan(
            [PoissonGaussian(sampling2, sigma, steps2, adjacency)] if steps2 else [], delta
        )
        for adjacency in (Adjacency.ZERO_OUT, Adjacency.REPLACE)
    }
    whole = math.inf if steps1 else readings["phase II alone, zero-out"]
    return {"as published": whole, **readings}


def diffusion_signal(
    step: int,
    time_steps: int = TIME_STEPS,
    beta_first: float = BETA_FIRST,
    beta_last: float = BETA_LAST,
) -> float:
    """ᾱ_t = Π (1 − β_s) over s <= t, β linear; the defaults are dp-promise's schedule."""
    rise = (beta_last - beta_first) / max(1, time_steps - 1)
    return math.exp(math.fsum(math.log1p(-(beta_first + rise * s)) for s in range(step)))


def sampling_probability(batch: int, records: int) -> float:
    """The coin of a Poisson batch with `batch` records expected.

    Raises:
        ConfigError: batch exceeds records, or one is not positive.
    """
    _expect_positive(batch=batch, records=records)
    if batch > records:
        raise ConfigError(f"Expected batch={batch} <= records={records}.")
    return batch / records


def sgd_steps(epochs: float, batch: int, records: int) -> int:
    """Steps of a whole run: epochs · records / batch, rounded up.

    Raises:
        ConfigError: a value is not positive.
    """
    _expect_positive(epochs=epochs, batch=batch, records=records)
    return math.ceil(epochs * records / batch)


def _expm1(exponent: float) -> float:
    return math.expm1(exponent) if exponent < 700 else math.inf


def _expect_positive(**values: float) -> None:
    for name, value in values.items():
        if not (value > 0 and math.isfinite(value)):
            raise ConfigError(f"Expected {name}={value} > 0 and finite.")
