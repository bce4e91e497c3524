"""`fedtranscribe privacy …`: what a plan costs and carries, before anything is spent.

Every command answers in one schema: the headline at the top level (`epsilon`, `delta`, `unit`,
`adjacency`, `accountant`; `noise_std` and `signal` where they apply), `sound` with ε under each
adjacency, and `published` with the paper's figure and why it is no guarantee.
"""

import math
from typing import Annotated, Any

import typer

from fedtranscribe.cli import privacy_diffusion, published
from fedtranscribe.cli.options import (
    AdjacencyOption,
    Answer,
    Batch,
    Classes,
    Colluders,
    Delta,
    Dropouts,
    Epochs,
    Epsilon,
    Holders,
    Json,
    LabelEpsilon,
    Noise,
    Queries,
    Records,
    Rows,
    SetSize,
    Sigma,
    Teachers,
    UnitOption,
    group,
)
from fedtranscribe.cli.output import emit
from fedtranscribe.errors import ConfigError
from fedtranscribe.privacy.accountant import epsilon as epsilon_of_plan
from fedtranscribe.privacy.accountant import quote
from fedtranscribe.privacy.calibrate import EnsembleLayout, label_epsilon0, row_mu
from fedtranscribe.privacy.calibrate import noise_std as calibrated_std
from fedtranscribe.privacy.events import Event, Gaussian, PoissonGaussian
from fedtranscribe.privacy.forecasts import Forecast, label_forecast
from fedtranscribe.privacy.forecasts import forecast as forecast_of_plan
from fedtranscribe.privacy.label_events import RandomizedResponse
from fedtranscribe.privacy.published import (
    Published,
    dpsd_theorem2,
    sampling_probability,
    sgd_steps,
)
from fedtranscribe.privacy.release_plan import NoisePlan
from fedtranscribe.privacy.units import Adjacency, NoiseMode, RowAnswer, Unit, expect

privacy_app = group("Privacy calculators: cost, noise and information of a plan.")
calibrate_app = group("How much noise a target ε needs.")
account_app = group("What given noise costs.")
forecast_app = group("A bound on what the answers can carry, whatever is done with them.")
privacy_app.add_typer(calibrate_app, name="calibrate")
privacy_app.add_typer(account_app, name="account")
privacy_app.add_typer(forecast_app, name="forecast")
privacy_app.add_typer(published.published_app, name="published")
account_app.command("dp-promise")(privacy_diffusion.account_dp_promise)
account_app.command("dp-sad")(privacy_diffusion.account_dp_sad)
calibrate_app.command("dp-promise")(privacy_diffusion.calibrate_dp_promise)
calibrate_app.command("dp-sad")(privacy_diffusion.calibrate_dp_sad)

_NO_THEOREM1 = (
    "Theorem 1 takes sigma and beta, which this plan does not have; see `fedtranscribe privacy "
    "published dpsd`."
)
_NO_PAPER = "No formula of the papers covers plain DP-SGD."


@calibrate_app.command("dpsd")
def calibrate_dpsd(
    epsilon: Epsilon,
    rows: Rows,
    teachers: Teachers,
    holders: Holders = 1,
    unit: UnitOption = Unit.RECORD,
    noise: Noise = NoiseMode.CENTRAL,
    dropouts: Dropouts = None,
    colluders: Colluders = None,
    answer: Answer = RowAnswer.GRADIENT,
    classes: Classes = 10,
    delta: Delta = 1e-5,
    json: Json = False,
) -> None:
    """Noise std per coordinate on the mean of unit-norm rows, for a target ε.

    \b
    Examples:
      fedtranscribe privacy calibrate dpsd --epsilon 10 --rows 50000 --teachers 250
      fedtranscribe privacy calibrate dpsd --epsilon 10 --rows 50000 --teachers 250 \\
          --unit holder --holders 5 --noise local --json
      fedtranscribe privacy calibrate dpsd --epsilon 10 --rows 50000 --teachers 250 \\
          --holders 5 --noise secagg --dropouts 1 --colluders 1
    """
    layout = EnsembleLayout(teachers, holders)
    failures = _failures(noise, dropouts, colluders)
    plan = _row_noise(epsilon, delta, rows, classes, layout, unit, answer, noise, failures)
    _emit_rows(plan, rows, layout, unit, answer, classes, delta, json, "DPSD noise for a target ε")


