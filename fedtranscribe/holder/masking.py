"""A holder's part in masked sums: each step is stored before its message leaves."""

import json
import sqlite3
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtranscribe.errors import ProtocolError, StorageError
from fedtranscribe.files import parse_json, unwritable
from fedtranscribe.noise.key_files import Identity
from fedtranscribe.noise.mask_keys import Advert, Cohort, RunKey
from fedtranscribe.noise.masks import Residues
from fedtranscribe.noise.secagg import MaskingHolder, Round, Task

_SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (key TEXT PRIMARY KEY, state BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS rounds (key TEXT PRIMARY KEY, state BLOB NOT NULL) STRICT;
"""
_BUSY_SECONDS = 30.0


class RoundStore:
    """Durable bytes by run and by query id, each changed only from the state that was read.

    Several processes may use one file: of two that go on from the same state, one is refused. So a
    holder never says two things at one stage.

    Args:
        path: the file; made at first use.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def run(self, run: str) -> bytes | None:
        """A run's state; None before the first."""
        return self._get("SELECT state FROM runs WHERE key = ?", run)

    @property
    def runs(self) -> int:
        """How many runs have a state."""
        with self._open() as connection:
            return connection.execute("SELECT COUNT(*) FROM runs").fetchone()[0]

    @property
    def size(self) -> int:
        """Bytes of the file on disk."""
        return self._path.stat().st_size if self._path.exists() else 0

    def put_run(self, run: str, state: bytes, before: bytes | None) -> None:
        """Keep a run's state in place of `before`; durable when it returns."""
        self._put("runs", run, state, before)

    def round(self, query: str) -> bytes | None:
        """A round's state; None before the first."""
        return self._get("SELECT state FROM rounds WHERE key = ?", query)

    def put_round(self, query: str, state: bytes, before: bytes | None) -> None:
        """Keep a round's state in place of `before`; raises as `put_run`."""
        self._put("rounds", query, state, before)

    def _get(self, statement: str, key: str) -> bytes | None:
        with self._open() as connection:
            row = connection.execute(statement, (key,)).fetchone()
        return None if row is None else row[0]

    def _put(self, table: str, key: str, state: bytes, before: bytes | None) -> None:
        with self._open() as connection:
            if before is None:
                done = connection.execute(
                    f"INSERT INTO {table} VALUES (?, ?) ON CONFLICT DO NOTHING", (key, state)
                )
            else:
                done = connection.execute(
                    f"UPDATE {table} SET state = ? WHERE key = ? AND state = ?",
                    (state, key, before),
                )
            if done.rowcount != 1:
                raise ProtocolError(
                    f"Another process of this holder has changed {key!r} in the meantime."
                )

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None)
        except OSError as error:
            raise unwritable(self._path, error) from None
        except sqlite3.Error as error:
            raise self._unusable(error) from None
        try:
            self._path.chmod(0o600)
            # One statement is one transaction, and EXTRA makes it durable when it returns.
            connection.execute("PRAGMA synchronous=EXTRA")
            connection.executescript(_SCHEMA)
            yield connection
        except (OSError, sqlite3.Error) as error:
            raise self._unusable(error) from None
        finally:
            connection.close()

    def _unusable(self, error: Exception) -> StorageError:
        return StorageError(
            f"The rounds file {self._path} cannot be used ({error}); free space or fix it. Never "
            "put an older copy in its place."
        )


