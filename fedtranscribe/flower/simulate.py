"""A Flower app on this machine, from start to end, and the files by which it is followed."""

import importlib.util
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rich.filesize import decimal

from fedtranscribe.config import catalogue
from fedtranscribe.config.sources import new_folder
from fedtranscribe.errors import ConfigError, FedtranscribeError, SimulationError, StorageError
from fedtranscribe.files import json_objects, read_object, unwritable, write_atomically
from fedtranscribe.flower.apps import App, Scalar, is_packaged, known_apps, settings_from
from fedtranscribe.results.allowed import expect_allowed
from fedtranscribe.results.progress import PROGRESS, check_tracking
from fedtranscribe.results.result import METRICS

if TYPE_CHECKING:
    from fedtranscribe.flower.superlink import PrivateSuperLink, RunStatus

LOG = "superlink.log"


class Tail:
    """New whole lines of a file of JSON objects that another process writes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._half = b""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """What has come since the last time; a line that is no object is passed over."""
        try:
            if self._path.stat().st_size < self._read:
                self._read, self._half = 0, b""
            with self._path.open("rb") as stream:
                stream.seek(self._read)
                new = stream.read()
        except FileNotFoundError:
            return
        self._read += len(new)
        *whole, self._half = (self._half + new).split(b"\n")
        yield from json_objects(whole)


def raise_mistake(folder: Path) -> None:
    """Raise what the ServerApp wrote into `error.json`, as the class with that exit code."""
    mistake = read_object(folder / ERROR)
    if mistake is None:
        return
    kinds = [FedtranscribeError, *FedtranscribeError.__subclasses__()]
    code = mistake.get("exit_code")
    kind = next((kind for kind in kinds if kind.exit_code == code), SimulationError)
    raise kind(str(mistake.get("error", f"The run failed; see {folder / LOG}.")))


# Each question to Flower takes a second of a processor that the simulation could use.
_LEAST_PAUSE, _MOST_PAUSE = 2.0, 15.0
_LOOK_SECONDS = 0.5
_PARTS = ("flwr", "ray", "psutil")


class ShowNoted(Protocol):
    """Shows long work, with a note behind the bar."""

    def __call__(self, stage: str, done: int, total: int, note: str = "") -> None:
        """Say how far a stage is."""
        ...


def simulate(
    app: App,
    chosen: Mapping[str, Scalar],
    federation: Mapping[str, int | float],
    show: ShowNoted,
    say: Callable[[str], None],
) -> Path:
    """Run an app to its end."""
    expect_settings(app, chosen)
    folder = Path(str(chosen["out"]))
    prepare(folder, chosen.get("resume") is True)
    say(f"run folder: {folder}")
    from fedtranscribe.flower.superlink import PrivateSuperLink

    say("starting Flower and Ray: about half a minute, a few minutes the first time")
    with PrivateSuperLink(folder / LOG) as link:
        run = link.submit(app.folder, chosen, federation)
        status = _follow(link, run, folder, show)
        link.add_run_log(run)
    if not status.completed or not (folder / METRICS).exists():
        how = "with no result" if status.completed else f"as {status.state}"
        why = f": {status.details.rstrip('.')}" if status.details else ""
        raise SimulationError(f"The run ended {how}{why}. The log is {folder / LOG}.")
    return folder


def require_flower() -> None:
    """Check that what only simulations need is installed, without importing any of it."""
    missing = [part for part in _PARTS if importlib.util.find_spec(part) is None]
    if missing:
        raise ConfigError(
            f"Simulations need {' and '.join(missing)}: pip install 'fedtranscribe[simulation]'."
        )


# -------------------------------------------------------------------- what was asked for


def choose(
    app: App,
    pairs: Sequence[str],
    holders: int | None,
    out: Path | None,
    resume: bool,
    config: Path | None = None,
) -> dict[str, Scalar]:
    """The run-config that this command line asks for; `out` is always in it, and absolute."""
    pairs = [*pairs]
    pairs += [f"holders={holders}"] if holders is not None else []
    pairs += [f"out={out}"] if out is not None else []
    pairs += ["resume=true"] if resume else []
    profile = app.profile(config, pairs) if config is not None else []
    chosen = app.settings([*profile, *pairs])
    if not chosen.get("out"):
        if chosen.get("resume"):
            raise ConfigError("Expected --out with --resume: it names the run to go on with.")
        chosen["out"] = str(new_folder(f"simulate-{app.name}").absolute())
    return chosen


def expect_settings(app: App, chosen: Mapping[str, Scalar]) -> None:
    """Refuse wrong settings, and data that are not there, before Flower starts."""
    asked = {**app.defaults, **chosen}
    if is_packaged(app):
        check_tracking(settings_from(asked))
    if "data" in asked:
        data, root = str(asked["data"]), str(asked.get("data-root", ""))
        catalogue.expect_data(data, table=bool(asked.get("table")))
        catalogue.expect_root(data, root, asked.get("download") is True)


def expect_packaged(app: App) -> None:
    """Refuse to plan for an app whose code may ask anything."""
    if not is_packaged(app):
        known = known_apps()
        raise ConfigError(
            f"Expected a packaged app with --plan, got {app.folder}: only its own code knows what "
            f"it asks. Those with a plan: {', '.join(sorted(known)) or 'none are installed'}."
        )


def nodes(
    app: App,
    chosen: Mapping[str, Scalar],
    cpus: int,
    num_gpus: float,
    workers: int | None = None,
) -> dict[str, int | float]:
    """The federation-config: as many nodes as holders, and what each may use."""
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
    """Make the run folder; what an earlier attempt complained of is no news."""
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


# -------------------------------------------------------------------- progress


def _follow(link: "PrivateSuperLink", run: str, folder: Path, show: ShowNoted) -> "RunStatus":
    """Show progress until the run has ended."""
    tail = Tail(folder / PROGRESS)
    began = asked = time.monotonic()
    while True:
        time.sleep(_LOOK_SECONDS)
        link.check()
        advance(tail, show)
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
            advance(tail, show)
            raise_mistake(folder)
            return status


def advance(tail: Tail, show: ShowNoted) -> None:
    """Move the bars by what has come."""
    for entry in tail:
        done, total = entry.get("done"), entry.get("total")
        if isinstance(done, int) and isinstance(total, int):
            show(str(entry.get("stage", "rows")), done, total, note(entry))


def note(entry: Mapping[str, Any]) -> str:
    """What stands behind a bar: round, accuracy, ε spent, bytes; nothing for what is not known."""
    facts = {
        "round": lambda value: f"round {value}",
        "accuracy": lambda value: f"acc. {value:.1%}",
        "epsilon": lambda value: f"ε {value:.3g}",
        "bytes": decimal,
    }
    known = {key: entry.get(key) for key in facts}
    return ", ".join(
        facts[key](value) for key, value in known.items() if isinstance(value, int | float)
    )


ERROR = "error.json"


def report_mistake(folder: Path, error: FedtranscribeError) -> None:
    """Leave a user's mistake for the command that waits."""
    mistake = {"error": str(error), "exit_code": error.exit_code}
    expect_allowed(ERROR, mistake)
    write_atomically(folder / ERROR, json.dumps(mistake).encode())
