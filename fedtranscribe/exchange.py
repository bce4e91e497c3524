"""The only values in which the student side and a data holder meet.

A transport carries them: in process, or Flower messages. Nothing else crosses. An answer that is
private by itself and one that is not yet have different types, so that no code takes the one for
the other by accident.
"""

import hashlib
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from fedtranscribe.errors import ConfigError
from fedtranscribe.names import expect_name
from fedtranscribe.privacy.calibrate import NoiseMode

_STRENGTHS = (1e-9, 1e9)
_MOST_HOLDERS = 100_000


class AnswerKind(StrEnum):
    """What a holder is asked to answer per row (DPSD Eq. 6's switch, and noisy votes)."""

    GRADIENT = "gradient"
    LABEL = "label"
    VOTE = "vote"


@dataclass(frozen=True)
class QueryBatch:
    """What the student side asks: public, because it was made from earlier answers only.

    Attributes:
        id: unique within a run; the ledger binds it to `digest()` for ever.
        kind: what to answer per row.
        images: uint8 [n, channels, height, width]; synthetic.
        index_sets: int64 [n, k]; the student's top-k classes per row, each row distinct.
        student_logits: float32 [n, classes]; needed by `gradient`, absent otherwise.
    """

    id: str
    kind: AnswerKind
    images: Tensor
    index_sets: Tensor
    student_logits: Tensor | None = None

    def __post_init__(self) -> None:
        """Check everything that is public; only the public query may ever be refused."""
        expect_name("query id", self.id)
        n = len(self.images)
        if self.images.dtype != torch.uint8 or self.images.ndim != 4 or n == 0:
            raise ConfigError(
                f"Expected query images as uint8 [n, c, h, w] with n > 0, "
                f"got {self.images.dtype} {tuple(self.images.shape)}."
            )
        sets = self.index_sets
        if sets.dtype != torch.int64 or sets.ndim != 2 or len(sets) != n or sets.shape[1] == 0:
            raise ConfigError(
                f"Expected index sets as int64 [{n}, k], got {sets.dtype} {tuple(sets.shape)}."
            )
        ordered = sets.sort(dim=1).values
        if bool((ordered[:, 1:] == ordered[:, :-1]).any()) or bool((ordered[:, 0] < 0).any()):
            raise ConfigError("Expected distinct, non-negative classes in every row's index set.")
        if self.kind is AnswerKind.GRADIENT and self.student_logits is None:
            raise ConfigError("Expected student logits with a gradient query; send them along.")
        logits = self.student_logits
        if logits is not None:
            if logits.ndim != 2 or len(logits) != n or not bool(torch.isfinite(logits).all()):
                raise ConfigError(f"Expected finite student logits [{n}, classes].")
            if int(ordered[:, -1].max()) >= logits.shape[1]:
                raise ConfigError("Expected index sets within the student's classes.")

    @property
    def rows(self) -> int:
        """How many rows are asked; each is charged."""
        return len(self.images)

    @property
    def k(self) -> int:
        """Size of every index set."""
        return self.index_sets.shape[1]

    def digest(self) -> str:
        """SHA-256 over everything the answer depends on, byte for byte."""
        h = hashlib.sha256(f"{self.id}\0{self.kind}\0".encode())
        for tensor in (self.images, self.index_sets, self.student_logits):
            if tensor is None:
                h.update(b"\0none")
                continue
            h.update(f"\0{tensor.dtype}{tuple(tensor.shape)}".encode())
            h.update(tensor.contiguous().cpu().numpy().tobytes())
        return h.hexdigest()


@dataclass(frozen=True)
class MomentsQuery:
    """Which moments of their records' features a holder is asked for: public.

    Attributes:
        id: unique within a run; the ledger binds it to `digest()` for ever.
        centre: float32 [d], taken from the scattering coefficients of every image.
        map: float32 [d, k], what the rest is mapped by; see `models.scattering`.
        by_class: whether sums by class are asked beside the second moments.
    """

    id: str
    centre: Tensor
    map: Tensor
    by_class: bool

    def __post_init__(self) -> None:
        """Check what is public."""
        expect_name("query id", self.id)
        d = len(self.centre)
        if self.map.ndim != 2 or len(self.map) != d or not 1 <= self.map.shape[1] <= d:
            raise ConfigError(f"Expected a map [{d}, k] with k <= {d}, got {tuple(self.map.shape)}")
        finite = bool(torch.isfinite(self.centre).all()) and bool(torch.isfinite(self.map).all())
        if not finite or {self.centre.dtype, self.map.dtype} != {torch.float32}:
            raise ConfigError("Expected a finite centre and map of float32.")

    def digest(self) -> str:
        """SHA-256 over everything the answer depends on, byte for byte."""
        h = hashlib.sha256(f"{self.id}\0moments\0{self.by_class}{tuple(self.map.shape)}".encode())
        for tensor in (self.centre, self.map):
            h.update(tensor.contiguous().cpu().numpy().tobytes())
        return h.hexdigest()


