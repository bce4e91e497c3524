"""`fedtranscribe simulate`: data holders and server as a Flower app, on one machine, in one go."""

import importlib.util
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.filesize import decimal

from fedtranscribe.catalogue import expect_root
from fedtranscribe.cli.options import Json, Out, Resume
from fedtranscribe.cli.output import emit, say, say_path, show_table
from fedtranscribe.cli.progress import StageBars
from fedtranscribe.cli.runs import show_confusion
from fedtranscribe.cli.settings_options import about
from fedtranscribe.config import FederationSettings
from fedtranscribe.errors import ConfigError, SimulationError, StorageError
from fedtranscribe.files import unwritable
from fedtranscribe.flower.apps import App, Scalar, find_app
from fedtranscribe.flower.run_files import (
    ERROR,
    LOG,
    Tail,
    raise_mistake,
)
from fedtranscribe.result import METRICS, Result, Shown, with_private_scores
from fedtranscribe.result_parts import StatedGuarantee
from fedtranscribe.tracking import PROGRESS

if TYPE_CHECKING:
    from fedtranscribe.flower.superlink import PrivateSuperLink, RunStatus

_EXAMPLES = """Simulate a federation: data holders and server as a Flower app, on this machine.

\b
Examples:
  fedtranscribe simulate dirichlet_mnist data=digits            # 5 holders, packaged images
  fedtranscribe simulate dirichlet_mnist data=digits epsilon=5 rows=2000
  fedtranscribe simulate dirichlet_cifar10 data-root=~/data --holders 10
  fedtranscribe simulate dirichlet_cifar10 data-root=~/data download=true
  fedtranscribe simulate dirichlet_cifar10 data-root=~/data --num-gpus 0.2  # five share one GPU
  fedtranscribe simulate dirichlet_mnist data-root=~/data --config paper.toml
  fedtranscribe simulate dirichlet_mnist data-root=~/data --out runs/m --resume

The settings of an app and their defaults are in its pyproject.toml; a wrong name lists them all.
The exit code is 0 only if the run was carried to its end. Nothing stays behind but the run folder.
"""

# Each question to Flower takes a second of a processor that the simulation could use.
_LEAST_PAUSE, _MOST_PAUSE = 2.0, 15.0
_LOOK_SECONDS = 0.5
_PARTS = ("flwr", "ray", "psutil")


