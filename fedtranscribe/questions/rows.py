"""Rows of teachers on disjoint shards: bounded, averaged, and what is asked about images."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

import torch
from torch import Tensor

from fedtranscribe.errors import ConfigError, ModelMismatchError
from fedtranscribe.models.teachers import Teachers
from fedtranscribe.noise.bounds import Bound
from fedtranscribe.noise.masked import masked_noise_std
from fedtranscribe.privacy.calibrate import DIAMETERS, EnsembleLayout, noise_std
from fedtranscribe.privacy.release_plan import NoisePlan, expect_tolerable
from fedtranscribe.privacy.units import Adjacency, NoiseMode, RowAnswer, Unit
from fedtranscribe.privacy.zcdp import zcdp_rho
from fedtranscribe.questions.question import Kind, Query, Scalar

STABILITY = 1e-4
"""h of DPSD Eq. 3."""


@dataclass(frozen=True)
class ImageQuery(Query):
    """Images that teachers are asked about, a row each.

    Attributes:
        images: uint8 [n, channels, height, width]; synthetic or public.
        index_sets: int64 [n, k]; the student's top-k classes per row, each row distinct.
        student_logits: float32 [n, classes]; needed by `gradient`, absent otherwise.
    """

    images: Tensor
    index_sets: Tensor
    student_logits: Tensor | None = None

    ARRAYS: ClassVar = {
        "images": torch.uint8,
        "index_sets": torch.int64,
        "student_logits": torch.float32,
    }

    def __post_init__(self) -> None:
        """Check everything that is public; only the public query may ever be refused."""
        super().__post_init__()
        n = len(self.images)
        if self.images.ndim != 4 or n == 0:
            raise ConfigError(
                f"Expected query images [n, c, h, w] with n > 0, got {tuple(self.images.shape)}."
            )
        sets = self.index_sets
        if sets.ndim != 2 or len(sets) != n or sets.shape[1] == 0:
            raise ConfigError(f"Expected index sets [{n}, k], got {tuple(sets.shape)}.")
        ordered = sets.sort(dim=1).values
        if bool((ordered[:, 1:] == ordered[:, :-1]).any()) or bool((ordered[:, 0] < 0).any()):
            raise ConfigError("Expected distinct, non-negative classes in every row's index set.")
        if self.kind is Kind.GRADIENT and self.student_logits is None:
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

    @property
    def width(self) -> int:
        """Numbers in an answer's row."""
        return self.k


class RowBound(StrEnum):
    """How a raw row is brought into the set that the sensitivity is counted for."""

    UNIT = "unit"
    """Normalised, as in Eq. 3: an l2 ball of radius 1."""
    CLIP = "clip"
    """Clipped, the paper's ablation: the same ball."""
    SIMPLEX = "simplex"
    """Votes or probabilities: non-negative, sum at most 1."""


def gather_rows(rows: Tensor, index_sets: Tensor) -> Tensor:
    """The student's classes of every row.

    Args:
        rows: [..., n, c].
        index_sets: int64 [n, k].

    Returns:
        [..., n, k].
    """
    return rows.gather(-1, index_sets.expand(*rows.shape[:-2], *index_sets.shape))


def unit_rows(rows: Tensor, stability: float = STABILITY) -> Tensor:
    """β-normalised rows of Eq. 3 with β = 1: x / (‖x‖₂ + h), float64 of the same shape.

    Guarantee:
        Every row has norm at most 1 in exact arithmetic, since h > 0; the relative room of 1e-6 in
        every sensitivity covers float64 rounding by nine orders of magnitude. Rows are scaled by
        their largest entry first, so that no square overflows.
    """
    rows = _finite(rows)
    largest = rows.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny)
    scaled = rows / largest
    # ‖x‖ + h in units of `largest`; for a tiny row h/largest is huge, and the row becomes zero.
    norm = scaled.norm(dim=-1, keepdim=True) + stability / largest
    return clip_rows(scaled / norm)


