"""The ServerApp and ClientApp of a simulation; the folders under `simulations/` only name them."""

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedtranscribe.config import PUBLIC_SHAPES, FederationSettings
from fedtranscribe.config.catalogue import expect_network
from fedtranscribe.data import DataSplit, ImageSet, NamedData, is_published, load_public
from fedtranscribe.data.imageset import expect_single_labels
from fedtranscribe.errors import QuorumError
from fedtranscribe.evaluation.evaluate import cnn_judge
from fedtranscribe.flower.apps import Scalar, settings_from
from fedtranscribe.flower.baselines import (
    answer_training,
    baseline_result,
    expect_unlabelled,
    holder_of,
    no_guarantee,
    run_baseline,
)
from fedtranscribe.flower.client_app import make_client_app, open_simulated, simulated_part
from fedtranscribe.flower.over_flower import Address, OverFlower
from fedtranscribe.flower.server_apps import make_server_app
from fedtranscribe.models import Classifier, build, pick_device, save_network
from fedtranscribe.models.ensemble import Ensemble
from fedtranscribe.models.inference import accuracy
from fedtranscribe.models.teachers import ensemble_accuracy
from fedtranscribe.results.parts import Accuracy, StatedGuarantee
from fedtranscribe.results.progress import Tracker, check_tracking
from fedtranscribe.results.run_directory import STUDENT, RunDirectory
from fedtranscribe.runs.federate import federate
from fedtranscribe.runs.learning import HeldOut
from fedtranscribe.runs.simulation import holder_name, holders_folder, load_data, partitions
from fedtranscribe.runs.simulation import show_plan as plan_private
from fedtranscribe.runs.single_node import TRAINERS, train_at_holders
from fedtranscribe.runs.student_side import (
    StudentSide,
    build_student_side,
    public_images,
    with_features,
)
from fedtranscribe.text import counted

log = logging.getLogger(__name__)

_NODES_WITHIN = 60.0
_NODES_STILL = 6  # looks, half a second apart
# Hundreds of teachers on ten thousand images would take longer than the run itself.
_ENSEMBLE_IMAGES = 2_000


def simulated_client_app(name: str) -> ClientApp:
    """The ClientApp of the simulation called `name`; it trains for the baselines as well."""
    app = make_client_app(lambda context, number: open_simulated(context, number, name))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        number = holder_of(message)
        settings, part = simulated_part(context, number)
        network = build(settings.student_architecture, part.classes, part.channels, part.size)
        network.to(pick_device(settings.device))
        seed = settings.seed * settings.holders + number
        return answer_training(message, network, part, settings.baseline, seed)

    return app


def simulated_server_app(name: str) -> ServerApp:
    """The ServerApp of the simulation called `name`."""
    return make_server_app(name, _serve)


def _serve(grid: Grid, settings: FederationSettings, out: Path) -> None:
    settings, split, _ = _prepared(settings)
    starting = RunDirectory.resume if settings.resume else RunDirectory.create
    run = starting(out, settings)
    wanted = settings.with_generator and settings.method == "feddpsd"
    if run.finished and not run.lacks_generator(wanted=wanted):
        log.info("this run was complete already; nothing was spent")
        return
    addresses = _addresses(grid, settings.holders)
    if settings.method in TRAINERS:
        result = train_at_holders(
            settings,
            OverFlower(grid, addresses, settings.timeout, settings.first_timeout),
            run,
            test=split.test,
            judge=cnn_judge(settings.seed),
            declared_public=is_published(settings.data),
            data_id=split.train.data_id,
            report=Tracker(out, settings),
        )
        log.info("%s", result.guarantee)
        log.info("results and network: %s", out)
        return
    if settings.method != "feddpsd":
        _serve_baseline(grid, addresses, settings, run, split)
        return
    transport = OverFlower(grid, addresses, settings.timeout, settings.first_timeout)
    result = federate(
        settings,
        transport,
        run,
        expected=settings.holders,
        test=HeldOut(split.test, is_published(settings.data)),
        ensemble=lambda: _ensemble(settings, out, split),
        report=Tracker(out, settings),
    )
    if result.accuracy is not None and result.accuracy.student is not None:
        log.info("accuracy of the student: %s", f"{result.accuracy.student:.1%}")
    published = result.guarantee.published
    log.info("%s", result.guarantee)
    if published is not None and published.epsilon is not None:
        log.info("the published formula prints %.4g, which is no guarantee", published.epsilon)
    log.info("results, networks and figures: %s", out)