@dataclass(frozen=True)
class Moments:
    """A holder's noisy moments: private by themselves.

    Attributes:
        query_id: the query's id.
        second: float64 [k + 1, k + 1], Σ u uᵀ over records with noise.
        by_class: float64 [k + 1, classes], Σ u e_yᵀ with noise; None if not asked for.
        head: (sequence, hash) of the holder's ledger after charging.
    """

    query_id: str
    second: Tensor
    by_class: Tensor | None
    head: tuple[int, str]


@dataclass(frozen=True)
class NoisePlan:
    """How the answers to a query become private; the holder binds it to the query for ever.

    Attributes:
        mode: who adds the noise.
        strength: for gradients and votes s, the noise std per coordinate on the mean over
            holders; for labels ε0 (one teacher) or η (votes of an ensemble).
        holders: m, how many holders the noise is planned for.
        dropouts, colluders: under `secagg`, d of them may be missing from a sum and c may tell
            the server all they know; m > 2d + c.
    """

    mode: NoiseMode
    strength: float
    holders: int
    dropouts: int = 0
    colluders: int = 0

    def __post_init__(self) -> None:
        """Refuse noise that is none, that no float could add, and a federation of nobody."""
        least, most = _STRENGTHS
        if not least <= self.strength <= most:
            raise ConfigError(
                f"Expected a noise strength={self.strength} between {least:g} and {most:g}."
            )
        # Beyond these limits the cost of an answer could underflow to nothing.
        if not 1 <= self.holders <= _MOST_HOLDERS:
            raise ConfigError(f"Expected holders={self.holders} between 1 and {_MOST_HOLDERS}.")
        if self.mode is NoiseMode.SECAGG:
            expect_tolerable(self.holders, self.dropouts, self.colluders)
        elif self.dropouts or self.colluders:
            raise ConfigError(f"Expected no dropouts or colluders under noise mode {self.mode}.")

    @property
    def tolerated(self) -> int:
        """t = d + c, how many holders' shares of the noise are not counted on."""
        return self.dropouts + self.colluders

    @property
    def words(self) -> str:
        """One canonical line; two plans agree if and only if their lines do."""
        line = f"{self.mode.value} {self.strength.hex()} {self.holders}"
        if self.mode is NoiseMode.SECAGG:
            return f"{line} {self.dropouts} {self.colluders}"
        return line


def expect_tolerable(holders: int, dropouts: int, colluders: int) -> None:
    """Refuse more failures than a masked sum of so many holders can bear.

    Raises:
        ConfigError: m > 2d + c does not hold; see `secagg.keys.Cohort` for why it must.
    """
    if dropouts < 0 or colluders < 0 or holders <= 2 * dropouts + colluders or holders < 2:
        raise ConfigError(
            f"Expected more than {max(1, 2 * dropouts + colluders)} holders for "
            f"dropouts={dropouts} >= 0 and colluders={colluders} >= 0, got {holders}; "
            "tolerate fewer."
        )


@dataclass(frozen=True)
class Answer:
    """What a holder gives back: private by itself, so anyone may see and keep it.

    Attributes:
        query_id: the query's id.
        values: float32 [n, k] over the query's index sets; for `label`, one-hot rows.
        head: (sequence, hash) of the holder's ledger after charging, so that a rolled-back
            ledger is noticed.
    """

    query_id: str
    values: Tensor
    head: tuple[int, str]


@dataclass(frozen=True)
class Summand:
    """A holder's mean rows in integers with its own share of the noise, for a masked sum.

    Not private alone: it leaves the holder under masks only, and enters one sum only, for ever.

    Attributes:
        query_id: the query's id.
        values: int64 [n, k] over the query's index sets, in units of the mechanism's grid.
        head: (sequence, hash) of the holder's ledger after charging.
    """

    query_id: str
    values: Tensor
    head: tuple[int, str]


@dataclass(frozen=True)
class RawAnswer:
    """A holder's mean rows WITHOUT noise, for a server that the holder's own policy trusts.

    Not private: nothing may keep, log or learn from it before the server's noise is added.

    Attributes:
        query_id: the query's id.
        values: float32 [n, k] over the query's index sets.
        head: (sequence, hash) of the holder's ledger after charging.
    """

    query_id: str
    values: Tensor
    head: tuple[int, str]
