"""Private trainings at holders, as the server orchestrates them: plan, progress, network.

The server sends settings and gets counts of steps, and in the end the network that the holder's
ledger has booked. It never sees a record, a gradient or a loss. One holder trains, or with
`trainer = "all"` each of them a network of its own; what becomes of several is `runs.pooled`.
"""

import json
import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

from fedtranscribe.config import FederationSettings
from fedtranscribe.data import ImageSet
from fedtranscribe.errors import ConfigError, HopelessPlanError, QuorumError, StorageError
from fedtranscribe.files import read_json, write_atomically
from fedtranscribe.questions import messages as wire
from fedtranscribe.questions.capabilities import Capabilities
from fedtranscribe.questions.messages import Message
from fedtranscribe.questions.refusals import Refusal, RefusalCode
from fedtranscribe.questions.training_messages import (
    TrainedNetwork,
    TrainingProgress,
    ask_model,
    ask_train,
    read_progress,
    read_trained,
)
from fedtranscribe.results.allowed import expect_allowed
from fedtranscribe.results.parts import Federation
from fedtranscribe.results.progress import Report, ignore
from fedtranscribe.results.result import Result
from fedtranscribe.results.run_directory import RunDirectory
from fedtranscribe.rounds.roster import RosterReplies
from fedtranscribe.rounds.transport import Transport
from fedtranscribe.runs.pooled import Tested, keep, pool
from fedtranscribe.text import expect_name
from fedtranscribe.trainers.synthesize import Judge

log = logging.getLogger(__name__)

TRAINERS = ("dp-promise", "dp-sad")

TRAINING_HOLDERS = "trainers.json"
"""Names who trains in a run."""

EVERY = "all"
"""As the trainer: every holder that can, each its own network."""

Reply = TypeVar("Reply")

_WORDS = {
    RefusalCode.POLICY: "its policy does not allow this training, or not at this cost",
    RefusalCode.BUDGET: "its budget does not allow this ε; ask for less",
    RefusalCode.QUOTA: "its quota of runs or bytes is used up; its administrator can raise it",
    RefusalCode.MALFORMED: "the settings do not fit its records; see its own log",
}


def train_at_holders(
    settings: FederationSettings,
    transport: Transport,
    run: RunDirectory,
    *,
    test: ImageSet | None,
    judge: Judge | None = None,
    declared_public: bool = True,
    data_id: str | None = None,
    report: Report = ignore,
) -> Result:
    """Have holders train private diffusion models, and fetch them.

    Args:
        settings: of the run; `training` goes to the holder as it is.
        transport: reaches the holders.
        run: its folder; an interrupted run goes on where the holder is.
        test: held-out images to measure samples on, or None.
        judge: measures samples on them; None leaves that out.
        declared_public: whether they belong to a public benchmark.
        data_id: of the records; a simulation knows it, a deployed server does not.
        report: receives progress.
    """
    holders = _fixed(run, transport.capabilities(), settings)
    log.info("%s with %s", settings.method, ", ".join(holders))
    asked = asked_of(settings)

    def plan(number: int, name: str) -> Message:
        return ask_train(number, run.run_id, asked, settings.slice_seconds)

    standing: dict[str, TrainingProgress] = {}
    while left := [h for h in holders if h not in standing or not standing[h].finished]:
        standing |= _ask(transport, settings, wire.TRAIN, left, plan, read_progress)
        report(_facts_of(list(standing.values())))
    trained: dict[str, TrainedNetwork] = _ask(
        transport,
        settings,
        wire.MODEL,
        holders,
        lambda number, name: ask_model(number, run.run_id),
        read_trained,
    )
    trained = {holder: trained[holder] for holder in holders}  # not in the order of the replies
    tested = Tested(test, judge, declared_public, data_id)
    if settings.trainer != EVERY:
        (holder,) = holders
        federation = Federation(holders=1, holder=holder, bytes=transport.payload)
        return keep(settings, run, trained[holder], federation, tested)
    return pool(settings, run, trained, transport.payload, tested)


