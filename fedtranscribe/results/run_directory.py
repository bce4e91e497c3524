"""A run is a folder: settings, checkpoint, what was released, metrics, figures, networks.

config.toml               the settings, resolved
events.jsonl              one line per answered query: mechanism, rows, cost
checkpoints/state.pt      everything needed to go on, the query in flight included
answers.json              noisy answers to questions that other packages bring
metrics.json              the result, both figures, the accuracy curve
progress.jsonl            one line per round: rows, ε so far, losses
images.png, accuracy.png  synthetic samples; accuracy over answered rows
student.safetensors, generator.safetensors
private/                  never part of a release: teachers, all accuracies, key of central noise

What may stand outside `private/`, and why, is listed in `fedtranscribe.results.allowed`, and for
`metrics.json` said by the fields of `fedtranscribe.results.result.Result`.
"""

import contextlib
import io
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w
import torch

from fedtranscribe.config import Mark, Settings, marked, read_toml
from fedtranscribe.config.sources import NOISE_KEY, expect_new_run, expect_outside
from fedtranscribe.errors import ConfigError, StorageError
from fedtranscribe.files import read_object, unwritable, write_atomically
from fedtranscribe.privacy.release_plan import KEY_BYTES
from fedtranscribe.privacy.units import NoiseMode
from fedtranscribe.results.allowed import expect_allowed
from fedtranscribe.results.decisions import Confusion, Findings
from fedtranscribe.results.result import CONFUSION, METRICS, SCORES

STUDENT = "student.safetensors"
GENERATOR = "generator.safetensors"
DENOISER = "denoiser.safetensors"
ANSWERS = "answers.json"
"""What was answered to questions of other packages."""
HOLDERS = "holders"
"""Folders, each a whole run, where every holder has trained a network of its own."""
_RECORDS = "private/records.json"
# Of checkpoints.
_VERSION = 7

DAMAGED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What goes wrong where a run's files hold values of other types than a run writes."""


@dataclass(frozen=True)
class Checkpoint:
    """Where a run can go on."""

    state: dict[str, Any]  # of method and holders, as `rounds.server` wrote it
    # as a dict; it was in flight when the state was stored, and is asked again first
    query: dict[str, Any]
    curve: list[Any]  # rows and accuracies so far, two lists