def clip_rows(rows: Tensor, bound: float = 1.0) -> Tensor:
    """Rows of norm at most `bound`, shorter ones unchanged; float64 of the same shape."""
    rows = _finite(rows)
    largest = rows.abs().amax(-1, keepdim=True).clamp_min(1.0)
    norm = (rows / largest).norm(dim=-1, keepdim=True) * largest
    return rows / (norm / bound).clamp_min(1.0)


def simplex_rows(rows: Tensor) -> Tensor:
    """Rows with non-negative entries of sum at most 1; probabilities pass unchanged."""
    rows = _finite(rows).clamp_min(0)
    largest = rows.amax(-1, keepdim=True).clamp_min(1.0)
    total = (rows / largest).sum(-1, keepdim=True)
    return rows / largest / torch.maximum(total, 1 / largest)


def expect_block(block: Tensor, index_sets: Tensor) -> None:
    """Refuse a block that is not [s, n, c]: broadcasting would count one shard several times.

    Shapes are public, so an error reveals nothing.

    Raises:
        ValueError: names both shapes.
    """
    if block.ndim != 3 or block.shape[1] != len(index_sets):
        raise ValueError(
            f"Expected a block [shards, {len(index_sets)}, classes], got {tuple(block.shape)}."
        )


def _finite(rows: Tensor) -> Tensor:
    rows = rows.double()
    return torch.where(torch.isfinite(rows).all(-1, keepdim=True), rows, torch.zeros_like(rows))


_BOUNDS = {RowBound.UNIT: unit_rows, RowBound.CLIP: clip_rows, RowBound.SIMPLEX: simplex_rows}


def mean_rows_bound(shards: int, answer: RowAnswer, k: int) -> Bound:
    """The bound of a holder's mean over p shards of bounded rows.

    Args:
        shards: p, the PUBLIC count of shards, empty ones included.
        answer: what a row is: a unit gradient (diameter 2) or a vote (diameter √2).
        k: classes per row.

    Guarantee:
        Unit: record or holder. Adjacency: replace, zero-out, and add-remove where records have
        persistent ids, so that no other record changes its shard.
        Sensitivity: a record belongs to one shard of p. Its teacher may change at will, so that
        shard's row moves by at most the diameter D of its set, and the holder's mean by D/p; a
        whole holder moves it by D. D = 2 in the unit ball. In {v ≥ 0, Σv ≤ 1} it is √2: for two
        such rows ‖u − v‖² ≤ ‖u‖² + ‖v‖² ≤ ‖u‖₁ + ‖v‖₁ ≤ 2, because u·v ≥ 0; gathering some of
        the coordinates stays inside the set. Adding or removing a holder presumes that an absent
        one answers zero rows.
    """
    own = EnsembleLayout(shards)
    diameter = DIAMETERS[answer]
    moves = {Unit.RECORD: diameter / own.shards, Unit.HOLDER: diameter}
    return Bound(
        f"mean-{answer.value}s",
        k,
        {unit: dict.fromkeys(Adjacency, moved) for unit, moved in moves.items()},
        clip_rows if answer is RowAnswer.GRADIENT else simplex_rows,
    )


def mean_rows(raw: Iterable[Tensor], index_sets: Tensor, shards: int, bound: RowBound) -> Tensor:
    """Mean over shards of their bounded rows, one block of shards in memory at a time.

    Args:
        raw: blocks [s, n, c] of raw rows; an empty shard gives NaN rows.
        index_sets: int64 [n, k], the student's.
        shards: the PUBLIC count of shards, empty ones included; the mean divides by it.
        bound: what every shard's row is brought into. The mean is never normalised again.

    Returns:
        float64 [n, k].

    Raises:
        ValueError: the blocks hold another number of shards, or are of another shape.
    """
    total = torch.zeros(index_sets.shape, dtype=torch.float64)
    seen = 0
    for block in raw:
        expect_block(block, index_sets)
        total += _BOUNDS[bound](gather_rows(block.cpu().double(), index_sets)).sum(0)
        seen += len(block)
    if seen != shards:
        raise ValueError(f"Expected rows of {shards} shards, got {seen}.")
    return total / shards


