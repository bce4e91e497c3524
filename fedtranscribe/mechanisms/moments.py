"""The Gaussian mechanism on moments of private features: one noisy sum instead of many answers."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedtranscribe.errors import ConfigError
from fedtranscribe.mechanisms.noise import NoiseSource
from fedtranscribe.mechanisms.normalize import clip_rows
from fedtranscribe.mechanisms.public_grid import on_grid
from fedtranscribe.privacy.calibrate import ROUNDING
from fedtranscribe.privacy.events import Gaussian
from fedtranscribe.privacy.release_plan import Release
from fedtranscribe.privacy.units import Adjacency, Unit

MOMENTS = "noisy-moments"
"""The mechanism's name in ledgers and events."""


@dataclass(frozen=True)
class MomentSums:
    """Sums over records of what is said about their features u and labels y.

    Attributes:
        second: Σ u uᵀ, float64 [k, k], symmetric.
        by_class: Σ u e_yᵀ, float64 [k, classes]; None where labels are not told.
    """

    second: Tensor
    by_class: Tensor | None


def moment_sums(
    blocks: Iterable[tuple[Tensor, Tensor, Tensor]], width: int, classes: int | None
) -> MomentSums:
    """Add up bounded rows, a block at a time; NOT private.

    Args:
        blocks: rows u [b, k], labels int64 [b] and weights [b]. Weights of one person's records
            add up to one at most, so that a person counts like a record.
        width: k.
        classes: how many; None leaves labels out.
    """
    second = torch.zeros(width, width, dtype=torch.float64)
    by_class = None if classes is None else torch.zeros(width, classes, dtype=torch.float64)
    for rows, labels, weights in blocks:
        bounded = clip_rows(rows.cpu())
        weighted = bounded * weights.double()[:, None]
        second += weighted.T @ bounded
        if by_class is not None:
            by_class.index_add_(1, labels, weighted.T)
    return MomentSums((second + second.T) / 2, by_class)


@dataclass(frozen=True)
class NoisyMoments:
    """Noisy second moments of features and, if asked, their sums by class.

    Attributes:
        noise_std: τ, std of the noise along every orthonormal direction.
        by_class: whether sums by class are released with the second moments.

    Guarantee:
        Unit: record, or all records of one id, whose weights add up to one; a replacement keeps
        its id. A record adds
        v = (u uᵀ, u e_yᵀ) with ‖u‖ ≤ 1, so ‖v‖² = ‖u‖⁴ + ‖u‖² ≤ 2, and 1 without the second part;
        several records of one id add an average of such v, which lies no further out.
        Zero-out: the record adds nothing any more (a zero row, as a null gradient is; not the row
        of a grey image, for which replace counts). Add-remove: likewise, with ids that last, since
        the split into training and held-out records goes by them. Both move the sum by ‖v‖.
        Replace: with s = u·u', a pair of one class
        differs by ‖u‖⁴ + ‖u'‖⁴ − 2s² + ‖u‖² + ‖u'‖² − 2s ≤ 4 − 2s² − 2s ≤ 4.5, a pair of two
        classes by 4 − 2s² ≤ 4, and without the second part by 2 − 2s² ≤ 2 (all squared).
        Noise: isotropic, std τ, in the space of symmetric matrices (Frobenius norm) times that of
        the class sums: τ on the diagonal, τ/√2 on each entry beside it, which its mirror repeats,
        and τ on every class sum. So μ = sensitivity / τ, exactly, also where the features were
        chosen after earlier answers. A whole holder has no guarantee.
        Rounding: as in `NoisyMeanRows`, to a public grid of τ/256 or finer. Entries of a sum over n
        records reach n, and their absolute values add up to k n at most, so that all edges of the
        grid together shift ε by about k n 2⁻⁵² / grid: below 1e-4 for k = 501, n = 10⁶, τ = 0.8.
    """

    noise_std: float
    by_class: bool

    def __post_init__(self) -> None:
        """Refuse noise that is none."""
        if not (self.noise_std > 0 and math.isfinite(self.noise_std)):
            raise ConfigError(f"Expected noise_std={self.noise_std} > 0 and finite.")

    @classmethod
    def of_mu(cls, mu: float, *, by_class: bool) -> "NoisyMoments":
        """The mechanism that costs μ under zero-out."""
        return cls(sensitivity(Adjacency.ZERO_OUT, by_class=by_class) / mu, by_class)

    def release(self, *, positional_ids: bool) -> Release:
        """What one answer gives away; without persistent ids add-remove gives nothing."""
        costs = {
            adjacency: Gaussian(sensitivity(adjacency, by_class=self.by_class) / self.noise_std)
            for adjacency in Adjacency
            if adjacency is not Adjacency.ADD_REMOVE or not positional_ids
        }
        return Release(MOMENTS, 1, {Unit.RECORD: costs})

    def privatise(self, sums: MomentSums, noise: NoiseSource) -> MomentSums:
        """Add the noise, to one pair of sums or to many [..., k, k] and [..., k, classes].

        Raises:
            ConfigError: class sums that were not to be told, or none where they were.
        """
        if (sums.by_class is not None) != self.by_class:
            raise ConfigError(f"Expected by_class={self.by_class} of the sums of moments.")
        square = noise.gaussian(sums.second.shape, self.noise_std)
        # Its symmetric part is isotropic among symmetric matrices.
        second = on_grid(sums.second + (square + square.mT) / 2, self.noise_std)
        if sums.by_class is None:
            return MomentSums(second, None)
        drawn = noise.gaussian(sums.by_class.shape, self.noise_std)
        return MomentSums(second, on_grid(sums.by_class + drawn, self.noise_std))


def sensitivity(adjacency: Adjacency, *, by_class: bool) -> float:
    """How far one record moves the moments; proved in `NoisyMoments`."""
    if adjacency is Adjacency.REPLACE:
        squared = 4.5 if by_class else 2.0
    else:
        squared = 2.0 if by_class else 1.0
    return math.sqrt(squared) * (1 + ROUNDING)
