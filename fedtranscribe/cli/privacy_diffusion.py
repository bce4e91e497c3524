"""`fedtranscribe privacy account|calibrate dp-promise|dp-sad`: what private diffusion costs.

The schema of `cli.privacy`, with what a plan says besides: its steps, dp-promise's `phase1` and
`phase2` apart, and a `warning` where the noise was diluted.
"""

from typing import Annotated, Any

import typer

from fedtranscribe.cli.options import (
    AdjacencyOption,
    Batch,
    Delta,
    Dimensions,
    Epochs,
    Epsilon,
    Json,
    Records,
    Sigma,
)
from fedtranscribe.cli.output import emit
from fedtranscribe.privacy.accountant import epsilon as epsilon_of_plan
from fedtranscribe.privacy.accountant import quote
from fedtranscribe.privacy.diffusion import Discriminator, DpPromisePlan, DpSadPlan, Teacher
from fedtranscribe.privacy.diffusion_noise import CalibrateBy, calibrated
from fedtranscribe.privacy.published import TIME_STEPS, Published
from fedtranscribe.privacy.units import Adjacency, Unit

Boundary = Annotated[int, typer.Option(help="First time step S of Phase I; 1001 leaves it out.")]
Phase1Batch = Annotated[
    int | None, typer.Option(help="Expected records per Poisson batch of Phase I.")
]
Phase1Epochs = Annotated[float | None, typer.Option(help="Passes over the records in Phase I.")]
Phase2Batch = Annotated[int, typer.Option(help="Expected records per Poisson batch of Phase II.")]
Phase2Epochs = Annotated[float, typer.Option(help="Passes over the records in Phase II.")]
Cached = Annotated[
    bool, typer.Option("--cached", help="One noised image per record, reused in all epochs.")
]
NoPhase1 = Annotated[bool, typer.Option("--no-phase1", help="Phase II over all time steps.")]
By = Annotated[CalibrateBy, typer.Option(help="Which is the target: the sound or the published ε.")]
TeacherOption = Annotated[Teacher, typer.Option(help="Public, or trained with DP-SGD as well.")]
DiscriminatorOption = Annotated[
    Discriminator,
    typer.Option(help="Sees private outputs only, or is trained with DP-SGD as well."),
]
Dilution = Annotated[
    int, typer.Option(help="What the noise is divided by; T, as the paper prints it, or 1.")
]
Clip = Annotated[float, typer.Option(help="Norm bound C, for the paper's figure only.")]
GradientLength = Annotated[
    int, typer.Option("--dimensions", help="Length s of a gradient, for the paper's figure only.")
]

_NO_NOISE_YET = 1.0
"""Stands where the noise is what is asked for."""

_HUGE = 1e6


def account_dp_promise(
    dimensions: Dimensions,
    records: Records,
    boundary: Boundary,
    phase2_batch: Phase2Batch,
    phase2_epochs: Phase2Epochs,
    sigma: Sigma,
    phase1_batch: Phase1Batch = None,
    phase1_epochs: Phase1Epochs = None,
    cached: Cached = False,
    no_phase1: NoPhase1 = False,
    adjacency: AdjacencyOption = Adjacency.ZERO_OUT,
    delta: Delta = 1e-5,
    json: Json = False,
) -> None:
    """ε of dp-promise, with the sound Phase I: each noised image is drawn once.

    \b
    Example:
      fedtranscribe privacy account dp-promise --dimensions 784 --records 60000 \\
          --boundary 900 --phase1-batch 32 --phase1-epochs 3 --phase2-batch 4096 \\
          --phase2-epochs 50 --sigma 7
    """
    plan = DpPromisePlan(
        *(records, dimensions, TIME_STEPS + 1 if no_phase1 else boundary),
        *(phase2_batch, phase2_epochs, sigma, phase1_batch, phase1_epochs, cached),
    )
    _emit_dp_promise(plan, adjacency, delta, json, "dp-promise cost")


def calibrate_dp_promise(
    epsilon: Epsilon,
    dimensions: Dimensions,
    records: Records,
    boundary: Boundary,
    phase2_batch: Phase2Batch,
    phase2_epochs: Phase2Epochs,
    phase1_batch: Phase1Batch = None,
    phase1_epochs: Phase1Epochs = None,
    cached: Cached = False,
    no_phase1: NoPhase1 = False,
    adjacency: AdjacencyOption = Adjacency.ZERO_OUT,
    calibrate_by: By = CalibrateBy.SOUND,
    delta: Delta = 1e-5,
    json: Json = False,
) -> None:
    """Noise multiplier of dp-promise's Phase II, for a target ε of both phases.

    \b
    Example:
      fedtranscribe privacy calibrate dp-promise --epsilon 10 --dimensions 784 \\
          --records 60000 --boundary 900 --phase1-batch 32 --phase1-epochs 3 \\
          --phase2-batch 4096 --phase2-epochs 50
    """
    wanted = DpPromisePlan(
        *(records, dimensions, TIME_STEPS + 1 if no_phase1 else boundary),
        *(phase2_batch, phase2_epochs, _NO_NOISE_YET, phase1_batch, phase1_epochs, cached),
    )
    plan = calibrated(wanted, epsilon, delta, adjacency, calibrate_by)
    _emit_dp_promise(plan, adjacency, delta, json, "dp-promise noise for a target ε")


