"""Private trainings that a holder carries out for a server: planned there, booked and run here.

A message gives the training so many seconds; then it is checkpointed, and the reply says how far it
is. So there is no thread to lose: whichever process gets the next message goes on from the
checkpoint, and a server that falls silent costs nothing. The network leaves when its digest is in
the ledger, and nothing else that depends on a record ever does.

Guarantee:
    That of `synthesize.training`: one training is one reservation, made before its first step. The
    server chooses method, ε and sizes within the holder's policy; data, ledger, noise and coins are
    the holder's own. Calibration is by the sound figure and noise cannot be left out.
"""

import contextlib
import hashlib
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtranscribe.config import PUBLIC_SHAPES, SynthesizeSettings, TrainingOptions, build
from fedtranscribe.config.facts import Facts
from fedtranscribe.data import DataSplit, ImageSet, is_published
from fedtranscribe.errors import ConfigError, ProtocolError, StorageError
from fedtranscribe.files import read_json_lines
from fedtranscribe.noise.sources import BitSource, NoiseSource
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.units import Adjacency
from fedtranscribe.questions.training_messages import TrainedNetwork, TrainingProgress
from fedtranscribe.results.result import Result, TrainedFacts
from fedtranscribe.results.run_directory import DENOISER, RunDirectory
from fedtranscribe.trainers.preparation import PreparedTraining, prepare
from fedtranscribe.trainers.synthesize import describe
from fedtranscribe.trainers.training import Training

_LEAST_SECONDS = 10.0

OpenLedger = Callable[[], AbstractContextManager[Ledger]]

# What a server may choose; all else is the holder's.
CHOSEN = frozenset({"method", "epsilon", "delta", "seed", *TrainingOptions.model_fields})


@dataclass
class _Open:
    prepared: PreparedTraining
    training: Training
    run: RunDirectory
    saved: int | None = None

    def stamp(self) -> int | None:
        """Which checkpoint lies in the folder now."""
        path = self.training.checkpoint
        return path.stat().st_mtime_ns if path.exists() else None