def simulate_command(
    name: Annotated[
        str, typer.Argument(help="A packaged app (dirichlet_mnist, …) or an app's folder.")
    ],
    settings: Annotated[
        list[str] | None, typer.Argument(help="key=value, over the app's defaults.")
    ] = None,
    holders: Annotated[int | None, typer.Option(help=about(FederationSettings, "holders"))] = None,
    cpus: Annotated[int, typer.Option(help="Processor cores per holder at work.")] = 1,
    workers: Annotated[
        int | None, typer.Option(help="Holders at work at once; as many as cores if left out.")
    ] = None,
    num_gpus: Annotated[float, typer.Option(help="Share of a GPU per holder at work.")] = 0.0,
    config: Annotated[
        Path | None, typer.Option(help="TOML file with settings, like an app's paper.toml.")
    ] = None,
    out: Out = None,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Run it; the help text is `_EXAMPLES`."""
    require_flower()
    app = find_app(name)
    chosen = choose(app, settings or [], holders, out, resume, config)
    _expect_data(app, chosen)
    federation = nodes(app, chosen, cpus, num_gpus, workers)
    folder = Path(str(chosen["out"]))
    prepare(folder, chosen.get("resume") is True)
    with StageBars() as bars:
        bars.say(f"run folder: {folder}")
        try:
            _simulate(app, chosen, federation, bars)
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


def require_flower() -> None:
    """Check that what only simulations need is installed, without importing any of it.

    Raises:
        ConfigError: says how to install it.
    """
    missing = [part for part in _PARTS if importlib.util.find_spec(part) is None]
    if missing:
        raise ConfigError(
            f"Simulations need {' and '.join(missing)}: pip install 'fedtranscribe[simulation]'."
        )


# -------------------------------------------------------------------- what was asked for


def choose(
    app: App,
    pairs: list[str],
    holders: int | None,
    out: Path | None,
    resume: bool,
    config: Path | None = None,
) -> dict[str, Scalar]:
    """The run-config that this command line asks for; `out` is always in it, and absolute.

    Raises:
        ConfigError: names every value that is wrong.
    """
    pairs = [*pairs]
    pairs += [f"holders={holders}"] if holders is not None else []
    pairs += [f"out={out}"] if out is not None else []
    pairs += ["resume=true"] if resume else []
    profile = app.profile(config, pairs) if config is not None else []
    chosen = app.settings([*profile, *pairs])
    if not chosen.get("out"):
        if chosen.get("resume"):
            raise ConfigError("Expected --out with --resume: it names the run to go on with.")
        folder = Path("runs") / f"simulate-{app.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
        chosen["out"] = str(folder.absolute())
    return chosen


def _expect_data(app: App, chosen: Mapping[str, Scalar]) -> None:
    """Find out before Flower starts that a data set has no folder to lie in."""
    asked = {**app.defaults, **chosen}
    if "data" in asked:
        expect_root(str(asked["data"]), asked.get("data-root"))


def nodes(
    app: App,
    chosen: Mapping[str, Scalar],
    cpus: int,
    num_gpus: float,
    workers: int | None = None,
) -> dict[str, int | float]:
    """The federation-config: as many nodes as holders, and what each may use.

    Raises:
        ConfigError: a number is out of range.
    """
    holders = chosen.get("holders", app.defaults.get("holders"))
    if holders is not None and (not isinstance(holders, int) or holders < 1):
        raise ConfigError(f"Expected holders={holders} >= 1.")
    if cpus < 1:
        raise ConfigError(f"Expected --cpus {cpus} >= 1.")
    if workers is not None and workers < 1:
        raise ConfigError(f"Expected --workers {workers} >= 1.")
    if not 0 <= num_gpus < float("inf"):
        raise ConfigError(f"Expected --num-gpus {num_gpus} >= 0 and finite.")
    wanted: dict[str, int | float] = {"num-supernodes": holders} if holders is not None else {}
    if workers is not None:
        # Ray starts as many workers as fit into the cores that it believes in.
        wanted["init-args-num-cpus"] = workers * cpus
    return wanted | {"client-resources-num-cpus": cpus, "client-resources-num-gpus": num_gpus}


def prepare(folder: Path, resume: bool) -> None:
    """Make the run folder; what an earlier attempt complained of is no news.

    Raises:
        StorageError: it holds another run, or none to go on with, or cannot be written.
    """
    if resume and not folder.is_dir():
        raise StorageError(f"No run in {folder} to resume; leave out --resume to start one.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Of an attempt that never became a run: gone, so that the app finds an empty folder.
        left = {LOG, ERROR}
        if not resume and {entry.name for entry in folder.iterdir()} - left:
            raise StorageError(
                f"{folder} is not empty; add --resume to go on with its run, or choose another "
                "--out."
            )
        for name in {ERROR} if resume else left:
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from None


# -------------------------------------------------------------------- the run


def _simulate(
    app: App, chosen: Mapping[str, Scalar], federation: Mapping[str, int | float], bars: StageBars
) -> None:
    from fedtranscribe.flower.superlink import PrivateSuperLink

    folder = Path(str(chosen["out"]))
    bars.say("starting Flower and Ray: half a minute, the first time minutes")
    with PrivateSuperLink(folder / LOG) as link:
        run = link.submit(app.folder, chosen, federation)
        status = _follow(link, run, folder, bars)
        link.add_run_log(run)
    if not status.completed or not (folder / METRICS).exists():
        how = "with no result" if status.completed else f"as {status.state}"
        why = f": {status.details.rstrip('.')}" if status.details else ""
        raise SimulationError(f"The run ended {how}{why}. The log is {folder / LOG}.")


def _follow(link: "PrivateSuperLink", run: str, folder: Path, bars: StageBars) -> "RunStatus":
    """Show progress until the run has ended.

    Raises:
        FedtranscribeError: the ServerApp wrote down a user's mistake.
    """
    tail = Tail(folder / PROGRESS)
    began = asked = time.monotonic()
    while True:
        time.sleep(_LOOK_SECONDS)
        link.check()
        advance(tail, bars)
        raise_mistake(folder)
        now = time.monotonic()
        pause = min(_MOST_PAUSE, max(_LEAST_PAUSE, (now - began) / 10))
        if (folder / METRICS).exists():
            pause = _LEAST_PAUSE
        if now - asked < pause:
            continue
        status = link.status(run)
        asked = time.monotonic()
        if status.finished:
            advance(tail, bars)
            raise_mistake(folder)
            return status


def advance(tail: Tail, bars: StageBars) -> None:
    """Move the bars by what has come."""
    for entry in tail:
        done, total = entry.get("done"), entry.get("total")
        if isinstance(done, int) and isinstance(total, int):
            bars(str(entry.get("stage", "rows")), done, total, note(entry))


def note(entry: Mapping[str, Any]) -> str:
    """What stands behind a bar: round, accuracy, ε spent, bytes; nothing for what is not known."""
    shown = {
        "round": lambda value: f"round {value}",
        "accuracy": lambda value: f"acc. {value:.1%}",
        "epsilon": lambda value: f"ε {value:.3g}",
        "bytes": decimal,
    }
    known = {key: entry.get(key) for key in shown}
    return ", ".join(
        shown[key](value) for key, value in known.items() if isinstance(value, int | float)
    )


# -------------------------------------------------------------------- the result


def show(shown: Shown, folder: Path) -> None:
    """Print a finished run: accuracy, then privacy, then where things are."""
    result = shown.result
    words = [f"method {result.method}", f"rows {result.rows}"]
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
