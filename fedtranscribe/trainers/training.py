"""One private training at its holder: booked once, checkpointed, and its result committed.

    start ── reserve in the data's ledger, load the checkpoint if there is one
    step  ── one optimiser step; a checkpoint every so often
    finish ─ last checkpoint → digest into the ledger → denoiser.safetensors

A plain object, driven where the data are: the command line in a loop, a holder's service from
a thread. The ledger is opened where it is needed, because a thread needs one of its own.

Guarantee:
    That of the trainer's release, booked before the first step: a training is one query of the
    ledger, with the released weights as its answer. Until these are committed nothing that depends
    on the data leaves `private/`; what stands outside are counts of steps. So steps that a crash
    undid may be taken again, with fresh noise and coins, under the same reservation. Once the
    digest of a result is in the ledger, no other result of this training is given out: a second
    one, from an older checkpoint, is refused.
    The time that a step takes reveals the size of its secret batch. `progress.jsonl` has times, of
    fifty parts of a stage at most: it is for the holder, as is asking for `progress` ever so often.
"""

import hashlib
import io
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedtranscribe.errors import ConfigError, QueryConflictError, StorageError
from fedtranscribe.files import write_atomically
from fedtranscribe.models.diffusion import Synthesizer, save_synthesizer
from fedtranscribe.models.unet import Denoiser
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.questions.training_messages import TrainingProgress
from fedtranscribe.results.progress import Report, ignore
from fedtranscribe.results.run_directory import DENOISER, RunDirectory
from fedtranscribe.text import expect_name
from fedtranscribe.trainers.preparation import PreparedTraining
from fedtranscribe.trainers.stages import Trainer

OpenLedger = Callable[[], AbstractContextManager[Ledger]]

_NOTES = 50


@dataclass(frozen=True)
class Trained:
    """What a training ended with."""

    path: Path  # the released network
    sha256: str  # of that file, as the ledger has it
    # sequence and hash of the ledger's last entry; None where nothing was booked
    head: tuple[int, str] | None


