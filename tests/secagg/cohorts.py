"""A run in one process: who drops out at which stage, and what everybody said."""

from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from fedtranscribe.noise import mask_keys as keys_module
from fedtranscribe.noise.mask_graph import Graph
from fedtranscribe.noise.mask_keys import Cohort, RunKey
from fedtranscribe.noise.secagg import MaskingHolder, Round, Task
from fedtranscribe.noise.secagg_server import MaskingServer


@cache
def node_key(number: int) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def names(m: int) -> list[str]:
    return [f"clinic-{i}" for i in range(m)]


def cohort_of(m: int, dropouts: int, colluders: int = 0, run: str = "run-1") -> Cohort:
    roster = {name: node_key(i).public_key() for i, name in enumerate(names(m))}
    return Cohort(run, roster, dropouts, colluders)


@contextmanager
def toy_graph(graph: Graph):
    """Every cohort gets this graph: too small to be safe, small enough to look at."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys_module, "graph_of", lambda *numbers: graph)
        yield


def run_keys(cohort: Cohort) -> dict[str, RunKey]:
    return {
        name: RunKey.make(cohort, name, node_key(i))
        for i, name in enumerate(names(len(cohort.names)))
    }


def server_of(cohort: Cohort, keys: Mapping[str, RunKey]) -> MaskingServer:
    return MaskingServer(cohort.members, {name: key.drawn for name, key in keys.items()})


def run_of(
    cohort: Cohort, absent: tuple[str, ...] = ()
) -> tuple[MaskingServer, dict[str, MaskingHolder]]:
    keys = {name: key for name, key in run_keys(cohort).items() if name not in absent}
    server, adverts = server_of(cohort, keys), {name: key.advert for name, key in keys.items()}
    return server, {
        name: MaskingHolder(
            key.agree(server.adverts(name, adverts)), node_key(int(name.split("-")[1]))
        )
        for name, key in keys.items()
    }


def holders_of(cohort: Cohort, absent: tuple[str, ...] = ()) -> dict[str, MaskingHolder]:
    return run_of(cohort, absent)[1]


@dataclass
class Played:
    """One round: `gone[stage]` are the holders that fall silent at that stage, 1 to 4."""

    holders: dict[str, MaskingHolder]
    task: Task
    values: dict[str, np.ndarray]
    gone: dict[int, set[str]] = field(default_factory=dict)
    rounds: dict[str, Round] = field(default_factory=dict)
    vectors: dict[str, bytes] = field(default_factory=dict)
    told_tags: dict[str, dict[str, bytes]] = field(default_factory=dict)
    inboxes: dict[str, dict[str, bytes]] = field(default_factory=dict)
    signed: tuple[str, ...] = ()
    signatures: dict[str, bytes] = field(default_factory=dict)
    revealed: dict[str, dict[str, bytes]] = field(default_factory=dict)

    @property
    def cohort(self) -> Cohort:
        return next(iter(self.holders.values())).book.cohort

    @property
    def server(self) -> MaskingServer:
        return MaskingServer(
            self.cohort.members, {n: h.book.drawn for n, h in self.holders.items()}
        )

    @property
    def sent(self) -> dict[str, Mapping[str, bytes]]:
        return {name: state.sent for name, state in self.rounds.items()}

    def _there(self, stage: int, before) -> list[str]:
        silent = set().union(*(self.gone.get(i, set()) for i in range(1, stage + 1)))
        return [name for name in before if name not in silent]

    def share(self) -> None:
        for name in self._there(1, self.holders):
            self.rounds[name] = self.holders[name].open(self.task)
        self.inboxes = self.server.inboxes(self.sent)

    def mask(self) -> None:
        for name in self._there(2, self.rounds):
            holder = self.holders[name]
            state = holder.mask(self.rounds[name], self.inboxes[name], self.values[name])
            assert state.masked is not None
            self.rounds[name], self.vectors[name] = state, state.masked
            self.told_tags[name] = holder.tags(state)
        self.signed = self.server.survivors(self.vectors)

    def tags_for(self, name: str, survivors=None) -> dict[str, bytes]:
        return self.server.tags(self.told_tags, survivors or self.signed, name)

    def sign_for(self, name: str, survivors) -> Round:
        return self.holders[name].sign(
            self.rounds[name], survivors, self.tags_for(name, tuple(survivors))
        )

    def sign(self) -> None:
        for name in self._there(3, self.signed):
            state = self.sign_for(name, self.signed)
            assert state.signature is not None
            self.rounds[name], self.signatures[name] = state, state.signature

    def reveal(self) -> None:
        for name in self._there(4, self.signatures):
            told = self.server.signatures(self.signatures, name)
            self.revealed[name] = self.holders[name].reveal(self.rounds[name], told)

    def total(self) -> np.ndarray:
        return self.server.unmask(self.task, self.sent, self.signed, self.vectors, self.revealed)

    def play(self) -> np.ndarray:
        self.share()
        self.mask()
        self.sign()
        self.reveal()
        return self.total()


def task_of(query: str = "q1", length: int = 40, word: int = 32) -> Task:
    return Task(query, f"bound:{query}", length, word)


def random_values(holders, length: int = 40, word: int = 32, seed: int = 0):
    rng = np.random.default_rng(seed)
    kind = np.dtype(f"<u{word // 8}")
    return {name: np.frombuffer(rng.bytes(length * word // 8), dtype=kind) for name in holders}
