"""What Phase I of dp-promise regresses on: as printed, and as it is sound.

As printed, z together with x_t gives back x_0 exactly, and both are in the gradient: it is no
function of the noisy image, and no bound on x_t says anything about it. The sound Phase I draws x_S
and never looks back: for t > S

    x_t = √(ᾱ_t/ᾱ_S) x_S + √(1 − ᾱ_t/ᾱ_S) z′,   target z′ / √w,   w = (1 − ᾱ_t/ᾱ_S)/(1 − ᾱ_t).

E[z′ | x_t, x_0] = √w z, so that the minimiser is E[z | x_t] as before. The target grows without
bound towards t = S; squared errors are weighted by w, which makes them those of a guess of z′. At S
itself nothing is left, so S belongs to Phase II. (Training on noisy data only is in the literature:
Daras et al., arXiv 2404.10177.)
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedtranscribe.mechanisms.draws import OwnDraws
from fedtranscribe.mechanisms.noise import NoiseSource
from fedtranscribe.mechanisms.public_grid import on_grid
from fedtranscribe.methods.record_images import RecordImages
from fedtranscribe.models.schedule import Schedule, spread
from fedtranscribe.models.unet import Denoiser


@dataclass(frozen=True, eq=False)
class Regression:
    """Inputs and targets of one batch: the network at (x_t, t) should say `target`.

    Attributes:
        x_t: float [n, c, h, w].
        t: int64 [n].
        target: float [n, c, h, w].
        weight: of each row's squared error, float64 [n].
    """

    x_t: Tensor
    t: Tensor
    target: Tensor
    weight: Tensor

    def loss(self, denoiser: Denoiser) -> Tensor:
        """Weighted mean squared error of each row [n], with the null label."""
        guess = denoiser(self.x_t, self.t, torch.full_like(self.t, denoiser.null_label))
        error = (guess - self.target).square().flatten(1).mean(1)
        return spread(self.weight, error) * error


def published_regression(schedule: Schedule, x_0: Tensor, t: Tensor, z: Tensor) -> Regression:
    """Algorithm 1, lines 4-5 (and any ordinary training): x_t from x_0 and z; the target is z."""
    return Regression(schedule.noisy(x_0, t, z), t, z, torch.ones(len(t)))


def sound_regression(schedule: Schedule, x_s: Tensor, s: int, t: Tensor, z: Tensor) -> Regression:
    """A function of x_S and fresh noise alone, with the same minimiser.

    Args:
        schedule: T and betas.
        x_s: noisy images of step s, float [n, c, h, w].
        s: S.
        t: int64 [n], each in s+1..T.
        z: z′, fresh standard normal [n, c, h, w].
    """
    now = schedule.alpha_bar[t.cpu()]
    weight = (1 - now / schedule.alpha_bar[s]) / (1 - now)
    target = z / spread(weight.sqrt(), z)
    return Regression(schedule.noisier(x_s, s, t, z), t, target, weight)


class NoisyRecords:
    """x_S of private images; `draw` is the only way from them into the sound Phase I.

    Args:
        images: by record.
        schedule: T and betas.
        s: S.
        cached: keep the first draw of every record, instead of drawing at each inclusion.

    Attributes:
        cache: float32 [n, c, h, w] once drawn, where it is kept.

    Guarantee:
        Unit: record, with all of its images; one of them is drawn. x_S = √ᾱ_S x_0 + N(0, 1 − ᾱ_S)
        on d coordinates in [-1, 1]. A record that is replaced moves it by at most 2√(d ᾱ_S), one
        that is nulled (⊥ shows a grey image, all 0) by half of that: μ_S = 2√(d ᾱ_S/(1 − ᾱ_S)), or
        half of it, for each row drawn. (Which image was drawn only mixes over such pairs.) Low
        bits of a float64 sum depend on x_0, so x_S is rounded to a public grid, 1/256 of the
        noise's std or finer; the proof is that of `NoisyMeanRows`. No draw is repeated under
        another noise: who draws again releases again.
        The rows have the order of `records`. Unless they are cached, whose cost knows who is who,
        they are released as a SET: the caller gives records in a secret order (`shuffled`), so
        that nothing computed from rows by their place can reveal whose they are.
    """

    def __init__(self, images: RecordImages, schedule: Schedule, s: int, *, cached: bool) -> None:
        kept = float(schedule.alpha_bar[s])
        self._images, self._scale, self._std = images, math.sqrt(kept), math.sqrt(1 - kept)
        self._cached = cached
        self.cache: Tensor | None = None

    def draw(self, records: Tensor, noise: NoiseSource, key: bytes) -> Tensor:
        """x_S of some records: fresh, or the one of each that was drawn first of all.

        Args:
            records: int64 [b].
            noise: OS entropy, or a seeded source in tests.
            key: secret and fresh; says which of a record's images is shown.

        Returns:
            float32 [b, c, h, w].
        """
        if not self._cached:
            return self._noisy(records, noise, key)
        if self.cache is None:
            self.cache = self._noisy(torch.arange(len(self._images)), noise, key)
        return self.cache[records]

    def _noisy(self, records: Tensor, noise: NoiseSource, key: bytes) -> Tensor:
        draws = OwnDraws(key, records, 1, torch.device("cpu"))
        images, _ = self._images.shown(records, draws)
        exact = self._scale * images.double() + noise.gaussian(images.shape, self._std)
        return on_grid(exact, self._std).float()
