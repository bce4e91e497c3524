"""How a holder answers: check, charge the ledger, compute, add the noise, store, release."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedtranscribe.errors import ConfigError, CorruptLedgerError
from fedtranscribe.noise.gaussian import CentralNoise
from fedtranscribe.noise.masked import MaskedShare
from fedtranscribe.noise.mechanisms import Mechanism
from fedtranscribe.noise.sources import BitSource, NoiseSource, OsBits, OsNoise
from fedtranscribe.privacy.budget import Budget
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.release_plan import MechanismRelease, NoisePlan
from fedtranscribe.privacy.run_ledger import answer_once
from fedtranscribe.questions.question import Answer, Query, RawAnswer, Summand
from fedtranscribe.questions.statistic import Statistic


class Holder:
    """Answers queries about private teachers and records, each once.

    Args:
        statistics: what it can be asked for.
        ledger: the budget book of the DATA, open for writing.
        run: name under which the ledger books.
        positional_ids: whether records are known by row number only (then no add-remove).
        terms: who asks; bound to every query beside its content and its noise plan.
        noise: OS entropy unless a test says otherwise.
        bits: the same for integers.

    Guarantee:
        That of the mechanisms, for the sum of everything the ledger has booked. Order of each
        query: check the public part, reserve durably, compute, store the private answer, release.
        A repeated query gets the stored answer; noise is never drawn twice for one query.
    """

    def __init__(
        self,
        statistics: Mapping[str, Statistic[Any]],
        ledger: Ledger,
        run: str,
        *,
        positional_ids: bool,
        terms: str = "",
        noise: NoiseSource | None = None,
        bits: BitSource | None = None,
    ) -> None:
        self.ledger = ledger
        self.run = run
        self.noise = noise or OsNoise()
        self.bits = bits or OsBits()
        self._statistics = statistics
        self._positional_ids = positional_ids
        self._terms = terms

    @property
    def private(self) -> bool:
        """Whether the noise is what a guarantee needs."""
        return self.noise.private and self.bits.private

    def answer(self, query: Query, plan: NoisePlan) -> Answer | RawAnswer:
        """Answer one query, once: charged once, replayable for ever.

        Args:
            query: what is asked.
            plan: under which noise; under `central` the answer has none yet, and is NOT private.

        Raises:
            ConfigError, ModelMismatchError: the public query does not fit; nothing was booked.
            BudgetExhaustedError: the holder's limit would be exceeded; nothing was booked.
            QueryConflictError: the id was used for another query.
        """
        mechanism = self.mechanism(query, plan)
        if isinstance(mechanism, MaskedShare):
            raise ConfigError("Expected noise mode local or central; summands go under masks only.")
        form = RawAnswer if isinstance(mechanism, CentralNoise) else Answer
        values, head = self._charged(query, plan, mechanism)
        return form(query.id, values, head)

    def summand(self, query: Query, plan: NoisePlan) -> Summand:
        """As `answer`, for a masked sum; NOT private alone.

        Raises:
            ConfigError: the plan is for no masked sum; otherwise as `answer`.
        """
        mechanism = self.mechanism(query, plan)
        if not isinstance(mechanism, MaskedShare):
            raise ConfigError(f"Expected noise mode secagg, got {plan.mode}.")
        return Summand(query.id, *self._charged(query, plan, mechanism))

    def reserve(self, query: Query, plan: NoisePlan) -> bool:
        """Charge a query before it is computed; whether its answer is stored already.

        Raises:
            ConfigError, ModelMismatchError, BudgetExhaustedError, QueryConflictError: as `answer`.
        """
        booking = self._booking(query, plan, self.mechanism(query, plan))
        return self.ledger.reserve(*booking).answer is not None

    def mechanism(self, query: Query, plan: NoisePlan) -> Mechanism:
        """What the answer to a query would pass through, once its public part has been checked.

        Raises:
            ConfigError, ModelMismatchError: it does not fit.
        """
        statistic = self._statistic(query)
        statistic.check(query)
        return statistic.mechanism(query, plan)

    def _statistic(self, query: Query) -> Statistic[Any]:
        if query.kind not in self._statistics:
            known = ", ".join(sorted(self._statistics))
            raise ConfigError(f"Expected {known} queries, got {query.kind}; ask for one of them.")
        return self._statistics[query.kind]

    def _booking(
        self, query: Query, plan: NoisePlan, mechanism: Mechanism
    ) -> tuple[str, str, MechanismRelease, str]:
        words = f"{query.digest()}\0{self._terms}\0{plan.words}"
        bound_to = hashlib.sha256(words.encode()).hexdigest()
        release = mechanism.release(query.rows, positional_ids=self._positional_ids)
        return query.id, bound_to, release, self.run

    def _charged(
        self, query: Query, plan: NoisePlan, mechanism: Mechanism
    ) -> tuple[Tensor, tuple[int, str]]:
        def compute() -> bytes:
            values = self._privatised(query, mechanism)
            return values.contiguous().numpy().tobytes()

        stored, head = answer_once(self.ledger, *self._booking(query, plan, mechanism), compute)
        return decode(stored, query.rows, mechanism.width, mechanism.dtype), (
            head.sequence,
            head.hash,
        )

    def _privatised(self, query: Query, mechanism: Mechanism) -> Tensor:
        values = self._statistic(query).values(query)
        if isinstance(mechanism, CentralNoise):
            return mechanism.raw(values)
        if isinstance(mechanism, MaskedShare):
            return mechanism.privatise(values, self.bits.for_query(query.id))
        return mechanism.privatise(values, self.noise.for_query(query.id))


def decode(stored: bytes, rows: int, width: int, dtype: torch.dtype) -> Tensor:
    """The values [rows, width] that a ledger stored.

    Raises:
        CorruptLedgerError: their number is wrong.
    """
    kind = torch.empty(0, dtype=dtype).numpy().dtype
    if len(stored) != rows * width * kind.itemsize:
        raise CorruptLedgerError(
            f"A stored answer has {len(stored) / kind.itemsize:g} values, expected {rows * width}; "
            "the ledger was not written by this version."
        )
    return torch.from_numpy(np.frombuffer(stored, dtype=kind).reshape(rows, width).copy())


class LazyLedger:
    """Opens the ledger of a data set at first use; use it from one thread.

    Args:
        path: the SQLite file.
        data_id: what the book is bound to.
        budget: the limit from the holder's policy.
    """

    def __init__(self, path: Path, data_id: str, budget: Budget) -> None:
        self._path, self._data_id, self._budget = path, data_id, budget
        self._ledger: Ledger | None = None
        self._file: tuple[int, int] | None = None

    @contextmanager
    def __call__(self) -> Iterator[Ledger]:
        """The open ledger; another file under its name is opened, and so proved, first."""
        if self._ledger is None or _file(self._path) != self._file:
            self.close()
            self._ledger = Ledger.open(self._path, self._data_id, self._budget)
            self._file = _file(self._path)
        try:
            yield self._ledger
        except CorruptLedgerError:
            # After the file is fixed it is opened, and so proved, again.
            self.close()
            raise

    def prove(self, within: timedelta = timedelta(0)) -> None:
        """Prove the whole book, unless that was done `within` this time: then as opening does.

        Raises:
            LedgerError: it is damaged, edited, cut, rolled back, or of other data.
        """
        with self() as ledger:
            ledger.prove(within)

    def close(self) -> None:
        """Let go of the file."""
        if self._ledger is not None:
            self._ledger.close()
        self._ledger = self._file = None


def _file(path: Path) -> tuple[int, int] | None:
    """Which file the name means now: a restored copy is another one."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
