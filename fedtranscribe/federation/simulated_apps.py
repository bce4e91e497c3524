"""The ServerApp and ClientApp of a simulation; the folders under `simulations/` only name them."""

import logging
import time
from pathlib import Path

from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedtranscribe.config import FederationSettings
from fedtranscribe.data import DataSplit
from fedtranscribe.errors import FedtranscribeError, QuorumError
from fedtranscribe.federation.holder import make_client_app
from fedtranscribe.federation.run import federate
from fedtranscribe.federation.run_files import ERROR, report_mistake, reporter
from fedtranscribe.federation.simulation import (
    holder_name,
    holders_folder,
    load_first,
    open_simulated,
    partitions,
    run_folder,
    settings_from,
)
from fedtranscribe.federation.transport import OverFlower
from fedtranscribe.teachers import Teachers
from fedtranscribe.transcribe.rundir import RunDirectory, check_writable
from fedtranscribe.transcribe.session import ensemble_accuracy, pick_device

log = logging.getLogger(__name__)

_NODES_WITHIN = 60.0
_NODES_STILL = 6  # looks, half a second apart


def simulated_client_app(name: str) -> ClientApp:
    """The ClientApp of the simulation called `name`."""
    return make_client_app(lambda context, number: open_simulated(context, number, name))


def simulated_server_app(name: str) -> ServerApp:
    """The ServerApp of the simulation called `name`."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        settings = settings_from(context.run_config)
        out = run_folder(settings, name, context.run_id)
        check_writable(out)
        (out / ERROR).unlink(missing_ok=True)
        try:
            _serve(grid, settings, out)
        except FedtranscribeError as error:
            # Flower has no other way to fail than to raise; the command line reads the file.
            report_mistake(out, error)
            log.error("%s", error)
            raise

    return app


def _serve(grid: Grid, settings: FederationSettings, out: Path) -> None:
    log.info("run folder: %s", out)
    split = load_first(settings)
    # Too few records for the holders are found here, before a worker stumbles over them.
    partitions(settings, split.train)
    starting = RunDirectory.resume if settings.resume else RunDirectory.create
    run = starting(out, settings)
    if run.finished:
        log.info("this run was complete already; nothing was spent")
        return
    transport = OverFlower(
        grid, _addresses(grid, settings.holders), settings.timeout, settings.first_timeout
    )
    log.info("%d holders train their teachers, if they have none yet", settings.holders)
    result = federate(
        settings,
        transport,
        run,
        expected=settings.holders,
        test=split.test,
        ensemble=lambda: _ensemble(settings, out, split),
        report=reporter(out),
    )
    log.info(
        "student %.1f %%, sound ε %s (%s); published formula %.4g, no guarantee",
        100 * result["accuracy"]["student"],
        result["epsilon"],
        result["unit"],
        result["published"]["epsilon"],
    )
    log.info("results, networks and figures: %s", out)


def _addresses(grid: Grid, holders: int) -> list[tuple[int, int]]:
    """Spread the holders over the nodes there are; any number of nodes will do.

    Flower starts the server before it has registered all nodes, so their number has to stand
    still first, unless there is one for every holder.

    Raises:
        QuorumError: no node has appeared in time.
    """
    until, nodes, still = time.monotonic() + _NODES_WITHIN, [], 0
    while len(nodes) < holders and still < _NODES_STILL:
        if time.monotonic() > until:
            raise QuorumError(
                f"No node appeared within {_NODES_WITHIN:g} s; start the simulation with "
                f'--federation-config "num-supernodes={holders}".'
            )
        time.sleep(0.5)
        before, nodes = nodes, sorted(grid.get_node_ids())
        still = still + 1 if nodes and nodes == before else 0
    return [(nodes[i % len(nodes)], i) for i in range(holders)]


def _ensemble(settings: FederationSettings, out: Path, split: DataSplit) -> dict[str, float]:
    """How good the holders' teachers are on the declared-public test images."""
    folders = [holders_folder(out) / holder_name(i) / "teachers" for i in range(settings.holders)]
    teachers = [Teachers(f, pick_device(settings.device)) for f in folders if f.exists()]
    return ensemble_accuracy(teachers, split.test.images, split.test.labels)
