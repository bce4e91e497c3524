"""The noise schedule of a diffusion model, with time steps as the papers count them: t in 1..T.

ᾱ_0 = 1 stands in front, so that ᾱ is indexed by t itself. diffusers counts from 0; only
`models/unet.py` translates, where a step enters the network.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedtranscribe.errors import ConfigError

MOST_STEPS = 10_000
"""Ten times what papers use: time and memory of a model grow with its steps."""


@dataclass(frozen=True)
class Schedule:
    """Linear β_1..β_T and what follows from them.

    Attributes:
        steps: T.
        first: β_1.
        last: β_T. The defaults are dp-promise's; DP-SAD has T = 500, β_T = 0.028.

    Raises:
        ConfigError: no step, or betas that do not rise inside (0, 1).
    """

    steps: int = 1000
    first: float = 1e-4
    last: float = 2e-2

    def __post_init__(self) -> None:
        """Refuse what is no schedule."""
        if not 1 <= self.steps <= MOST_STEPS:
            raise ConfigError(f"Expected 1 <= diffusion steps T={self.steps} <= {MOST_STEPS}.")
        if not 0 < self.first <= self.last < 1:
            raise ConfigError(
                f"Expected 0 < first={self.first} <= last={self.last} < 1 for the noise schedule."
            )

    @property
    def times(self) -> range:
        """1..T."""
        return range(1, self.steps + 1)

    @cached_property
    def betas(self) -> Tensor:
        """β_1..β_T, float64 [T]."""
        return torch.linspace(self.first, self.last, self.steps, dtype=torch.float64)

    @cached_property
    def alpha_bar(self) -> Tensor:
        """ᾱ_0..ᾱ_T = Π (1 − β), float64 [T + 1]; the papers' α_t is alpha_bar[t]."""
        return torch.cat([torch.ones(1, dtype=torch.float64), (1 - self.betas).cumprod(0)])

    def noisy(self, x_0: Tensor, t: Tensor, z: Tensor) -> Tensor:
        """x_t = √ᾱ_t x_0 + √(1 − ᾱ_t) z (dp-promise Eq. 4).

        Args:
            x_0: images [..., channels, side, side] in [-1, 1].
            t: int64 [...], each in 0..T.
            z: standard normal, shaped like x_t; x_0 may broadcast against it.
        """
        return self._mix(x_0, self.alpha_bar[t.cpu()], z)

    def noisier(self, x_s: Tensor, s: int, t: Tensor, z: Tensor) -> Tensor:
        """x_t from x_s alone, for t >= s: √(ᾱ_t/ᾱ_s) x_s + √(1 − ᾱ_t/ᾱ_s) z.

        Distributed as `noisy(x_0, t, …)` where x_s was drawn by `noisy(x_0, s, …)`.

        Args:
            x_s: noisy images [..., channels, side, side] of step s.
            s: the step they are of.
            t: int64 [...], each in s..T.
            z: standard normal like x_s, and fresh.
        """
        return self._mix(x_s, self.alpha_bar[t.cpu()] / self.alpha_bar[s], z)

    def posterior(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """1/√α_t and β_t/√(α_t (1 − ᾱ_t)) of steps t [n], for `posterior_mean`; float64 [n]."""
        t = t.cpu()
        beta, signal = self.betas[t - 1], self.alpha_bar[t]
        keep = (1 - beta).rsqrt()
        return keep, keep * beta * (1 - signal).rsqrt()

    @staticmethod
    def _mix(x: Tensor, kept: Tensor, z: Tensor) -> Tensor:
        return spread(kept.sqrt(), z) * x + spread((1 - kept).sqrt(), z) * z


def posterior_mean(x_t: Tensor, noise: Tensor, keep: Tensor, step: Tensor) -> Tensor:
    """x_{t−1} [n, c, h, w] as predicted from x_t and the noise in it, predicted or true."""
    return spread(keep, x_t) * x_t - spread(step, x_t) * noise


def spread(per_row: Tensor, like: Tensor) -> Tensor:
    """Numbers [...] per row -> the dtype and device of rows [..., c, h, w], ready to multiply."""
    per_row = per_row.to(like.device, like.dtype)
    return per_row.reshape(*per_row.shape, *[1] * (like.dim() - per_row.dim()))