class RunDirectory:
    """One run's folder."""

    def __init__(self, path: Path, settings: Settings, run_id: str) -> None:
        self.path = path
        self.settings = settings
        self.run_id = run_id

    @classmethod
    def create(cls, path: Path, settings: Settings, run_id: str | None = None) -> "RunDirectory":
        """Start a run in a folder that is absent or empty."""
        expect_new_run(path)
        expect_outside(path, getattr(settings, "data", None) or "")
        # 128 random bits: query ids are bound for ever in the ledger, so they must not come back.
        run = cls(path, settings, run_id or f"run-{os.urandom(16).hex()}")
        if getattr(settings, "noise", None) == NoiseMode.CENTRAL:
            # Written before the run has a name on disk: whoever copies the run copies its key.
            write_atomically(path / NOISE_KEY, os.urandom(KEY_BYTES))
        dumped = settings.model_dump(mode="json", exclude_none=True)
        write_atomically(
            path / "config.toml", tomli_w.dumps({"run": run.run_id, **dumped}).encode()
        )
        return run

    @classmethod
    def resume(cls, path: Path, settings: Settings) -> "RunDirectory":
        """Go on with the run in a folder."""
        config = path / "config.toml"
        if not config.exists():
            raise StorageError(f"No run in {path} to resume; leave out --resume to start one.")
        stored = read_toml(config)
        run_id = stored.pop("run", None)
        if not isinstance(run_id, str):
            raise StorageError(f"{config} is not a fedtranscribe run; choose another --out.")
        now = json.loads(settings.model_dump_json(exclude_none=True))
        for key in sorted({*stored, *now} - marked(Mark.RESUMABLE, type(settings))):
            if stored.get(key) != now.get(key):
                raise ConfigError(
                    f"The run in {path} has {key}={stored.get(key)!r}, not {now.get(key)!r}; "
                    "resume with the settings it was started with."
                )
        return cls(path, settings, run_id)

    def abandon(self) -> None:
        """Take back a run that could not begin, so that its folder is free again."""
        (self.path / "config.toml").unlink(missing_ok=True)
        (self.path / _RECORDS).unlink(missing_ok=True)
        (self.path / NOISE_KEY).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # there is more in it, or it was never made
            self.private.rmdir()

    def bind_records(self, digest: str) -> None:
        """Remember which records in memory the run is about; one that goes on must get the same.

        Args:
            digest: of the data; PRIVATE, and kept under `private/`.
        """
        expect_same_records(self.path, digest)
        write_atomically(self.path / _RECORDS, json.dumps({"digest": digest}).encode())

    def noise_key(self) -> bytes:
        """The secret key, made with the run, of the noise that a server adds under `central`."""
        path = self.path / NOISE_KEY
        try:
            key = path.read_bytes()
        except OSError as error:
            key, why = b"", error.strerror or str(error)
        else:
            why = f"{len(key)} bytes of {KEY_BYTES}"
        if len(key) != KEY_BYTES:
            raise StorageError(
                f"Cannot read {path} ({why}): without this key the server would draw its noise a "
                "second time. Restore private/ from the folder that the run began in, or start a "
                "new run with another --out."
            )
        return key

    @property
    def private(self) -> Path:
        """What stays with the data holder."""
        return self.path / "private"

    @property
    def finished(self) -> bool:
        """Whether the result has been written."""
        return (self.path / METRICS).exists()

    def lacks_generator(self, *, wanted: bool) -> bool:
        """Whether a run that wants a generator has none yet."""
        return wanted and not (self.path / GENERATOR).exists()

    # ---------------------------------------------------------------- checkpoint

    def save_checkpoint(
        self, state: dict[str, Any], query: dict[str, Any], curve: list[Any]
    ) -> None:
        """Store state and the query in flight in one file, so that both or neither survive."""
        buffer = io.BytesIO()
        stored = {"state": state, "query": query, "curve": curve}
        torch.save({"version": _VERSION, **stored}, buffer)
        write_atomically(self._checkpoint, buffer.getvalue())

    def load_checkpoint(self) -> Checkpoint | None:
        """The last stored checkpoint; None at the start."""
        if not self._checkpoint.exists():
            return None
        try:
            stored = torch.load(self._checkpoint, weights_only=True)
            if stored.get("version") != _VERSION:
                raise StorageError(
                    f"{self._checkpoint} was written by another version of fedtranscribe; finish "
                    "the run with that one, or start a new run. The ledger keeps what was spent."
                )
            return Checkpoint(stored["state"], stored["query"], stored["curve"])
        except StorageError:
            raise
        except Exception as error:  # torch raises many kinds for a damaged file
            raise StorageError(
                f"{self._checkpoint} is damaged ({type(error).__name__}); start a new run with "
                "another --out. The ledger keeps what was spent."
            ) from None

    def save_answer(self, query_id: str, answer: dict[str, Any]) -> None:
        """Store what was learned from a query, before it is learned; replaces the one before."""
        buffer = io.BytesIO()
        torch.save({"query": query_id, "answer": answer}, buffer)
        write_atomically(self._answer, buffer.getvalue())

    def load_answer(self, query_id: str) -> dict[str, Any] | None:
        """The stored answer, if the last one stored is of this query."""
        if not self._answer.exists():
            return None
        try:
            stored = torch.load(self._answer, weights_only=True)
            return stored["answer"] if stored["query"] == query_id else None
        except Exception as error:  # torch raises many kinds for a damaged file
            raise StorageError(
                f"{self._answer} is damaged ({type(error).__name__}); start a new run with "
                "another --out. The ledgers keep what was spent."
            ) from None

    @property
    def generator_state(self) -> "StateFile":
        """Where the training of a generator, which asks nothing, can go on."""
        return StateFile(self.path / "checkpoints" / "generator.pt")

    @property
    def _answer(self) -> Path:
        return self.path / "checkpoints" / "answer.pt"

    @property
    def _checkpoint(self) -> Path:
        return self.path / "checkpoints" / "state.pt"

    # ---------------------------------------------------------------- results

    def write_events(self, events: list[dict[str, Any]]) -> None:
        """Replace `events.jsonl` by what the ledger has booked for this run."""
        for event in events:
            expect_allowed("events.jsonl", event)
        lines = "".join(json.dumps(event, sort_keys=True) + "\n" for event in events)
        write_atomically(self.path / "events.jsonl", lines.encode())

    def write_answers(self, answers: dict[str, dict[str, Any]]) -> None:
        """Keep what was answered to questions of other packages: values and noise, by kind."""
        expect_allowed(ANSWERS, answers)
        write_atomically(self.path / ANSWERS, json.dumps(answers, indent=2).encode())

    def write_scores(self, scores: dict[str, float]) -> None:
        """Keep all accuracies under `private/`; `result.Accuracy` has those that may leave it."""
        write_atomically(self._scores, json.dumps(scores, indent=2).encode())

    def write_confusion(self, confusion: Confusion | Findings) -> None:
        """Keep it under `private/`."""
        write_atomically(self.path / CONFUSION, json.dumps(confusion.to_json()).encode())

    def read_scores(self) -> dict[str, float]:
        """Accuracies so far; empty where `private/` has been taken away."""
        return read_object(self._scores) or {}

    @property
    def _scores(self) -> Path:
        return self.path / SCORES


class StateFile:
    """One state, replaced as a whole."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> dict[str, Any] | None:
        """What was stored last; None at the start."""
        if not self._path.exists():
            return None
        try:
            return torch.load(self._path, weights_only=True)
        except Exception as error:  # torch raises many kinds for a damaged file
            raise StorageError(
                f"{self._path} is damaged ({type(error).__name__}); delete it and resume: what it "
                "holds is computed again, and costs nothing."
            ) from None

    def save(self, state: dict[str, Any]) -> None:
        """Replace it."""
        buffer = io.BytesIO()
        torch.save(state, buffer)
        write_atomically(self._path, buffer.getvalue())


def expect_same_records(folder: Path, digest: str) -> None:
    """Refuse other records in memory than those that a run began with."""
    known = (read_object(folder / _RECORDS) or {}).get("digest", digest)
    if known != digest:
        raise ConfigError(
            f"The images, labels or ids passed are not those that the run in {folder} began with; "
            "pass the same ones, in the same order."
        )


def check_writable(path: Path) -> None:
    """Fail before any work if a run could not be stored there."""
    probe = path / ".probe"
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"x")
        probe.unlink()
    except OSError as error:
        raise unwritable(path, error) from None
