"""`fedtranscribe simulate`: data holders and server as a Flower app, on one machine, in one go."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from fedtranscribe.cli.options import Json, Out, Plan, Resume
from fedtranscribe.cli.output import emit, say, say_path, show_table
from fedtranscribe.cli.runs import print_plan, show_confusion
from fedtranscribe.cli.settings_options import about
from fedtranscribe.config import FederationSettings
from fedtranscribe.flower.apps import find_app
from fedtranscribe.flower.simulate import (
    choose,
    expect_packaged,
    expect_settings,
    nodes,
    require_flower,
    simulate,
)
from fedtranscribe.result import Result, Shown, with_private_scores
from fedtranscribe.result_parts import StatedGuarantee
from fedtranscribe.stage_bars import StageBars
from fedtranscribe.text import counted

_EXAMPLES = """Simulate a federation: data holders and server as a Flower app, on this machine.

\b
Examples:
  fedtranscribe simulate dirichlet_mnist data=digits            # 5 holders, packaged images
  fedtranscribe simulate dirichlet_mnist data=digits epsilon=5 rows=2000
  fedtranscribe simulate dirichlet_mnist data=digits noise=secagg --plan  # what it asks and costs
  fedtranscribe simulate dirichlet_cifar10 data-root=~/data --holders 10
  fedtranscribe simulate dirichlet_cifar10 data-root=~/data download=true
  fedtranscribe simulate dirichlet_cifar10 data-root=~/data --num-gpus 0.2  # five share one GPU
  fedtranscribe simulate dirichlet_mnist data-root=~/data --config paper.toml
  fedtranscribe simulate dirichlet_mnist data-root=~/data --out runs/m --resume

The settings of an app and their defaults are in its pyproject.toml; a wrong name lists them all.
The exit code is 0 only if the run was finished. Nothing is left behind except the run folder.
"""


def simulate_command(
    name: Annotated[
        str, typer.Argument(help="A packaged app (dirichlet_mnist, …) or an app's folder.")
    ],
    settings: Annotated[
        list[str] | None, typer.Argument(help="key=value, to replace defaults of the app.")
    ] = None,
    holders: Annotated[int | None, typer.Option(help=about(FederationSettings, "holders"))] = None,
    cpus: Annotated[int, typer.Option(help="CPU cores per active holder.")] = 1,
    workers: Annotated[
        int | None, typer.Option(help="Active holders at a time; default: as many as CPU cores.")
    ] = None,
    num_gpus: Annotated[float, typer.Option(help="Share of a GPU per active holder.")] = 0.0,
    config: Annotated[
        Path | None, typer.Option(help="TOML file with settings, like an app's paper.toml.")
    ] = None,
    out: Out = None,
    resume: Resume = False,
    plan: Plan = False,
    as_json: Json = False,
) -> None:
    """Run it; the help text is `_EXAMPLES`."""
    require_flower()
    app = find_app(name)
    chosen = choose(app, settings or [], holders, out, resume, config)
    federation = nodes(app, chosen, cpus, num_gpus, workers)
    folder = Path(str(chosen["out"]))
    with StageBars() as bars:
        if plan:
            expect_packaged(app)
            expect_settings(app, chosen)
            from fedtranscribe.flower.simulated import show_plan

            run_config = {**app.defaults, **chosen}
            print_plan(partial(show_plan, run_config), bars, as_json=as_json)
            return
        try:
            simulate(app, chosen, federation, bars, bars.say)
        except (KeyboardInterrupt, SystemExit):
            if "resume" in app.defaults:
                bars.say(f"go on with the same settings and: --resume --out {folder}")
            raise
    shown = with_private_scores(folder, Result.read(folder))
    if as_json:
        emit({**shown.to_json(), "out": str(folder)}, as_json=True, title="")
    else:
        show(shown, folder)


simulate_command.__doc__ = _EXAMPLES


def show(shown: Shown, folder: Path) -> None:
    """Print a finished run: accuracy, then privacy, then where things are."""
    result = shown.result
    words = [f"method {result.method}"]
    if result.answers is not None:
        sums = result.answers.privacy == "moments"
        words.append(counted(result.rows, "noisy sum" if sums else "row"))
    if result.federation is not None:
        words.append(f"holders {result.federation.holders}")
    say(", ".join(words))
    scores = [
        (
            f"{name.replace('_', ' ')}{', NOT PRIVATE' if name in shown.not_private else ''}",
            "-" if value is None else f"{value:.1%}",
        )
        for name, value in shown.accuracy.items()
    ]
    show_table("Accuracy", ("model", "accuracy"), scores, right=("accuracy",))
    show_confusion(shown)
    _show_privacy(result.guarantee)
    say_path("Results, networks and figures", folder)


def _show_privacy(said: StatedGuarantee) -> None:
    under = f"{said.unit}, {said.adjacency}, δ = {said.delta:g}"
    stated = "infinite: no guarantee" if said.epsilon is None else f"{said.epsilon:.4g}"
    rows = [(f"ε, sound ({under})", stated)]
    if said.published is not None:
        figure = said.published.epsilon
        shown = "-" if figure is None else f"{figure:.4g}"
        rows.append(("published formula, no guarantee", shown))
    show_table("Privacy", ("figure", "value"), rows, right=("value",))
    if said.published is not None:
        say(f"Why the published figure is no guarantee: {said.published.reason}", "dim")
