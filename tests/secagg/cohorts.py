"""A run in one process: who drops out at which stage, and what everybody said."""

from dataclasses import dataclass, field
from functools import cache

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec

from fedtranscribe.secagg import Cohort, Holder, Round, RunKey, Task, relay, survivors, unmask


@cache
def node_key(number: int) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def names(m: int) -> list[str]:
    return [f"clinic-{i}" for i in range(m)]


def cohort_of(m: int, dropouts: int, colluders: int = 0, run: str = "run-1") -> Cohort:
    roster = {name: node_key(i).public_key() for i, name in enumerate(names(m))}
    return Cohort(run, roster, dropouts, colluders)


def run_keys(cohort: Cohort) -> dict[str, RunKey]:
    return {
        name: RunKey.make(cohort, name, node_key(i))
        for i, name in enumerate(names(len(cohort.names)))
    }


def holders_of(cohort: Cohort, absent: tuple[str, ...] = ()) -> dict[str, Holder]:
    keys = {name: key for name, key in run_keys(cohort).items() if name not in absent}
    adverts = [key.advert for key in keys.values()]
    return {
        name: Holder(key.agree(adverts), node_key(int(name.split("-")[1])))
        for name, key in keys.items()
    }


@dataclass
class Played:
    """One round: `gone[stage]` are the holders that fall silent at that stage, 1 to 4."""

    holders: dict[str, Holder]
    task: Task
    values: dict[str, np.ndarray]
    gone: dict[int, set[str]] = field(default_factory=dict)
    rounds: dict[str, Round] = field(default_factory=dict)
    vectors: dict[str, bytes] = field(default_factory=dict)
    inboxes: dict[str, dict[str, bytes]] = field(default_factory=dict)
    signed: tuple[str, ...] = ()
    signatures: dict[str, bytes] = field(default_factory=dict)
    revealed: dict[str, bytes] = field(default_factory=dict)

    @property
    def cohort(self) -> Cohort:
        return next(iter(self.holders.values())).book.cohort

    def _there(self, stage: int, before) -> list[str]:
        silent = set().union(*(self.gone.get(i, set()) for i in range(1, stage + 1)))
        return [name for name in before if name not in silent]

    def share(self) -> None:
        for name in self._there(1, self.holders):
            self.rounds[name] = self.holders[name].open(self.task)
        self.inboxes = relay(self.cohort.members, {n: r.sent for n, r in self.rounds.items()})

    def mask(self) -> None:
        for name in self._there(2, self.rounds):
            state = self.holders[name].mask(
                self.rounds[name], self.inboxes[name], self.values[name]
            )
            assert state.masked is not None
            self.rounds[name], self.vectors[name] = state, state.masked
        self.signed = survivors(self.cohort.members, self.task, self.vectors)

    def sign(self) -> None:
        for name in self._there(3, self.signed):
            state = self.holders[name].sign(self.rounds[name], self.signed)
            assert state.signature is not None
            self.rounds[name], self.signatures[name] = state, state.signature

    def reveal(self) -> None:
        for name in self._there(4, self.signatures):
            self.revealed[name] = self.holders[name].reveal(self.rounds[name], self.signatures)

    def total(self) -> np.ndarray:
        return unmask(
            self.cohort.members, self.task, self.inboxes, self.signed, self.vectors, self.revealed
        )

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