class Training:
    """Takes a prepared training to its end in a run's folder."""

    def __init__(
        self,
        prepared: PreparedTraining,
        trainer: Trainer,
        run: RunDirectory,
        open_ledger: OpenLedger,
        report: Report = ignore,
    ) -> None:
        self._prepared, self._trainer, self._run = prepared, trainer, run
        self._open_ledger, self._report = open_ledger, report
        self._stages = dict(prepared.plan.steps)
        self._standing = self._at(next(iter(self._stages)), 0)
        self._saved = time.monotonic()
        self.result: Trained | None = None

    @property
    def query_id(self) -> str:
        """Under which the ledger books the training."""
        return training_id(self._run.run_id)

    @property
    def caveats(self) -> tuple[str, ...]:
        """Why the result is NOT private; empty if it is."""
        return self._trainer.caveats()

    @property
    def progress(self) -> TrainingProgress:
        """How far it is; may be asked for from another thread."""
        return self._standing

    def start(self) -> None:
        """Book the training, once, and go to where its last checkpoint was taken."""
        answered, release = False, self._trainer.release
        if release is not None:
            with self._open_ledger() as ledger:
                reserved = ledger.reserve(
                    self.query_id, self._prepared.binding, release, self._run.run_id
                )
                booked = ledger.releases(self._run.run_id)
            self._run.write_events([each.to_json() for each in booked])
            answered = reserved.answer is not None
        self._load()
        if answered and not self._trainer.finished:
            raise QueryConflictError(
                f"The result of {self.query_id} was committed before, and its last checkpoint is "
                "gone; what an older one leads to would cost again. Start a new run with another "
                "--out."
            )

    def step(self) -> bool:
        """Take one optimiser step, and a checkpoint if it is time; whether training is finished."""
        if not self._trainer.finished:
            self._trainer.train(1, self._note)
        due = time.monotonic() - self._saved >= self._prepared.settings.checkpoint_seconds
        if due and not self._trainer.finished:
            self.save()
        return self._trainer.finished

    def save(self) -> None:
        """Write the checkpoint, whole or not at all; between steps only."""
        buffer = io.BytesIO()
        # The stages' bounds say where in them the trainer is; the rest is the trainer's own.
        standing = {"stage": self._standing.stage, "done": self._standing.done}
        device = self._prepared.device.type
        torch.save({"state": self._trainer.state(), "at": standing, "device": device}, buffer)
        write_atomically(self.checkpoint, buffer.getvalue())
        self._saved = time.monotonic()

    def finish(self) -> Trained:
        """Commit the finished training, then write its network where it may be released."""
        assert self._trainer.finished
        # Saved first: whether it diverged is said below, and must stay the same when asked again.
        self.save()
        network = self._trainer.network
        _expect_finite(network)
        draft = self._run.private / DENOISER
        plan = self._prepared.plan
        schedule, sampling = plan.settings.schedule, plan.settings.sampling
        save_synthesizer(Synthesizer(network, schedule, sampling, plan.conditional), draft)
        content = draft.read_bytes()
        digest, head = hashlib.sha256(content).hexdigest(), None
        if self._trainer.release is not None:
            with self._open_ledger() as ledger:
                committed = ledger.commit(self.query_id, digest.encode())
            head = (committed.sequence, committed.hash)
        path = self._run.path / DENOISER
        write_atomically(path, content)
        draft.unlink()
        self.result = Trained(path, digest, head)
        return self.result

    # ---------------------------------------------------------------- checkpoint and counts

    @property
    def checkpoint(self) -> Path:
        """Where its state is kept until the end."""
        return _checkpoint_of(self._run)

    def _load(self) -> None:
        if not self.checkpoint.exists():
            return
        stored = _read(self.checkpoint)
        device = self._prepared.device.type
        if stored["device"] != device:
            raise ConfigError(
                f"The checkpoint was made with device={stored['device']}, not {device}; resume "
                f"with --device {stored['device']}."
            )
        self._trainer.load_state(_with_physical_batch(stored["state"], self._prepared))
        self._standing = self._at(stored["at"]["stage"], stored["at"]["done"])

    def _note(self, stage: str, done: int, total: int) -> None:
        self._standing = self._at(stage, done)
        if done == total or done % math.ceil(total / _NOTES) == 0:
            self._report({"stage": stage, "done": done, "total": total})

    def _at(self, stage: str, done: int) -> TrainingProgress:
        names = list(self._stages)
        before = sum(self._stages[name] for name in names[: names.index(stage)])
        every = sum(self._stages.values())
        return TrainingProgress(
            stage, done, self._stages[stage], before + done, every, before + done == every
        )


def training_id(run: str) -> str:
    """Under which id the ledger books the training of a run."""
    return expect_name("query id", f"{run}/training")


def forget_checkpoint(run: RunDirectory) -> None:
    """Remove what a finished run needs no more; what follows from it was given out."""
    _checkpoint_of(run).unlink(missing_ok=True)


def _checkpoint_of(run: RunDirectory) -> Path:
    return run.private / "checkpoint.pt"


def _read(path: Path) -> dict[str, Any]:
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True)
        if not {"state", "at", "device"} <= stored.keys():
            raise ValueError("keys")
        return stored
    except Exception as error:  # torch raises many kinds for a damaged file
        raise StorageError(
            f"{path} is damaged ({type(error).__name__}); start a new run with another --out. "
            "The ledger keeps what was spent."
        ) from None


def _with_physical_batch(state: dict[str, Any], prepared: PreparedTraining) -> dict[str, Any]:
    """A state with the physical batch that was asked for: where memory ran out it has to change."""
    asked = prepared.settings.physical_batch
    if asked is None:
        return state
    return {**state, "physical_batch": dict.fromkeys(state["physical_batch"], asked)}


def _expect_finite(network: Denoiser) -> None:
    # Weights are private by what was booked, so that this may be told.
    if not all(bool(tensor.isfinite().all()) for tensor in network.state_dict().values()):
        raise ConfigError(
            "Training has diverged: its weights are not finite. Start a new run with lower "
            "learning rates (in the method's table of --config); the ledger keeps what was spent."
        )