def account_dp_sad(
    records: Records,
    batch: Batch,
    epochs: Epochs,
    sigma: Sigma,
    adjacency: AdjacencyOption = Adjacency.ZERO_OUT,
    teacher: TeacherOption = Teacher.PUBLIC,
    discriminator: DiscriminatorOption = Discriminator.OUTPUTS,
    dilution: Dilution = 1,
    clip: Clip = 1e-6,
    dimensions: GradientLength = 784,
    delta: Delta = 1e-5,
    json: Json = False,
) -> None:
    """ε of DP-SAD, with gradients clipped in parameter space.

    \b
    Examples:
      fedtranscribe privacy account dp-sad --records 60000 --batch 128 --epochs 100 \\
          --sigma 1.9 --adjacency add-remove
      fedtranscribe privacy account dp-sad --records 60000 --batch 128 --epochs 100 \\
          --sigma 2.54 --teacher dp
    """
    plan = DpSadPlan(
        records, batch, epochs, sigma, teacher, discriminator, dilution, clip, dimensions
    )
    _emit_dp_sad(plan, adjacency, delta, json, "DP-SAD cost")


def calibrate_dp_sad(
    epsilon: Epsilon,
    records: Records,
    batch: Batch,
    epochs: Epochs,
    adjacency: AdjacencyOption = Adjacency.ZERO_OUT,
    teacher: TeacherOption = Teacher.PUBLIC,
    discriminator: DiscriminatorOption = Discriminator.OUTPUTS,
    dilution: Dilution = 1,
    clip: Clip = 1e-6,
    dimensions: GradientLength = 784,
    calibrate_by: By = CalibrateBy.SOUND,
    delta: Delta = 1e-5,
    json: Json = False,
) -> None:
    """Noise multiplier of every private training of DP-SAD, for a target ε of all of them.

    \b
    Example:
      fedtranscribe privacy calibrate dp-sad --epsilon 10 --records 60000 --batch 128 \\
          --epochs 100 --teacher dp
    """
    wanted = DpSadPlan(
        records, batch, epochs, _NO_NOISE_YET, teacher, discriminator, dilution, clip, dimensions
    )
    plan = calibrated(wanted, epsilon, delta, adjacency, calibrate_by)
    _emit_dp_sad(plan, adjacency, delta, json, "DP-SAD noise for a target ε")


def _emit_dp_promise(
    plan: DpPromisePlan, adjacency: Adjacency, delta: float, json: bool, title: str
) -> None:
    result = _headline(plan, adjacency, delta)
    result |= {
        "steps": plan.private_steps,
        "mu": plan.mu,
        "boundary": plan.boundary,
    }
    first = {each: plan.phase1_event(each) for each in plan.adjacencies}
    result["phase1"] = {
        each.value: 0.0 if event is None else epsilon_of_plan([event], delta)
        for each, event in first.items()
    }
    result["phase2"] = {
        each.value: epsilon_of_plan([plan.phase2.event(each)], delta) for each in plan.adjacencies
    }
    emit(result | _both(plan, delta, plan.published(delta)), json, title)


def _emit_dp_sad(
    plan: DpSadPlan, adjacency: Adjacency, delta: float, json: bool, title: str
) -> None:
    result = _headline(plan, adjacency, delta)
    result |= {
        "steps": plan.steps,
        "trainings": plan.trainings,
        "noise_multiplier": plan.multiplier,
    }
    if plan.dilution > 1:
        result["warning"] = _diluted(plan, result["epsilon"])
    emit(result | _both(plan, delta, plan.published(delta)), json, title)


def _diluted(plan: DpSadPlan, value: float) -> str:
    size = "exceeds 1e6" if value > _HUGE else f"is {value:.4g}"
    return (
        f"epsilon {size}: dividing by T={plan.dilution} makes the noise {plan.dilution} times "
        f"smaller but leaves the sensitivity as it is, because one random step per record is "
        f"clipped to C and not averaged over T steps. The real multiplier is sigma/T = "
        f"{plan.sigma:g}/{plan.dilution} = {plan.multiplier:.3g}; use dilution 1."
    )


def _headline(
    plan: DpPromisePlan | DpSadPlan, adjacency: Adjacency, delta: float
) -> dict[str, Any]:
    value, accountant = quote([plan.event(adjacency)], delta)
    return {
        "epsilon": value,
        "delta": delta,
        "unit": Unit.RECORD.value,
        "adjacency": adjacency.value,
        "accountant": accountant,
        "sigma": plan.sigma,
    }


def _both(
    plan: DpPromisePlan | DpSadPlan, delta: float, paper: Published
) -> dict[str, dict[str, Any]]:
    sound = {each.value: epsilon_of_plan([plan.event(each)], delta) for each in plan.adjacencies}
    published = {"epsilon": paper.epsilon, "reason": paper.reason, "source": paper.source}
    return {"sound": sound, "published": published}