@calibrate_app.command("label")
def calibrate_label(
    epsilon: Epsilon,
    queries: Queries,
    classes: SetSize,
    unit: UnitOption = Unit.RECORD,
    delta: Delta = 1e-5,
    json: Json = False,
) -> None:
    """ε0 of one randomised label of one teacher, for a target ε of all labels.

    \b
    Example:
      fedtranscribe privacy calibrate label --epsilon 10 --queries 1000 --classes 10
    """
    epsilon0 = label_epsilon0(epsilon, delta, queries, classes)
    _emit_labels(epsilon0, queries, classes, unit, delta, json, "Label strength for a target ε")


@account_app.command("dpsd")
def account_dpsd(
    noise_std: Annotated[
        float, typer.Option(help="Noise std per coordinate on the mean of unit-norm rows.")
    ],
    rows: Rows,
    teachers: Teachers,
    holders: Holders = 1,
    unit: UnitOption = Unit.RECORD,
    noise: Noise = NoiseMode.CENTRAL,
    dropouts: Dropouts = None,
    colluders: Colluders = None,
    answer: Answer = RowAnswer.GRADIENT,
    classes: Classes = 10,
    delta: Delta = 1e-5,
    json: Json = False,
) -> None:
    """ε of noisy rows; the inverse of `calibrate dpsd`.

    \b
    Example:
      fedtranscribe privacy account dpsd --noise-std 0.894 --rows 50000 --teachers 250
    """
    expect(0 < noise_std < math.inf, f"0 < noise_std={noise_std} < inf")
    layout = EnsembleLayout(teachers, holders)
    plan = NoisePlan(noise, noise_std, holders, *_failures(noise, dropouts, colluders))
    _emit_rows(plan, rows, layout, unit, answer, classes, delta, json, "DPSD cost")


@account_app.command("label")
def account_label(
    epsilon0: LabelEpsilon,
    queries: Queries,
    classes: SetSize,
    unit: UnitOption = Unit.RECORD,
    delta: Delta = 1e-5,
    json: Json = False,
) -> None:
    """ε of many randomised labels of one teacher, by optimal composition.

    \b
    Example:
      fedtranscribe privacy account label --epsilon0 0.1 --classes 10 --queries 1000
    """
    _emit_labels(epsilon0, queries, classes, unit, delta, json, "Cost of randomised labels")


@account_app.command("dp-sgd")
def account_dp_sgd(
    records: Records,
    batch: Batch,
    epochs: Epochs,
    sigma: Sigma,
    adjacency: AdjacencyOption = Adjacency.ZERO_OUT,
    delta: Delta = 1e-5,
    json: Json = False,
) -> None:
    """ε of DP-SGD with Poisson batches, divided by the expected batch size.

    \b
    Example:
      fedtranscribe privacy account dp-sgd --records 60000 --batch 128 --epochs 100 --sigma 0.6
    """
    q, steps = sampling_probability(batch, records), sgd_steps(epochs, batch, records)
    events = {
        each: PoissonGaussian(q, sigma, steps, each)
        for each in (Adjacency.ZERO_OUT, Adjacency.REPLACE, Adjacency.ADD_REMOVE)
    }
    result = _headline(events, Unit.RECORD, adjacency, delta)
    result |= {"steps": steps, "sampling_probability": q}
    result |= _both(events, delta, None, _NO_PAPER)
    emit(result, json, "DP-SGD cost")


@forecast_app.command("dpsd")
def forecast_dpsd(
    epsilon: Epsilon,
    teachers: Teachers,
    holders: Holders = 1,
    unit: UnitOption = Unit.RECORD,
    noise: Noise = NoiseMode.CENTRAL,
    dropouts: Dropouts = None,
    colluders: Colluders = None,
    answer: Answer = RowAnswer.GRADIENT,
    classes: Classes = 10,
    rows: Annotated[
        int | None, typer.Option(help="Rows asked; they change the noise, not the signal.")
    ] = None,
    delta: Delta = 1e-5,
    json: Json = False,
) -> None:
    """The most that noisy rows can say about the teachers, and whether anybody can learn from it.

    \b
    Examples:
      fedtranscribe privacy forecast dpsd --epsilon 10 --teachers 5
      fedtranscribe privacy forecast dpsd --epsilon 1 --teachers 1000 --json
    """
    layout = EnsembleLayout(teachers, holders)
    failures = _failures(noise, dropouts, colluders)
    seen = forecast_of_plan(epsilon, delta, layout, unit, answer, noise, classes)
    plan = _row_noise(epsilon, delta, rows or 1, classes, layout, unit, answer, noise, failures)
    events = _row_events(plan, rows or 1, layout, unit, answer, classes)
    result = _headline(events, unit, Adjacency.ZERO_OUT, delta)
    if rows is not None:
        result["noise_std"] = plan.strength
    emit(result | _forecast(seen) | _both(events, delta, None, _NO_THEOREM1), json, "DPSD forecast")


