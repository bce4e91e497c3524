"""A private training at one holder, as the server orchestrates it: plan, progress, network.

The server sends settings and gets counts of steps, and in the end the network that the holder's
ledger has booked. It never sees a record, a gradient or a loss.
"""

import hashlib
import logging
import time
from collections.abc import Callable
from typing import Any

import torch

from fedtranscribe import wire
from fedtranscribe.capabilities import Capabilities
from fedtranscribe.config import FederationSettings
from fedtranscribe.data import ImageSet
from fedtranscribe.errors import ConfigError, HopelessPlanError, ProtocolError, QuorumError
from fedtranscribe.figures import draw_images, figures_available
from fedtranscribe.files import write_atomically
from fedtranscribe.methods.local_training import train_locally
from fedtranscribe.models import build, pick_device
from fedtranscribe.models.diffusion import load_synthesizer
from fedtranscribe.models.inference import accuracy
from fedtranscribe.refusals import Refusal, RefusalCode
from fedtranscribe.result import Result
from fedtranscribe.result_parts import Accuracy, Federation
from fedtranscribe.rounds.transport import Transport
from fedtranscribe.run_directory import DENOISER, RunDirectory
from fedtranscribe.synthesize.samples import ALL, chosen_labels
from fedtranscribe.tracking import Report, ignore
from fedtranscribe.wire import Message
from fedtranscribe.wire.trainings import (
    TrainedNetwork,
    TrainingProgress,
    ask_model,
    ask_train,
    read_progress,
    read_trained,
)

log = logging.getLogger(__name__)

TRAINERS = ("dp-promise", "dp-sad")

_GRID = 50
# Samples that a small CNN sees before it is tested, and its steps.
_JUDGED, _JUDGE_STEPS = 3_000, 1_000
_WORDS = {
    RefusalCode.POLICY: "its policy does not allow this training, or not at this cost",
    RefusalCode.BUDGET: "its budget does not allow this ε; ask for less",
    RefusalCode.QUOTA: "it keeps no more runs or bytes; its administrator can raise the quota",
    RefusalCode.MALFORMED: "the settings make no sense for its records; see its own log",
}


def train_at_holder(
    settings: FederationSettings,
    transport: Transport,
    run: RunDirectory,
    *,
    test: ImageSet | None,
    declared_public: bool = True,
    data_id: str | None = None,
    report: Report = ignore,
) -> Result:
    """Have one holder train a private diffusion model, and fetch it.

    Args:
        settings: of the run; `training` goes to the holder as it is.
        transport: reaches the holders.
        run: its folder; an interrupted run goes on where the holder is.
        test: held-out images to measure samples on, or None.
        declared_public: whether they belong to a published benchmark.
        data_id: of the records; a simulation knows it, a deployed server does not.
        report: receives progress.

    Returns:
        The result, as written to `metrics.json`.

    Raises:
        QuorumError: no holder that can, or it fell silent; the run can be resumed.
        ConfigError, HopelessPlanError: the holder refused.
        ProtocolError: what it sent makes no sense.
    """
    holder = _chosen(transport.capabilities(), settings)
    log.info("%s trains %s", holder, settings.method)
    asked = asked_of(settings)

    def plan(number: int, name: str) -> Message:
        return ask_train(number, run.run_id, asked, settings.slice_seconds)

    finished = False
    while not finished:
        standing: TrainingProgress = _ask(
            transport, settings, wire.TRAIN, holder, plan, read_progress
        )
        report({"stage": standing.stage, "done": standing.done, "total": standing.total})
        finished = standing.finished
    trained = _ask(
        transport,
        settings,
        wire.MODEL,
        holder,
        lambda number, name: ask_model(number, run.run_id),
        read_trained,
    )
    told = Federation(holders=1, holder=holder, bytes=transport.payload)
    return _keep(settings, run, trained, told, data_id, test, declared_public)


def asked_of(settings: FederationSettings) -> dict[str, Any]:
    """What the holder is told: the run's method and ε, and what differs from the profile."""
    chosen = settings.training.model_dump(mode="json", exclude_defaults=True)
    own = {name: getattr(settings, name) for name in ("method", "epsilon", "delta", "seed")}
    return {**chosen, **own}