def _facts_of(standing: list[TrainingProgress]) -> dict[str, Any]:
    """How far one training is, or several together."""
    if len(standing) == 1:
        (one,) = standing
        return {"stage": one.stage, "done": one.done, "total": one.total}
    done, total = sum(s.steps_done for s in standing), sum(s.steps for s in standing)
    return {"stage": f"training at {len(standing)} holders", "done": done, "total": total}


def asked_of(settings: FederationSettings) -> dict[str, Any]:
    """What is sent to the holder: the run's method and ε, and what differs from the profile."""
    chosen = settings.training.model_dump(mode="json", exclude_defaults=True)
    own = {name: getattr(settings, name) for name in ("method", "epsilon", "delta", "seed")}
    return {**chosen, **own}


def _able(capabilities: RosterReplies, settings: FederationSettings) -> list[str]:
    return [
        name
        for name, facts in sorted(capabilities.items())
        if isinstance(facts, Capabilities) and settings.method in facts.trainers
    ]


def _fixed(
    run: RunDirectory, capabilities: RosterReplies, settings: FederationSettings
) -> list[str]:
    """Who trains: settled when the run first starts, because another holder would pay anew."""
    path = run.path / TRAINING_HOLDERS
    if not path.exists():
        chosen = training_holders(capabilities, settings)
        content = {"holders": chosen}
        expect_allowed(TRAINING_HOLDERS, content)
        write_atomically(path, json.dumps(content, indent=2).encode())
        return chosen
    try:
        chosen = [expect_name("holder", name) for name in read_json(path)["holders"]]
    except (OSError, ConfigError, KeyError, TypeError, ValueError):
        raise StorageError(f"{path} is damaged; start a new run with another out.") from None
    able = _able(capabilities, settings)
    if away := [holder for holder in chosen if holder not in able]:
        raise QuorumError(
            f"Holder {', '.join(away)} began to train in this run, and does not offer "
            f"{settings.method} now or did not answer; resume the run when it is back."
        )
    return chosen


def training_holders(capabilities: RosterReplies, settings: FederationSettings) -> list[str]:
    """Who trains in a run that begins now."""
    able = _able(capabilities, settings)
    named = None if settings.trainer == EVERY else settings.trainer
    if named is not None and named not in able:
        raise QuorumError(
            f"Holder {named} does not offer {settings.method}, or did not answer; "
            f"those that do: {', '.join(able) or 'none'}."
        )
    if not able:
        raise QuorumError(
            f"No holder offers {settings.method}; its policy file has to name it under trainers."
        )
    if settings.trainer == EVERY:
        if len(able) < settings.holders:
            raise QuorumError(
                f"Expected {settings.holders} holders that offer {settings.method}, got "
                f"{len(able)}: {', '.join(able)}. Wait for the others, or set holders={len(able)}."
            )
        return able
    return [named or able[0]]


def _ask(
    transport: Transport,
    settings: FederationSettings,
    message_type: str,
    holders: list[str],
    make: Callable[[int, str], Message],
    read: Callable[[Message], Reply],
) -> dict[str, Reply]:
    """What holders say; silent or failing ones are asked again, which costs nothing twice."""
    replies: dict[str, Reply] = {}
    for attempt in range(settings.retries + 1):
        silent = [holder for holder in holders if holder not in replies]
        if not silent:
            break
        if attempt:
            time.sleep(settings.retry_after * 2 ** (attempt - 1))
            log.warning("asking %s again", ", ".join(silent))
        for holder, content in transport.exchange(message_type, silent, make).items():
            try:
                replies[holder] = read(content)
            except Refusal as refusal:
                if refusal.code is not RefusalCode.INTERNAL:
                    raise _refused(holder, refusal) from None
    if silent := [holder for holder in holders if holder not in replies]:
        raise QuorumError(
            f"Holder {', '.join(silent)} does not answer; resume the run when it is back."
        )
    return replies


def _refused(holder: str, refusal: Refusal) -> ConfigError | HopelessPlanError:
    words = f"Holder {holder} refused: {_WORDS.get(refusal.code, refusal.code.value)}."
    kind = HopelessPlanError if refusal.code is RefusalCode.BUDGET else ConfigError
    return kind(words)