def _failures(noise: NoiseMode, dropouts: int | None, colluders: int | None) -> tuple[int, int]:
    if noise is NoiseMode.SECAGG:
        return 1 if dropouts is None else dropouts, 1 if colluders is None else colluders
    if dropouts is not None or colluders is not None:
        raise ConfigError(
            f"Expected --dropouts and --colluders with --noise secagg alone, got --noise {noise}; "
            "leave them out."
        )
    return 0, 0


def _row_noise(
    epsilon: float,
    delta: float,
    rows: int,
    classes: int,
    layout: EnsembleLayout,
    unit: Unit,
    answer: RowAnswer,
    noise: NoiseMode,
    failures: tuple[int, int],
) -> NoisePlan:
    if noise is NoiseMode.SECAGG:
        # Masked sums alone need torch, which takes seconds to import.
        from fedtranscribe.questions.rows import row_noise

        return row_noise(epsilon, delta, rows, classes, layout, unit, answer, noise, failures)
    std = calibrated_std(epsilon, delta, rows, layout, unit, answer, noise)
    return NoisePlan(noise, std, layout.holders)


def _emit_rows(
    plan: NoisePlan,
    rows: int,
    layout: EnsembleLayout,
    unit: Unit,
    answer: RowAnswer,
    classes: int,
    delta: float,
    json: bool,
    title: str,
) -> None:
    events = _row_events(plan, rows, layout, unit, answer, classes)
    result = _headline(events, unit, Adjacency.ZERO_OUT, delta)
    result |= {"noise_std": plan.strength, "signal": rows / plan.strength**2}
    if plan.mode is NoiseMode.SECAGG:
        result |= {"dropouts": plan.dropouts, "colluders": plan.colluders}
    emit(result | _both(events, delta, None, _NO_THEOREM1), json, title)


def _row_events(
    plan: NoisePlan,
    rows: int,
    layout: EnsembleLayout,
    unit: Unit,
    answer: RowAnswer,
    classes: int,
) -> dict[Adjacency, Event]:
    """What a holder's ledger books for such rows, where records have persistent ids."""
    if plan.mode is not NoiseMode.SECAGG:
        # One pair for all three: a unit's row may end anywhere in its ball, whatever the change.
        mu = row_mu(plan.strength, layout, unit, answer, plan.mode)
        return dict.fromkeys(Adjacency, Gaussian(mu, rows))

    from fedtranscribe.noise.mechanisms import gaussian_mechanism
    from fedtranscribe.questions.rows import mean_rows_bound

    bound = mean_rows_bound(layout.shards, answer, classes)
    release = gaussian_mechanism(bound, plan).release(rows, positional_ids=False)
    return dict(release.costs[unit])


def _emit_labels(
    epsilon0: float, queries: int, classes: int, unit: Unit, delta: float, json: bool, title: str
) -> None:
    events = dict.fromkeys(Adjacency, RandomizedResponse(epsilon0, classes, queries))
    result = _headline(events, unit, Adjacency.ZERO_OUT, delta) | {"epsilon0": epsilon0}
    if classes > 1:
        result |= _forecast(label_forecast(epsilon0, classes, queries))
    paper = dpsd_theorem2(epsilon0)
    emit(result | _both(events, delta, paper, paper.reason), json, title)


def _headline(
    events: dict[Adjacency, Any], unit: Unit, adjacency: Adjacency, delta: float
) -> dict[str, Any]:
    value, accountant = quote([events[adjacency]], delta)
    return {
        "epsilon": value,
        "delta": delta,
        "unit": unit.value,
        "adjacency": adjacency.value,
        "accountant": accountant,
    }


def _both(
    events: dict[Adjacency, Any], delta: float, paper: Published | None, reason: str
) -> dict[str, Any]:
    sound = {each.value: epsilon_of_plan([event], delta) for each, event in events.items()}
    figure = None if paper is None else paper.epsilon
    return {"sound": sound, "published": {"epsilon": figure, "reason": reason}}


def _forecast(seen: Forecast) -> dict[str, Any]:
    return {"signal": seen.signal, "verdict": seen.verdict.value, "forecast": seen.words}
