"""Masked runs that are killed (-9) at every durable write, one after another, and go on.

    python killed_rounds.py none FOLDER     # never killed
    python killed_rounds.py holder FOLDER   # one holder, at each of its writes in every stage
    python killed_rounds.py server FOLDER   # the server, at each of its writes; a run for each

Whoever is to die does its work in a child of this process, which has only one thread. FOLDER gets
`kills.txt`, a line per kill, and a folder for each run that came to its end.
"""

import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedtranscribe.config import DpsdSettings, FederationSettings, TeacherSettings
from fedtranscribe.data import load
from fedtranscribe.data.partitions import holder_name
from fedtranscribe.holder.masking import RoundStore
from fedtranscribe.holder.node import Node, reply_to
from fedtranscribe.noise.sources import SeededBits, SeededNoise
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.questions.messages import Message, pack, unpack
from fedtranscribe.results import run_directory
from fedtranscribe.results.run_directory import RunDirectory
from fedtranscribe.rounds import masked_sum
from fedtranscribe.rounds import round_state as round_progress
from fedtranscribe.rounds.transport import MakeMessage
from fedtranscribe.runs.federate import federate
from fedtranscribe.runs.simulation import open_holder, partitions
from fedtranscribe.runs.transports import InProcess

VICTIM = holder_name(1)
RUN = "run-fixed"  # seeded noise depends on it


class Reaper:
    """Kills its own process once at every point, or only at the point of a number.

    Args:
        log: a line per kill.
        doing: what the process does, for the log.
        number: of the one point where it dies, from 1; None for every point not in the log yet.
    """

    def __init__(self, log: Path, doing: str, number: int | None = None) -> None:
        self._log, self._doing, self._left = log, doing, number

    def point(self, where: str) -> None:
        line = f"{self._doing} {where}\n"
        if self._left is None:
            doomed = not self._log.exists() or line not in self._log.read_text()
        else:
            self._left -= 1
            doomed = self._left == 0
        if doomed:
            with self._log.open("a") as log:
                log.write(line)
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self, owner: Any, name: str, *, after: bool = True) -> None:
        """Put a point before, and perhaps one after, every call."""
        real: Callable[..., Any] = getattr(owner, name)

        def mortal(*args: Any, **named: Any) -> Any:
            self.point(f"before {name}")
            said = real(*args, **named)
            if after:
                self.point(f"after {name}")
            return said

        setattr(owner, name, mortal)


class WithMortalHolder(InProcess):
    """One holder, that dies once before and once after each of its writes, message by message."""

    def __init__(self, nodes: list[Node], log: Path) -> None:
        super().__init__(nodes)
        self._log = log

    def exchange(
        self, message_type: str, holders: Sequence[str], make: MakeMessage
    ) -> dict[str, Message]:
        told = super().exchange(message_type, [n for n in holders if n != VICTIM], make)
        if VICTIM in holders:
            reply = in_child(partial(self._answer, message_type, make(0, VICTIM)))
            if reply is not None:
                told[VICTIM] = unpack(reply)
        return told

    def _answer(self, message_type: str, content: Message) -> bytes:
        query = content.terms.get("query-id", RUN)
        reaper = Reaper(self._log, f"{message_type} {query}:")
        reaper.watch(RoundStore, "put_run")
        reaper.watch(RoundStore, "put_round")
        reaper.watch(Ledger, "reserve")
        reaper.watch(Ledger, "commit")
        node = self._nodes[VICTIM]
        reply = pack(reply_to(content, message_type, lambda _: node, "in-process"))
        reaper.point("before the reply")
        return reply


def in_child(work: Callable[[], bytes]) -> bytes | None:
    """What a child of this process makes; None if it was killed."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reader)
            with os.fdopen(writer, "wb") as stream:
                stream.write(work())
            code = 0
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        told = stream.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return None
    assert os.WEXITSTATUS(status) == 0, "the child failed"
    return told


# ---------------------------------------------------------------- the runs


def settings_of(data: Path) -> FederationSettings:
    return FederationSettings(
        data=str(data),
        holders=3,
        alpha=10.0,
        shards=2,
        teacher="cnn-small",
        student="cnn-small",
        rows=20,
        retries=20,
        retry_after=0.0,
        noise="secagg",
        dropouts=0,
        colluders=1,
        public_data="none",
        force=True,
        device="cpu",
        teachers=TeacherSettings(steps=2, batch=4),
        dpsd=DpsdSettings(
            round_rows=10,
            batch=8,
            student_steps=1,
            finish_steps=1,
            generator_steps=1,
            latent_dim=8,
            generator_width=4,
            pretrain_steps=0,
            public_share=0.0,
        ),
    )


def open_nodes(settings: FederationSettings, home: Path) -> list[Node]:
    return [
        open_holder(
            settings,
            part,
            number,
            home / "holders" / holder_name(number),
            noise=SeededNoise(7).for_query(holder_name(number)),
            bits=SeededBits(7).for_query(holder_name(number)),
        )
        for number, part in enumerate(partitions(settings, load(settings.data).train))
    ]


def run(settings: FederationSettings, home: Path, transport: InProcess) -> None:
    begun = (home / "run" / "config.toml").exists()
    again = settings.model_copy(update={"resume": begun})
    place = (
        RunDirectory.resume(home / "run", again)
        if begun
        else RunDirectory.create(home / "run", again, RUN)
    )
    if not place.finished:
        federate(again, transport, place, expected=3, test=None, noise=SeededNoise(1))


def kill_server(settings: FederationSettings, folder: Path, log: Path) -> None:
    """A run for every write of the server, killed there and resumed; the last one survives."""
    fresh, number, killed = folder / "fresh", 0, True
    open_nodes(settings, fresh)
    while killed:
        number += 1
        home = folder / f"server-{number}"
        shutil.copytree(fresh, home)

        def go(home: Path = home, number: int = number) -> bytes:
            reaper = Reaper(log, "server", number)
            for module in (masked_sum, round_progress, run_directory):
                # After one write is before the next.
                reaper.watch(module, "write_atomically", after=False)
            return resume(settings, home)

        killed = in_child(go) is None
        assert in_child(partial(resume, settings, home)) == b"whole"
    shutil.rmtree(fresh)


def resume(settings: FederationSettings, home: Path) -> bytes:
    """Go on in a process that nobody kills."""
    run(settings, home, InProcess(open_nodes(settings, home)))
    return b"whole"


def main() -> None:
    who, folder = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    folder.mkdir()
    data, log = folder / "tiny.npz", folder / "kills.txt"
    labels = np.arange(60) % 3
    images = np.random.default_rng(0).integers(0, 80, (60, 28, 28)) + 60 * labels[:, None, None]
    ids = np.array([f"patient-{i}" for i in range(60)])
    np.savez(data, images=images.astype(np.uint8), labels=labels, ids=ids, classes=3)
    settings = settings_of(data)
    if who == "server":
        # A run for each of its writes: one round will do.
        kill_server(settings.model_copy(update={"rows": 10}), folder, log)
        return
    home = folder / who
    nodes = open_nodes(settings, home)
    run(settings, home, WithMortalHolder(nodes, log) if who == "holder" else InProcess(nodes))


if __name__ == "__main__":
    main()