class Trainings:
    """One holder's private trainings.

    Args:
        records: gives the PRIVATE records, when a training needs them.
        ledger: the budget book of the data.
        open_ledger: opens it under the policy's limit.
        folder: the holder's own, for checkpoints and finished networks.
        device: where to train.
        least_seconds: the shortest slice. The time of a single step would tell how many records
            were in its secret batch; over many steps that says next to nothing.
        noise, bits: OS entropy unless a test says otherwise.
    """

    def __init__(
        self,
        records: Callable[[], ImageSet],
        ledger: Path,
        open_ledger: OpenLedger,
        folder: Path,
        device: str,
        *,
        least_seconds: float = _LEAST_SECONDS,
        noise: NoiseSource | None = None,
        bits: BitSource | None = None,
    ) -> None:
        self._records = records
        self._ledger, self._open_ledger = ledger, open_ledger
        self._folder = folder
        self._device = device
        self._least_seconds = least_seconds
        self._noise, self._bits = noise, bits
        self._now: tuple[tuple[str, SynthesizeSettings], _Open] | None = None

    def facts(self) -> Facts:
        """What is public about the records."""
        return self._records().facts

    def settings(self, asked: Mapping[str, Any]) -> SynthesizeSettings:
        """What a server asks for and what is the holder's own, put together; quick."""
        if strange := sorted(set(asked) - CHOSEN):
            raise ConfigError(f"{strange[0][:80]} is not for a server to choose; leave it out.")
        _expect_public(asked.get("pretrain_data"))
        _expect_counted(asked.get("adjacency"))
        own = {"data": self._records().name, "ledger": self._ledger, "device": self._device}
        return build(SynthesizeSettings, {**asked, **own})

    def prepare(self, settings: SynthesizeSettings) -> PreparedTraining:
        """Plan a training on the holder's records; nothing is written or spent."""
        records = self._records()
        # Held-out images play no part at a holder: it is measured where the network goes.
        return prepare(settings, DataSplit(records, records), asked_by_server=True)

    def knows(self, run: str) -> bool:
        """Whether a training of this run has begun here."""
        return (self._folder_of(run) / "config.toml").exists()

    @property
    def size(self) -> int:
        """Bytes of all checkpoints and networks on disk."""
        return folder_size(self._folder)

    def advance(self, run: str, settings: SynthesizeSettings, seconds: float) -> TrainingProgress:
        """Begin a training or go on with it, for so many seconds.

        Args:
            run: its name in the ledger.
            settings: made by `settings`; the same ones for the whole run.
            seconds: after which the step in hand is the last for now; `least_seconds` or more.
        """
        now = self._opened(run, settings)
        training = now.training
        until = time.monotonic() + max(seconds, self._least_seconds)
        if training.progress.finished:
            self._finish(now)
            return training.progress
        finished = training.step()
        while not finished and time.monotonic() < until:
            finished = training.step()
        training.save()
        now.saved = now.stamp()
        if finished:
            self._finish(now)
        return training.progress

    def result(self, run: str) -> TrainedNetwork:
        """The finished training of a run; as often as it is asked for."""
        folder = self._folder_of(run)
        try:
            facts = TrainedFacts.of(Result.read(folder))
            event = read_json_lines(folder / "events.jsonl")[0]
            network = (folder / DENOISER).read_bytes()
        except (OSError, ValueError, IndexError, StorageError):
            raise ProtocolError(f"No training of run {run[:80]!r} is finished here.") from None
        return TrainedNetwork(network, facts, event)

    # ---------------------------------------------------------------- small parts

    def _opened(self, run: str, settings: SynthesizeSettings) -> _Open:
        """The training in memory, unless another process has taken it further."""
        key = run, settings
        if self._now is not None and self._now[0] == key:
            training = self._now[1]
            if training.saved == training.stamp() or training.training.result is not None:
                return training
        opened = self._open(run, settings)
        self._now = key, opened
        return opened

    def _open(self, run: str, settings: SynthesizeSettings) -> _Open:
        path = self._folder_of(run)
        # Before the noise is looked for, which may take a minute.
        known = RunDirectory.resume(path, settings) if self.knows(run) else None
        prepared = self.prepare(settings)
        if known is None:
            with self._open_ledger() as ledger:
                assert prepared.plan.release is not None
                ledger.check(prepared.plan.release)
        trainer = prepared.trainer(self._noise, self._bits)
        place = known or RunDirectory.create(path, settings, run)
        training = Training(prepared, trainer, place, self._open_ledger)
        training.start()
        opened = _Open(prepared, training, place)
        opened.saved = opened.stamp()
        return opened

    def _finish(self, now: _Open) -> None:
        if now.run.finished:
            return
        trained = now.training.finish()
        caveats = now.training.caveats
        described = describe(now.prepared, now.run, caveats, trained, self._open_ledger)
        described.write(now.run.path)

    def _folder_of(self, run: str) -> Path:
        # The name comes from the server: it must not become a path.
        return self._folder / hashlib.sha256(run.encode()).hexdigest()[:32]


def folder_size(folder: Path) -> int:
    """Bytes of all files in a folder; 0 where there is none."""
    total = 0
    for path in folder.rglob("*"):
        # A temporary file may be gone again.
        with contextlib.suppress(OSError):
            total += path.lstat().st_size
    return total


def _expect_public(name: object) -> None:
    """A server may name a public set, never a file: what it calls public is not protected."""
    if name in (None, "none", PUBLIC_SHAPES):
        return
    if not (isinstance(name, str) and is_published(name)):
        raise ConfigError(
            f"Expected pretrain_data={name!r} to be the name of a public set, {PUBLIC_SHAPES!r} "
            "or 'none': a server cannot call files of this holder public."
        )


def _expect_counted(adjacency: object) -> None:
    """A training counts its records, and its batches and the server learn the number."""
    if adjacency == Adjacency.ADD_REMOVE:
        raise ConfigError(
            "Expected adjacency=zero-out or replace: a holder's training counts its records, and "
            "add-remove would have to hide how many there are."
        )
