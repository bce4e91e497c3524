"""`fedtranscribe privacy published …`: the papers' figures, with the sound ones beside them.

The top-level `epsilon` is sound; the paper's figure is `published.epsilon`. `readings` are sound
figures for what the paper's text can mean; null stands for no guarantee.
"""

import math
from typing import Annotated, Any

import typer

from fedtranscribe.cli.options import (
    Batch,
    Delta,
    Dimensions,
    Epochs,
    Json,
    LabelEpsilon,
    Queries,
    Records,
    group,
)
from fedtranscribe.cli.output import emit
from fedtranscribe.privacy.accountant import CLOSED_FORM, ON_GRID, quote
from fedtranscribe.privacy.events import PoissonGaussian
from fedtranscribe.privacy.label_events import RandomizedResponse
from fedtranscribe.privacy.published import (
    Published,
    dp_promise_theorem2,
    dp_sad_theorem4,
    dpsd_theorem1,
    dpsd_theorem2,
    sampling_probability,
    sgd_steps,
    sound_dp_promise,
    sound_dp_sad,
    sound_dpsd,
    whole_batch_signal,
)
from fedtranscribe.privacy.units import Adjacency, Unit

published_app = group("What the papers' formulas give, and what their settings really cost.")


@published_app.command("dpsd")
def published_dpsd(
    sigma: Annotated[float, typer.Option(help="σ of Eq. 3.")] = 100.0,
    beta: Annotated[float, typer.Option(help="Norm bound β of a row.")] = 1e-3,
    classes: Annotated[int, typer.Option(help="Classes c.")] = 10,
    batch: Annotated[int, typer.Option(help="Rows per round, b.")] = 256,
    rounds: Annotated[int, typer.Option(help="Rounds T.")] = 200,
    delta: Delta = 1e-5,
    json: Json = False,
) -> None:
    """DPSD Theorem 1 (data-sensitive mode), for one teacher.

    \b
    Example:
      fedtranscribe privacy published dpsd --sigma 100 --beta 1e-3 --classes 10 \\
          --batch 256 --rounds 200
    """
    paper = dpsd_theorem1(sigma, beta, classes, batch, rounds, delta)
    readings = sound_dpsd(sigma, batch, rounds, delta)
    sound = {each.value: readings["row-wise"] for each in Adjacency}
    rows = batch * rounds
    more = {
        "noise_std": sigma,
        "signal": rows / sigma**2,
        "whole_batch_entry_over_noise": whole_batch_signal(sigma, classes, batch),
    }
    _emit(paper, readings["row-wise"], CLOSED_FORM, sound, readings, delta, more, json)


@published_app.command("label")
def published_label(
    epsilon0: LabelEpsilon,
    classes: Annotated[int, typer.Option(help="Classes that a label is randomised over.")],
    queries: Queries,
    delta: Delta = 1e-5,
    json: Json = False,
) -> None:
    """DPSD Theorem 2 (label-sensitive mode), for one teacher.

    \b
    Example:
      fedtranscribe privacy published label --epsilon0 0.1 --classes 10 --queries 1000
    """
    value, accountant = quote([RandomizedResponse(epsilon0, classes, queries)], delta)
    readings = {"one label": epsilon0 if classes > 1 else 0.0, "all labels": value}
    sound = {each.value: value for each in Adjacency}
    _emit(dpsd_theorem2(epsilon0), value, accountant, sound, readings, delta, {}, json)


@published_app.command("dp-sad")
def published_dp_sad(
    sigma: Annotated[float, typer.Option(help="σ of Eq. 14.")] = 1.9,
    clip: Annotated[float, typer.Option(help="Norm bound C.")] = 1e-6,
    dimensions: Annotated[int, typer.Option(help="Length s of a gradient vector.")] = 784,
    records: Records = 60_000,
    batch: Batch = 128,
    epochs: Epochs = 100.0,
    time_steps: Annotated[int, typer.Option(help="Diffusion steps T.")] = 500,
    delta: Delta = 1e-5,
    json: Json = False,
) -> None:
    """DP-SAD Theorem 4. The headline is the kindest reading: clipping in parameter space.

    \b
    Example:
      fedtranscribe privacy published dp-sad --sigma 1.9 --records 60000 --epochs 100
    """
    steps = sgd_steps(epochs, batch, records)
    readings = sound_dp_sad(sigma, batch, records, steps, time_steps, delta)
    paper = dp_sad_theorem4(sigma, clip, dimensions, batch, steps, delta)
    value = readings["diluted"]
    q = sampling_probability(batch, records)
    accountant = quote([PoissonGaussian(q, sigma / time_steps, steps)], delta)[1]
    sound = {Adjacency.ZERO_OUT.value: value, Adjacency.ADD_REMOVE.value: value}
    _emit(paper, value, accountant, sound, readings, delta, {"steps": steps}, json)


@published_app.command("dp-promise")
def published_dp_promise(
    sigma: Annotated[float, typer.Option(help="Noise multiplier of Phase II.")] = 7.0,
    records: Records = 60_000,
    dimensions: Dimensions = 784,
    boundary: Annotated[int, typer.Option(help="First time step S of Phase I.")] = 900,
    batch1: Annotated[int, typer.Option(help="Expected batch of Phase I.")] = 32,
    epochs1: Annotated[float, typer.Option(help="Epochs of Phase I; 0 leaves it out.")] = 3.0,
    batch2: Annotated[int, typer.Option(help="Expected batch of Phase II.")] = 4096,
    epochs2: Annotated[float, typer.Option(help="Epochs of Phase II.")] = 50.0,
    delta: Delta = 1e-5,
    json: Json = False,
) -> None:
    """dp-promise Theorem 2. With Phase I as published there is no guarantee: epsilon is null.

    \b
    Example:
      fedtranscribe privacy published dp-promise --sigma 7 --records 60000
    """
    q1, q2 = sampling_probability(batch1, records), sampling_probability(batch2, records)
    steps1 = sgd_steps(epochs1, batch1, records) if epochs1 else 0
    steps2 = sgd_steps(epochs2, batch2, records)
    paper = dp_promise_theorem2(sigma, dimensions, boundary, q1, steps1, q2, steps2, delta)
    readings = sound_dp_promise(sigma, q2, steps2, steps1, delta)
    value = readings["as published"]
    replaced = math.inf if steps1 else readings["phase II alone, replace"]
    sound = {Adjacency.ZERO_OUT.value: value, Adjacency.REPLACE.value: replaced}
    _emit(paper, value, ON_GRID, sound, readings, delta, {"steps": steps1 + steps2}, json)


def _emit(
    paper: Published,
    value: float,
    accountant: str,
    sound: dict[str, float],
    readings: dict[str, float],
    delta: float,
    more: dict[str, Any],
    json: bool,
) -> None:
    headline = {
        "epsilon": value,
        "delta": delta,
        "unit": Unit.RECORD.value,
        "adjacency": Adjacency.ZERO_OUT.value,
        "accountant": accountant,
    }
    published = {
        "epsilon": paper.epsilon,
        "delta": paper.delta,
        "reason": paper.reason,
        "source": paper.source,
    }
    parts = {"sound": sound, "readings": readings, "published": published}
    emit(headline | more | parts, json, f"Published: {paper.source}")
