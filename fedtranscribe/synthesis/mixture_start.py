"""A private start, before anything is asked: how much of the budget a mixture gets, and for what.

Training by noisy gradients learns slowly what pictures look like at all. Noisy sums over records
show that at once (`methods.mixture`), and samples of what they show can be trained on for as long
as one likes. So a share of μ² buys a mixture, and the training spends the rest.

Guarantee:
    None of its own: shares, cuts and noise follow from public facts and settings. `release` is what
    the questions give away, each a Gaussian whose noise is fixed before the first of them.
"""

import math
from dataclasses import dataclass
from typing import Any

from fedtranscribe.config import SynthesizeSettings
from fedtranscribe.errors import ConfigError
from fedtranscribe.mechanisms import Bound, LocalNoise, mixture_bound
from fedtranscribe.methods.mixture_shapes import (
    QuestionShape,
    fits,
    picked_cuts,
    question_shapes,
)
from fedtranscribe.privacy.calibrate import ROUNDING
from fedtranscribe.privacy.closed_forms import gaussian_mu
from fedtranscribe.privacy.forecasts import in_short
from fedtranscribe.privacy.release_plan import Release, together
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.synthesis.method import Facts

# Of μ², by how much budget all records have together, records · μ: the less that is, the less can
# a training by noisy gradients add to what the mixture shows.
_SHARES = ((50_000.0, 0.5), (10_000.0, 0.7), (0.0, 0.9))
_SAMPLES = 20_000
# Below, a class hardly shows in its sums.
_WORTH_A_START = 3.0


@dataclass(frozen=True)
class MixtureStart:
    """What a private start asks; public.

    Attributes:
        share: of the run's μ².
        cuts: 2^cuts Gaussians per class.
        noise: std on each question's sums, in order.
        samples: images that are drawn from the mixture, for the network to begin with.
        release: what the questions give away.
        words: the same, for people.
    """

    share: float
    cuts: int
    noise: tuple[float, ...]
    samples: int
    release: Release
    words: str

    def to_json(self) -> dict[str, Any]:
        """Everything that decides the outcome."""
        return {
            "share": self.share,
            "components": 2**self.cuts,
            "noise": list(self.noise),
            "samples": self.samples,
        }


def mixture_start(settings: SynthesizeSettings, facts: Facts) -> MixtureStart | None:
    """The private start that was asked for, or the usual one where it helps; None for none.

    Raises:
        ConfigError: one was asked for that cannot be had; says why.
    """
    if settings.start == "none":
        _expect_no_share(settings)
        return None
    against = _against(settings, facts)
    if settings.start is None and (against or settings.profile == "paper"):
        _expect_no_share(settings)
        return None
    if against:
        raise ConfigError(f"Expected start=none: {against}.")
    planned = _planned(settings, facts)
    stands = _stands(facts, planned.noise[1], question_shapes(*_shape(facts), 0)[1])
    if settings.start is None and stands < _WORTH_A_START:
        _expect_no_share(settings)
        return None
    return planned


def _expect_no_share(settings: SynthesizeSettings) -> None:
    if settings.start_share is not None:
        raise ConfigError(
            f"Expected start_share={settings.start_share} with start=mixture only; leave it out, "
            "or give --start mixture."
        )


def _against(settings: SynthesizeSettings, facts: Facts) -> str | None:
    """Why there can be no mixture; None if there can."""
    if not settings.noise:
        return "a run without noise has no budget to share"
    if settings.calibrate_by == "published":
        return "only the sound figure covers the cost of a mixture"
    if settings.labels == "kmeans":
        return "clusters come from public images, and a mixture takes their place"
    if settings.pretrain_data not in (None, "none"):
        return f"the network begins with the public images of {settings.pretrain_data!r}"
    if not fits(*_shape(facts)):
        return f"{facts.classes:,} classes are too many for a mixture; its sums would be too long"
    if facts.positional_ids and settings.adjacency == "add-remove":
        return "without persistent ids its sums have no guarantee under add-remove"
    return None


def _planned(settings: SynthesizeSettings, facts: Facts) -> MixtureStart:
    adjacency = Adjacency(settings.adjacency)
    whole = gaussian_mu(settings.epsilon, settings.delta)
    usual = next(share for least, share in _SHARES if facts.records * whole >= least)
    share = usual if settings.start_share is None else settings.start_share
    mu = math.sqrt(share) * whole

    def noise(shape: QuestionShape) -> float:
        moved = _bound(shape).moves[Unit.RECORD][adjacency]
        return moved * (1 + ROUNDING) / (mu * math.sqrt(shape.share))

    def stands(shape: QuestionShape) -> float:
        return _stands(facts, noise(shape), shape)

    cuts = picked_cuts(*_shape(facts), stands)
    shapes = question_shapes(*_shape(facts), cuts)
    stds = tuple(noise(shape) for shape in shapes)
    releases = [
        LocalNoise(_bound(shape), std).release(1, positional_ids=facts.positional_ids)
        for shape, std in zip(shapes, stds, strict=True)
    ]
    words = (
        f"private start: {share:.0%} of the budget (μ²) goes to a mixture of {2**cuts} "
        f"{'Gaussian' if cuts == 0 else 'Gaussians'} per class, each "
        f"{in_short(stands(shapes[-2]))} times as strong as its noise; the network begins with "
        f"{_SAMPLES:,} samples of it"
    )
    return MixtureStart(share, cuts, stds, _SAMPLES, together("mixture", releases), words)


def _shape(facts: Facts) -> tuple[int, int, int]:
    return facts.channels, facts.size, facts.classes


def _bound(shape: QuestionShape) -> Bound:
    return mixture_bound(shape.width, shape.blocks)


def _stands(facts: Facts, noise: float, shape: QuestionShape) -> float:
    """Records of a block of usual size, in terms of the largest eigenvalue of noise alone."""
    assert shape.blocks is not None
    return facts.records / shape.blocks / (noise * math.sqrt(2 * shape.width))
