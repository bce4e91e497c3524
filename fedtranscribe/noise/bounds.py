"""How far an answer can move: what every noise is calibrated to, wherever it is added."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedtranscribe.errors import ConfigError
from fedtranscribe.privacy.events import Event
from fedtranscribe.privacy.release_plan import MechanismRelease
from fedtranscribe.privacy.units import Adjacency, Unit

# Twelve of them, in units, stay far below 2⁶³.
_LARGEST_STD = 2.0**20
Moves = Mapping[Unit, Mapping[Adjacency, float]]


@dataclass(frozen=True)
class Bound:
    """A set that a holder's vectors lie in, and how far one record or holder moves one of them.

    Public: it is known before anything is computed. The vectors themselves never leave the holder
    without noise, but under a policy that trusts the server.

    Attributes:
        name: what the vectors are, for ledgers and events.
        width: D, numbers in a vector.
        moves: l2 distance in exact arithmetic (see `counts`), by unit and adjacency; what is
            absent has no guarantee. Add-remove of a record presumes persistent ids.
        project: brings any vectors [..., D] into the set, float64. Noise is never added to vectors
            that have not gone through it. The identity where the set is one of sums, which are
            bounded as they are added up.
        bits: for exact sums, whose vectors a holder computes as whole numbers of 2^−bits, int64;
            their answers need float64, others are kept in float32.
        counts: uint8 [D], how often each number counts in a squared distance; once, where there
            are none. A number that counts c times has noise of 1/√c the std.
    """

    name: str
    width: int
    moves: Moves
    project: Callable[[Tensor], Tensor]
    bits: int | None = None
    counts: Tensor | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        """Refuse vectors of nothing."""
        if self.width < 1:
            raise ConfigError(f"Expected width={self.width} >= 1.")

    @property
    def exact(self) -> bool:
        """Whether vectors are exact sums."""
        return self.bits is not None

    @property
    def scale(self) -> int:
        """Units in 1, of exact sums."""
        return 2 ** (self.bits or 0)

    def expect_room(self, std: float) -> None:
        """Refuse noise of a std under which exact sums would leave 64 bits.

        Raises:
            ConfigError: names it.
        """
        if self.exact and std > _LARGEST_STD:
            raise ConfigError(
                f"Expected noise of a std={std:.4g} <= {_LARGEST_STD:g} on {self.name}; ask for a "
                "larger epsilon."
            )

    def units(self, values: Tensor) -> Tensor:
        """Exact sums, int64 [..., D], after a look at their shape and type.

        Raises:
            ConfigError: vectors of another width, or no whole numbers.
        """
        if values.shape[-1] != self.width:
            raise ConfigError(f"Expected vectors of {self.width} numbers, got {values.shape[-1]}.")
        if values.dtype is not torch.int64:
            raise ConfigError(f"Expected {self.name} as whole numbers, got {values.dtype}.")
        return values

    def spread(self, std: float) -> Tensor:
        """Stds of isotropic noise on each number, float64 [D] or a scalar."""
        if self.counts is None:
            return torch.tensor(std, dtype=torch.float64)
        return std / self.counts.double().sqrt()

    def release(
        self, how: str, rows: int, cost: Callable[[float], Event], *, positional_ids: bool
    ) -> MechanismRelease:
        """What `rows` vectors give away.

        Args:
            how: where the noise is added, in a word.
            rows: how many vectors.
            cost: the event of them all, from how far each of them moves.
            positional_ids: whether records are known by row number only: then no add-remove. A
                whole holder leaves or joins without moving anybody else's records.
        """
        costs: dict[Unit, dict[Adjacency, Event]] = {}
        for unit, by in self.moves.items():
            without = positional_ids and unit is Unit.RECORD
            known = {a: m for a, m in by.items() if not (without and a is Adjacency.ADD_REMOVE)}
            costs[unit] = {adjacency: cost(moved) for adjacency, moved in known.items()}
        return MechanismRelease(f"{how}-{self.name}", rows, costs)


def expect_noise(noise_std: float, holders: int) -> None:
    """Refuse noise that is none, and a federation of nobody.

    Raises:
        ConfigError: names the value.
    """
    if not (noise_std > 0 and math.isfinite(noise_std)):
        raise ConfigError(f"Expected noise_std={noise_std} > 0 and finite.")
    if holders < 1:
        raise ConfigError(f"Expected holders={holders} >= 1.")