class OfTeachers:
    """A statistic of teachers that are asked about images; see `Statistic`.

    Args:
        teachers: an ensemble on disjoint shards of the holder's records.
    """

    def __init__(self, teachers: Teachers) -> None:
        self._teachers = teachers

    def expect(self, shapes: Mapping[str, tuple[int, ...]], terms: Mapping[str, Scalar]) -> int:
        """See `Statistic`."""
        return expect_shapes(shapes, self._teachers)

    def check(self, query: ImageQuery) -> None:
        """See `Statistic`."""
        expect_fitting(query, self._teachers)


def expect_fitting(query: ImageQuery, teachers: Teachers) -> None:
    """Refuse images of another shape, and classes that the teachers do not have.

    Raises:
        ModelMismatchError: names what was expected.
    """
    facts = teachers.facts
    expected = (facts.channels, facts.size, facts.size)
    if tuple(query.images.shape[1:]) != expected:
        raise ModelMismatchError(
            f"Expected query images of shape {expected}, got {tuple(query.images.shape[1:])}."
        )
    logits = query.student_logits
    classes = facts.classes if logits is None else logits.shape[1]
    if int(query.index_sets.max()) >= facts.classes or classes != facts.classes:
        raise ModelMismatchError(f"Expected queries over {facts.classes} classes.")


def expect_shapes(shapes: Mapping[str, tuple[int, ...]], teachers: Teachers) -> int:
    """Refuse arrays that no query to these teachers can have; how many rows are asked.

    Raises:
        ConfigError, KeyError, ValueError: a shape that the teachers cannot answer.
    """
    facts = teachers.facts
    rows, *_ = shapes["images"] or (0,)
    _, k = shapes["index_sets"]
    if rows < 1 or not 1 <= k <= facts.classes:
        raise ConfigError(f"Expected rows={rows} >= 1 and k={k} from 1 to {facts.classes}.")
    expected = {
        "images": (rows, facts.channels, facts.size, facts.size),
        "index_sets": (rows, k),
        "student_logits": (rows, facts.classes),
    }
    for name, shape in shapes.items():
        if shape != expected[name]:
            raise ConfigError(f"Expected {name} {expected[name]}, got {shape}.")
    return rows


def row_noise(
    epsilon: float,
    delta: float,
    rows: int,
    k: int,
    layout: EnsembleLayout,
    unit: Unit = Unit.RECORD,
    answer: RowAnswer = RowAnswer.GRADIENT,
    mode: NoiseMode = NoiseMode.CENTRAL,
    failures: tuple[int, int] = (0, 0),
    share: float = 1.0,
) -> NoisePlan:
    """The noise under which `rows` mean rows of teachers cost ε; runs and calculators take it here.

    Args:
        epsilon: of all rows.
        delta: of all rows.
        rows: in all.
        k: numbers in a row.
        layout: of the teachers.
        unit: what ε protects.
        answer: what a row is.
        mode: where the noise is added.
        failures: under `secagg`, how many holders may drop out, and how many may collude.
        share: of the budget, in μ² or ρ.

    Raises:
        ConfigError: a value is out of range.
    """
    if mode is NoiseMode.SECAGG:
        expect_tolerable(layout.holders, *failures)
        rho, bound = share * zcdp_rho(epsilon, delta), mean_rows_bound(layout.shards, answer, k)
        std = masked_noise_std(rho, rows, bound, unit, layout.holders, sum(failures))
        return NoisePlan(mode, std, layout.holders, *failures)
    # μ goes with 1/std, and it is μ² that is shared out.
    std = noise_std(epsilon, delta, rows, layout, unit, answer, mode) / math.sqrt(share)
    return NoisePlan(mode, std, layout.holders)
