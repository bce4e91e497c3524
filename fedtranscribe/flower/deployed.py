"""The ServerApp of a deployment: it knows the holders only by what they answer.

The folder `server/app` names it. Its settings are those of every federated run; `data` names a
published test set to follow the student on, or is "none".
"""

import logging
import time
from pathlib import Path

from flwr.serverapp import Grid, ServerApp

from fedtranscribe.config import PUBLIC_SHAPES, FederationSettings
from fedtranscribe.data import ImageSet, NamedData, is_published, load, load_public
from fedtranscribe.errors import ConfigError, QuorumError
from fedtranscribe.evaluation.evaluate import cnn_judge
from fedtranscribe.flower.over_flower import OverFlower
from fedtranscribe.flower.server_apps import make_server_app
from fedtranscribe.results.progress import Tracker, check_tracking
from fedtranscribe.results.run_directory import RunDirectory
from fedtranscribe.rounds.roster import quorum
from fedtranscribe.runs.federate import federate
from fedtranscribe.runs.learning import HeldOut
from fedtranscribe.runs.single_node import TRAINERS, train_at_holders
from fedtranscribe.runs.student_side import with_features

log = logging.getLogger(__name__)

NO_DATA = "none"
_LOOK_SECONDS = 1.0


def deployed_server_app(name: str) -> ServerApp:
    """The ServerApp of the deployment called `name`."""
    return make_server_app(name, serve)


def serve(grid: Grid, settings: FederationSettings, out: Path) -> None:
    """One run with the holders that have joined."""
    if settings.method not in ("feddpsd", *TRAINERS):
        raise ConfigError(
            f"Expected method='feddpsd', 'dp-promise' or 'dp-sad' in a deployment, got "
            f"{settings.method!r}: the baselines have no privacy and run in simulations only."
        )
    check_tracking(settings)
    test = _test_images(settings)
    _refuse_tested_images(settings, test)
    starting = RunDirectory.resume if settings.resume else RunDirectory.create
    settings = with_features(settings.as_stored(), None)
    run = starting(out, settings)
    wanted = settings.with_generator and settings.method == "feddpsd"
    if run.finished and not run.lacks_generator(wanted=wanted):
        log.info("this run was complete already; nothing was spent")
        return
    # Nobody is asked for the generator that a finished run lacks.
    nodes = [] if run.finished else _wait_for_nodes(grid, settings)
    transport = OverFlower(
        grid, [(node, 0) for node in nodes], settings.timeout, settings.first_timeout
    )
    report = Tracker(out, settings)
    if settings.method in TRAINERS:
        judge = cnn_judge(settings.seed)
        result = train_at_holders(settings, transport, run, test=test, judge=judge, report=report)
    else:
        expected = settings.holders
        # It is of a public benchmark, or there is none.
        tested = None if test is None else HeldOut(test, public=True)
        result = federate(settings, transport, run, expected=expected, test=tested, report=report)
    log.info("%s", result.guarantee)
    log.info("results and networks: %s", out)


def _test_images(settings: FederationSettings) -> ImageSet | None:
    """Declared-public images to follow the student on."""
    if settings.data == NO_DATA:
        return None
    if not is_published(settings.data):
        raise ConfigError(
            f"Expected data={settings.data!r} to name a public test set, or 'none': results on "
            f"private records must not reach the server."
        )
    return load(settings.data, settings.data_root, settings.download).test


def _refuse_tested_images(settings: FederationSettings, test: ImageSet | None) -> None:
    """Refuse public images out of the set that the student is tested on: holders have parts of it.

    This is all that a server can see. What the holders' own records are, it does not know; a
    holder that trains compares data ids itself.
    """
    name = settings.public_data
    if test is None or settings.method in TRAINERS or name in (None, "none", PUBLIC_SHAPES):
        return
    tested = NamedData(settings.data, test.data_id)
    root, download = settings.data_root, settings.download
    load_public("public_data", name, tested, root, download, settings.as_public)


def _wait_for_nodes(grid: Grid, settings: FederationSettings) -> list[int]:
    """All expected nodes, or after `first_timeout` those that are there."""
    until, nodes = time.monotonic() + settings.first_timeout, []
    while len(nodes) < settings.holders and time.monotonic() < until:
        nodes = sorted(grid.get_node_ids())
        if len(nodes) < settings.holders:
            time.sleep(_LOOK_SECONDS)
    needed = quorum(settings, settings.holders)
    if len(nodes) < needed:
        raise QuorumError(
            f"{len(nodes)} of {settings.holders} holders have joined within "
            f"{settings.first_timeout:g} s, quorum={needed}; start their SuperNodes, or wait "
            "longer: first-timeout."
        )
    return nodes
