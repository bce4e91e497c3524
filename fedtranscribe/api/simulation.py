"""`ft.simulate`: data holders and server as a Flower app, on this machine."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedtranscribe.api.finished import Run
from fedtranscribe.api.reporting import in_python, reported
from fedtranscribe.config import Settings
from fedtranscribe.errors import ConfigError
from fedtranscribe.flower.apps import find_app
from fedtranscribe.flower.simulate import choose, nodes, require_flower
from fedtranscribe.flower.simulate import simulate as run_app
from fedtranscribe.tracking import Progress


@in_python
def simulate(
    app: str | Path,
    *,
    holders: int | None = None,
    cpus: int = 1,
    workers: int | None = None,
    num_gpus: float = 0.0,
    out: str | Path | None = None,
    resume: bool = False,
    config: str | Path | None = None,
    progress: bool | Progress = True,
    **settings: Any,
) -> Run:
    """Simulate a federation: data holders and server as a Flower app, on this machine.

    It is `fedtranscribe simulate`, through Flower's simulation. The holders share out one data set
    with a name or a path, `data`; they run in processes of their own, which get no arrays.

    Args:
        app: a packaged app, such as "dirichlet_mnist", or the folder of one.
        holders: data holders, a Flower node each; the app's number if left out.
        cpus: processor cores per holder at work.
        workers: holders at work at once; as many as cores if left out.
        num_gpus: share of a GPU per holder at work.
        out: the run folder; a new one under `runs` if left out.
        resume: go on with the run in `out`.
        config: a TOML file with settings, like an app's paper.toml.
        progress: show bars and lines on standard error; or a function of (stage, done, total).
        **settings: settings of the app, such as epsilon=5 or dpsd={"round_rows": 100}.

    Returns:
        The finished run.

    Raises:
        ConfigError: Flower is not installed, or an unknown or wrong setting; names all of them.
        StorageError: the folder holds another run, or none to go on with.
        SimulationError: Flower or Ray did not carry the run to its end.
        FedtranscribeError: what the run itself found wrong.
    """
    require_flower()
    found = find_app(str(app))
    pairs = [f"{name}={value}" for name, value in _flat(settings)]
    chosen = choose(
        found,
        pairs,
        holders,
        None if out is None else Path(out),
        resume,
        None if config is None else Path(config),
    )
    federation = nodes(found, chosen, cpus, num_gpus, workers)
    with reported(progress) as (show, say):

        def noted(stage: str, done: int, total: int, note: str = "") -> None:
            show(stage, done, total)

        folder = run_app(found, chosen, federation, noted, say)
    return Run.of(folder)


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Settings as an app's run-config has them: `dpsd.round_rows`, values as TOML."""
    for name, value in settings.items():
        if isinstance(value, Settings):
            value = value.model_dump(exclude_unset=True, exclude_none=True)
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, str | Path):
            yield f"{prefix}{name}", str(value)
        elif isinstance(value, bool | int | float):
            yield f"{prefix}{name}", json.dumps(value)
        else:
            raise ConfigError(
                f"Expected {prefix}{name} as a text, a number or True or False, got "
                f"{type(value).__name__}; a simulation takes data by name or path."
            )