def _chosen(told: dict[str, Any], settings: FederationSettings) -> str:
    able = [
        name
        for name, facts in sorted(told.items())
        if isinstance(facts, Capabilities) and settings.method in facts.trainers
    ]
    if settings.trainer is not None and settings.trainer not in able:
        raise QuorumError(
            f"Holder {settings.trainer} does not offer {settings.method}, or did not answer; "
            f"those that do: {', '.join(able) or 'none'}."
        )
    if not able:
        raise QuorumError(
            f"No holder offers {settings.method}; its policy file has to name it under trainers."
        )
    return settings.trainer or able[0]


def _ask(
    transport: Transport,
    settings: FederationSettings,
    message_type: str,
    holder: str,
    make: Callable[[int, str], Message],
    read: Callable[[Message], Any],
) -> Any:
    """What the holder says; a silent or failing one is asked again, which costs nothing twice."""
    for attempt in range(settings.retries + 1):
        if attempt:
            time.sleep(settings.retry_after * 2 ** (attempt - 1))
            log.warning("asking %s again", holder)
        content = transport.exchange(message_type, [holder], make).get(holder)
        if content is None:
            continue
        try:
            return read(content)
        except Refusal as refusal:
            if refusal.code is RefusalCode.INTERNAL:
                continue
            words = f"Holder {holder} refused: {_WORDS.get(refusal.code, refusal.code.value)}."
            kind = HopelessPlanError if refusal.code is RefusalCode.BUDGET else ConfigError
            raise kind(words) from None
    raise QuorumError(f"Holder {holder} does not answer; resume the run when it is back.")


def _keep(
    settings: FederationSettings,
    run: RunDirectory,
    trained: TrainedNetwork,
    federation: Federation,
    data_id: str | None,
    test: ImageSet | None,
    declared_public: bool,
) -> Result:
    """Write network and result, once the network is the one that the holder describes."""
    if hashlib.sha256(trained.network).hexdigest() != trained.facts.diffusion.sha256:
        raise ProtocolError(
            f"The network of holder {federation.holder} is not the one that it describes."
        )
    write_atomically(run.path / DENOISER, trained.network)
    run.write_events([{"holder": federation.holder, "release": dict(trained.release)}])
    scores = _show(settings, run, test)
    run.write_scores(scores)
    result = Result(
        # Its cost and its shape, as the holder says them; all else is this side's own.
        method=trained.facts.method,
        public_data=trained.facts.public_data,
        guarantee=trained.facts.guarantee,
        diffusion=trained.facts.diffusion,
        federation=federation,
        run=run.run_id,
        rows=1,
        data=settings.data,
        data_id=data_id,
        class_names=_class_names(settings, trained, test),
        accuracy=Accuracy.of(scores if declared_public else {}),
        settings=settings.model_dump(mode="json", exclude_none=True),
    )
    result.write(run.path)
    return result


def _class_names(
    settings: FederationSettings, trained: TrainedNetwork, test: ImageSet | None
) -> tuple[str, ...] | None:
    """What the network's labels are called; clusters have no names."""
    named = trained.facts.diffusion.classes and settings.training.labels == "own"
    return test.class_names if named and test is not None else None


def _show(
    settings: FederationSettings, run: RunDirectory, test: ImageSet | None
) -> dict[str, float]:
    """Draw samples of the network that came, and measure them where there is something to."""
    device = pick_device(settings.device)
    model = load_synthesizer(run.path / DENOISER).to(device)
    classes = model.classes
    num = _JUDGED if test is not None and classes else _GRID
    labels = chosen_labels(ALL, num, classes, settings.seed)
    images = model.draw(labels, settings.seed)
    if figures_available():
        draw_images(images[:_GRID], labels[:_GRID], run.path / "images.png")
    if test is None or not classes:
        return {}
    network = build("cnn", test.classes, test.channels, test.size, seed=settings.seed).to(device)
    samples = ImageSet("samples", "samples", images, labels, test.classes)
    rng = torch.Generator().manual_seed(settings.seed)
    train_locally(network, samples, settings.baseline, _JUDGE_STEPS, rng)
    return {"downstream": accuracy(network, test.images, test.labels)}