class Masking:
    """Masks one holder's integer rows.

    Args:
        identity: its long-lived key, and the public keys that it believes.
        store: durable; see `RoundStore`.

    Guarantee:
        That of `secagg.protocol`, for cohorts out of the holder's own roster.
    """

    def __init__(self, identity: Identity, store: RoundStore) -> None:
        self.identity = identity
        self._store = store
        # Of one run at a time: whoever asks for many runs must not fill the memory.
        self._read: tuple[bytes, _Run] | None = None

    @property
    def runs(self) -> int:
        """How many runs this holder has keys for."""
        return self._store.runs

    @property
    def size(self) -> int:
        """Bytes of keys and rounds on disk."""
        return self._store.size

    def knows_run(self, run: str) -> bool:
        """Whether there is a key for a run."""
        return self._store.run(run) is not None

    def expect_known(self, names: Iterable[str]) -> None:
        """Check that all of a cohort are on this holder's roster."""
        if unknown := sorted(set(names) - set(self.identity.roster)):
            raise ProtocolError(
                f"Holder {unknown[0][:80]!r} is not on this holder's roster; its key is not known."
            )

    # ---------------------------------------------------------------- stage 0, once per run

    def advertise(
        self, run: str, names: Sequence[str], dropouts: int, colluders: int
    ) -> tuple[Advert, tuple[str, ...]]:
        """This holder's key for a run, signed, and whom it drew; the same whenever it is asked."""
        cohort = self._make_cohort(run, names, dropouts, colluders)
        if self._store.run(run) is None:
            key = RunKey.make(cohort, self.identity.name, self.identity.signer)
            self._store.put_run(run, _run_to_bytes(key, None), None)
        else:
            key = self._known_run(run).key
            if key.cohort.digest != cohort.digest:
                raise ProtocolError(f"Run {run} has another cohort; start a new run for this one.")
        return key.advert, key.drawn

    def cohort(self, run: str) -> Cohort:
        """Who takes part in a run that this holder has advertised its key for."""
        return self._known_run(run).key.cohort

    def agree(self, run: str, adverts: Iterable[Advert]) -> None:
        """Fix the keys of a run; for good, at the first call."""
        known = self._known_run(run)
        ordered = sorted(adverts, key=lambda advert: advert.name)
        if known.adverts is None:
            known.key.agree(ordered)
            self._store.put_run(run, _run_to_bytes(known.key, ordered), known.stored)
        elif {a.name: a.key for a in known.adverts} != {a.name: a.key for a in ordered}:
            raise ProtocolError(f"Run {run} has other keys; they are fixed for a whole run.")

    # ---------------------------------------------------------------- stages of a round

    def knows(self, query: str) -> bool:
        """Whether a round of this query was opened."""
        return self._store.round(query) is not None

    def open(self, run: str, task: Task) -> Mapping[str, bytes]:
        """Stage 1: what goes to each neighbour, by name."""
        holder, stored = self._holder(run), self._store.round(task.query)
        if stored is not None:
            return holder.resume(stored, task).sent
        opened = holder.open(task)
        self._store.put_round(task.query, opened.to_bytes(), None)
        return opened.sent

    def mask(
        self, run: str, query: str, inbox: Mapping[str, bytes], values: Callable[[Task], Residues]
    ) -> tuple[bytes, Mapping[str, bytes]]:
        """Stage 2: the masked vector, and a tag for each neighbour that it is masked with.

        Args:
            run: under which the query was opened.
            query: its id.
            inbox: what neighbours sent.
            values: gives the residues of what the ledger stored for the query.
        """
        holder, state, stored = self._round(run, query)
        masked = holder.mask(state, inbox, values(state.task))
        self._keep(query, state, masked, stored)
        assert masked.masked is not None
        return masked.masked, holder.tags(masked)

    def sign(
        self, run: str, query: str, survivors: Iterable[str], tags: Mapping[str, bytes]
    ) -> bytes:
        """Stage 3: a signature under whose vectors make the sum."""
        holder, state, stored = self._round(run, query)
        signed = holder.sign(state, survivors, tags)
        self._keep(query, state, signed, stored)
        assert signed.signature is not None
        return signed.signature

    def reveal(self, run: str, query: str, signatures: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Stage 4: shares that open the masks of that one sum, by owner."""
        holder, state, _ = self._round(run, query)
        return holder.reveal(state, signatures)

    # ---------------------------------------------------------------- small parts

    def _make_cohort(self, run: str, names: Sequence[str], dropouts: int, colluders: int) -> Cohort:
        self.expect_known(names)
        roster = {name: self.identity.roster[name] for name in names}
        return Cohort(run, roster, dropouts, colluders)

    def _known_run(self, run: str) -> "_Run":
        stored = self._store.run(run)
        if stored is None:
            raise ProtocolError(f"This holder has no key for run {run[:80]!r}; ask for it first.")
        if self._read is None or self._read[0] != stored:
            self._read = stored, self._read_run(run, stored)
        return self._read[1]

    def _read_run(self, run: str, stored: bytes) -> "_Run":
        try:
            state: dict[str, Any] = parse_json(stored)
            adverts = state["adverts"]
            names, failures = state["names"], (state["dropouts"], state["colluders"])
            own, drawn = _advert_from_json(state["advert"]), tuple(state["drawn"])
            secret = b64decode(state["secret"])
            adverts = None if adverts is None else [_advert_from_json(a) for a in adverts]
        except (ValueError, KeyError, TypeError):
            raise ProtocolError(
                f"What is stored of run {run} cannot be read: damaged, or of another version. "
                "Start a new run."
            ) from None
        # A roster that was changed since gives another digest, under which no signature holds.
        cohort = self._make_cohort(run, names, *failures)
        own.check(cohort)
        return _Run(stored, RunKey(cohort, secret, own, drawn), adverts)

    def _holder(self, run: str) -> MaskingHolder:
        known = self._known_run(run)
        if known.holder is None:
            if known.adverts is None:
                raise ProtocolError(f"The keys of run {run} are not agreed on yet; send them.")
            known.holder = MaskingHolder(known.key.agree(known.adverts), self.identity.signer)
        return known.holder

    def _round(self, run: str, query: str) -> tuple[MaskingHolder, Round, bytes]:
        stored = self._store.round(query)
        if stored is None:
            raise ProtocolError(f"No round of query {query[:80]!r} was opened here.")
        return self._holder(run), Round.from_bytes(stored), stored

    def _keep(self, query: str, before: Round, after: Round, stored: bytes) -> None:
        if after is not before:
            self._store.put_round(query, after.to_bytes(), stored)


@dataclass
class _Run:
    """What is stored of a run, and the holder's steps in it once its keys are agreed on."""

    stored: bytes
    key: RunKey
    adverts: list[Advert] | None
    holder: MaskingHolder | None = None


def _run_to_bytes(key: RunKey, adverts: Sequence[Advert] | None) -> bytes:
    cohort = key.cohort
    state = {
        "names": cohort.names,
        "dropouts": cohort.dropouts,
        "colluders": cohort.colluders,
        "drawn": key.drawn,
        "secret": b64encode(key.secret).decode(),
        "advert": _advert_to_json(key.advert),
        "adverts": None if adverts is None else [_advert_to_json(a) for a in adverts],
    }
    return json.dumps(state).encode()


def _advert_to_json(advert: Advert) -> list[str]:
    return [advert.name, b64encode(advert.key).decode(), b64encode(advert.signature).decode()]


def _advert_from_json(fields: list[str]) -> Advert:
    name, key, signature = fields
    return Advert(name, b64decode(key), b64decode(signature))