def show_plan(run_config: Mapping[str, Scalar], say: Callable[[str], None]) -> StatedGuarantee:
    """Say what a packaged app would ask and cost; nothing is started, trained, spent or written."""
    settings, split, parts = _prepared(settings_from(run_config))
    for line in split.words:
        say(line)
    if settings.method in ("feddpsd", *TRAINERS):
        return plan_private(settings, parts, say)
    _baseline_side(settings, split)
    say(f"method={settings.method} has NO privacy: holders send their networks")
    steps, rounds = settings.baseline.local_steps, settings.baseline.rounds
    if settings.method != "fedavg":  # all rounds' steps in one
        steps, rounds = steps * rounds, 1
    say(
        f"each of {counted(settings.holders, 'holder')} trains {steps:,} steps in each of "
        f"{counted(rounds, 'round')}"
    )
    cost = no_guarantee(settings)
    say(cost.cost)
    return cost


def _prepared(
    settings: FederationSettings,
) -> tuple[FederationSettings, DataSplit, list[ImageSet]]:
    """Settings as a run stores them, its data, and each holder's part."""
    check_tracking(settings)
    if settings.method == "feddpsd":
        expect_network(settings.teacher)
    split = load_data(settings)
    # Too few records for the holders are found here, before a worker stumbles over them.
    parts = partitions(settings, split.train)
    _refuse_private_images(settings, NamedData.of(settings.data, split))
    return with_features(settings.as_stored(), split.train.size), split, parts


def _refuse_private_images(settings: FederationSettings, private: NamedData) -> None:
    """The user of a simulation has all the data: public images are compared with the images."""
    if settings.method in TRAINERS:
        setting, name = "pretrain_data", settings.training.pretrain_data
    else:
        setting, name = "public_data", settings.public_data
    if name not in (None, "none", PUBLIC_SHAPES):
        load_public(
            setting, name, private, settings.data_root, settings.download, settings.as_public
        )


def _serve_baseline(
    grid: Grid,
    addresses: list[Address],
    settings: FederationSettings,
    run: RunDirectory,
    split: DataSplit,
) -> None:
    log.warning("method=%s has NO privacy: holders send their networks", settings.method)
    report = Tracker(run.path, settings)
    public, side = _baseline_side(settings, split)

    def evaluate(network: Classifier) -> float:
        return accuracy(network, split.test.blocks(), split.test.labels)

    published = is_published(settings.data)

    run_baseline(
        settings.method,  # type: ignore[arg-type]
        grid,
        addresses,
        side.student,
        side.network,
        settings.baseline,
        public=public.images if public is not None else None,
        rng=side.rng,
        timeout=settings.first_timeout,
        # On anybody's own records accuracy is private, though the network is not.
        evaluate=evaluate if published else None,
        report=report,
    )
    scores = {"student": evaluate(side.student)}
    result = baseline_result(settings, run, Accuracy.of(scores if published else {}))
    run.write_scores(scores)
    save_network(side.student, run.path / STUDENT)
    result.write(run.path)
    log.info("method=%s is done; its student is NOT private", settings.method)
    log.info("results: %s", run.path)


def _baseline_side(
    settings: FederationSettings, split: DataSplit
) -> tuple[ImageSet | None, StudentSide]:
    """Public images of a baseline, and its networks before any training."""
    train, private = split.train, NamedData.of(settings.data, split)
    expect_single_labels(train.multilabel, f"method={settings.method}")
    public = public_images(settings, train.channels, train.size, private)
    expect_unlabelled(settings.method, public)
    shape = train.classes, train.channels, train.size
    # The generator of DENSE sees no public images: it is data-free.
    side = build_student_side(settings, *shape, None, pick_device(settings.device))
    _ = side.network  # refuses sizes that it cannot make
    return public, side


def _addresses(grid: Grid, holders: int) -> list[Address]:
    """Spread the holders over the nodes there are; any number of nodes will do.

    Flower starts the server before it has registered all nodes, so their number has to stand
    still first, unless there is one for every holder.
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
    """How good the holders' teachers are on the first declared-public test images."""
    folders = [holders_folder(out) / holder_name(i) / "teachers" for i in range(settings.holders)]
    teachers = [Ensemble(f, pick_device(settings.device)) for f in folders if f.exists()]
    if not teachers:  # none was asked, so none was trained
        return {}
    measured = slice(_ENSEMBLE_IMAGES)
    return ensemble_accuracy(teachers, split.test.pixels[measured], split.test.labels[measured])
