"""A generator that shows the data: a mixture of low-rank Gaussians, from noisy sums."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedtranscribe.methods.method import Combined, read_answers, stored_answers
from fedtranscribe.models.mixture import (
    GaussianMixture,
    band_count,
    bands_of,
    frequency_count,
    lowest,
)
from fedtranscribe.questions.mixture import CONSTANT, MixtureQuery, block_matrices
from fedtranscribe.questions.question import MOST_NUMBERS, Kind, triangle_length

FREQUENCIES = 200
"""The lowest ones, among which axes are looked for."""
AXES = 40
# A component is cut in two where either half still stands so many times above the noise.
_WORTH_A_CUT = 100.0
_MOST_CUTS = 3


@dataclass(frozen=True)
class QuestionShape:
    """What a plan has to know of a question before it is asked."""

    share: float  # of the mixture's budget, in μ²
    width: int  # numbers in a mapped record, with the constant
    blocks: int | None  # of products; None asks for energies


Shapes = tuple[QuestionShape, ...]


def question_shapes(channels: int, size: int, classes: int, cuts: int) -> Shapes:
    """Axes, classes, components where there are any, texture: all that `MixtureMethod` will ask."""
    d = frequency_count(channels, size)
    looked_at = min(FREQUENCIES, d)
    wide = min(AXES, looked_at) + 1
    shares = (0.2, 0.15, 0.63, 0.02) if cuts else (0.25, 0.73, 0.02)
    blocks = (classes, classes * 2**cuts) if cuts else (classes,)
    bands = band_count(channels, size)
    shapes = ((looked_at + 1, 1), *((wide, count) for count in blocks), (bands, None))
    return tuple(QuestionShape(s, *shape) for s, shape in zip(shares, shapes, strict=True))


def fits(channels: int, size: int, classes: int, cuts: int = 0) -> bool:
    """Whether every answer of such a mixture is short enough to be asked for."""
    shapes = question_shapes(channels, size, classes, cuts)
    return all((s.blocks or 0) * triangle_length(s.width) <= MOST_NUMBERS for s in shapes)


def picked_cuts(
    channels: int, size: int, classes: int, stands: Callable[[QuestionShape], float]
) -> int:
    """How often each class is cut: as often as its parts stand well above the noise.

    Args:
        channels: of the images.
        size: of the images, in pixels.
        classes: of the task.
        stands: how many times a block of usual size stands above the noise of a question; 0 where
            nobody says how many records there are.
    """
    for cuts in range(_MOST_CUTS, 0, -1):
        if fits(channels, size, classes, cuts):
            last = question_shapes(channels, size, classes, cuts)[-2]
            if stands(last) >= _WORTH_A_CUT:
                return cuts
    return 0


# Public: what pictures are taken to be like before anything is known. Of white = 1.
_GREY, _CONTRAST = 0.25, 0.4
# Of the root mean square length of a record on the axes.
_RADIUS = 1.4
_TEXTURE_RADIUS = 1.0
_LEAST_SQUARE = 1e-3
# A mean or an energy counts where it is so many times the std of its noise.
_SEEN = 4.0


class MixtureMethod:
    """Three questions, or four, whose answers are a mixture.

    Args:
        channels: of the images.
        size: of the images, in pixels.
        classes: of the task.
        cuts: 2^cuts components per class; none leaves a Gaussian per class.
        run: prefix of query ids, unique for the ledger.
    """

    def __init__(self, channels: int, size: int, classes: int, cuts: int, run: str) -> None:
        self._shape = channels, size
        self._classes = classes
        self._cuts = cuts
        self._run = run
        self._learned: list[tuple[MixtureQuery, Combined]] = []

    @property
    def round(self) -> int:
        """How many questions have been answered."""
        return len(self._learned)

    @property
    def finished(self) -> bool:
        """Whether all of them have been."""
        return self.round == (4 if self._cuts else 3)

    def ask(self) -> MixtureQuery:
        """The next question; a function of the answers before it."""
        name = f"{self._run}/mixture-{self.round}"
        if not self._learned:
            return axes_query(name, *self._shape)
        if self.round == 1:
            return classes_query(name, *self._learned[0], self._classes)
        if self.round == 2 and self._cuts:
            return components_query(name, *self._learned[1], self._cuts)
        return texture_query(name, *self._shape, self._learned[1][0])

    def learn(self, query: MixtureQuery, answer: Combined) -> dict[str, float]:
        """Keep the answer to a question."""
        self._learned.append((query, answer))
        return {}

    @property
    def mixture(self) -> GaussianMixture:
        """What all answers say."""
        return mixture_of(*self._shape, self._learned[-2], self._learned[-1])

    def state(self) -> list[dict[str, Any]]:
        """Everything that `load_state` needs."""
        return stored_answers(self._learned)

    def load_state(self, state: list[dict[str, Any]]) -> None:
        """Continue from `state()` of the same plan."""
        self._learned = read_answers(state, MixtureQuery)


# ---------------------------------------------------------------- questions


def axes_query(query_id: str, channels: int, size: int) -> MixtureQuery:
    """In which directions do records differ, and around what? One block of the lowest frequencies.

    Args:
        query_id: unique within the run.
        channels: of the images, 1 or 3.
        size: of the images, in pixels.
    """
    d = frequency_count(channels, size)
    centre = torch.zeros(d)
    centre[0] = _GREY * size * math.sqrt(channels)
    where = lowest(channels, size, min(FREQUENCIES, d))
    mapping = torch.zeros(d, len(where))
    mapping[where, torch.arange(len(where))] = 1 / (_CONTRAST * size * math.sqrt(channels))
    return _query(query_id, centre, mapping, torch.zeros(0, 0, len(where) + 1))


def classes_query(
    query_id: str, first: MixtureQuery, answer: Combined, classes: int
) -> MixtureQuery:
    """A Gaussian for every class, on the private axes; centre and radius are the first answer's.

    Args:
        query_id: unique within the run.
        first: of `axes_query`.
        answer: to it.
        classes: of the task.
    """
    counts, mean, covariance = moments_of(first, answer)
    edge = float(_noise_edge(answer.noise, first) / counts[0])
    vectors, spread = _seen_axes(covariance[0], edge, min(AXES, first.entries - 1))
    mapping = first.map.double()
    scale = mapping.norm(dim=0)[0]  # the same for every frequency that is picked
    basis = mapping / scale
    axes = basis @ vectors
    # Where noise hides it, the mean is what it was taken to be before.
    unsure = answer.noise * (1 + CONSTANT**2) / (math.sqrt(2) * CONSTANT * counts[0])
    known = torch.where(mean[0].abs() > _SEEN * unsure, mean[0], 0.0)
    centre = first.centre.double() + basis @ known / scale
    # Length on the axes of a usual record; of nothing but noise it may be anything.
    length = math.sqrt(max(spread, _LEAST_SQUARE)) / scale
    return _query(
        query_id,
        centre.float(),
        (axes / (_RADIUS * length)).float(),
        torch.zeros(classes, 0, axes.shape[1] + 1),
    )


def _seen_axes(covariance: Tensor, edge: float, k: int) -> tuple[Tensor, float]:
    """Orthonormal axes [d, k], and how much records spread on them.

    Those on which records spread more than noise alone can; then the lowest frequencies, which
    are where pictures differ most, whatever they show.
    """
    values, vectors = torch.linalg.eigh(covariance)
    seen = min(k, int((values > edge).sum()))
    top = vectors[:, len(values) - seen :].flip(1)
    lowest_ones = torch.eye(len(values), k, dtype=torch.float64)
    axes = torch.linalg.qr(torch.cat([top, lowest_ones], 1)).Q[:, :k]
    visible = (values[len(values) - seen :].square() - edge**2).sqrt().sum()
    others = axes[:, seen:]
    return axes, float(visible + (others * (covariance @ others)).sum().clamp_min(0))


def components_query(
    query_id: str, second: MixtureQuery, answer: Combined, cuts: int
) -> MixtureQuery:
    """2^cuts Gaussians for every class, cut through its mean along its leading axes.

    Args:
        query_id: unique within the run.
        second: of `classes_query`.
        answer: to it.
        cuts: per class, at most `MOST_CUTS`.
    """
    _, means, covariances = moments_of(second, answer)
    vectors = torch.linalg.eigh(covariances).eigenvectors[:, :, -cuts:].flip(2).transpose(1, 2)
    # A side of the plane through the mean; ũ ends with the constant.
    offsets = -torch.einsum("cjk,ck->cj", vectors, means) / CONSTANT
    return _query(
        query_id, second.centre, second.map, torch.cat([vectors, offsets[..., None]], 2).float()
    )


def texture_query(query_id: str, channels: int, size: int, second: MixtureQuery) -> MixtureQuery:
    """How much of each band of frequencies do the axes of `classes_query` (`second`) leave?"""
    mapping = second.map.double()
    scale = mapping.norm(dim=0)[0]
    axes, none = (mapping / scale).float(), torch.zeros(0, 0, second.entries)
    bands = band_count(channels, size)
    return _query(query_id, second.centre, axes, none, float(scale / _TEXTURE_RADIUS), bands)


def _query(
    query_id: str,
    centre: Tensor,
    mapping: Tensor,
    cuts: Tensor,
    rest: float = 0.0,
    bands: int = 0,
) -> MixtureQuery:
    return MixtureQuery(query_id, Kind.MIXTURE, centre, mapping, cuts, rest, bands)


# ---------------------------------------------------------------- what they show


def moments_of(query: MixtureQuery, answer: Combined) -> tuple[Tensor, Tensor, Tensor]:
    """Noisy counts [c], means [c, k] and covariances [c, k, k] of the mapped records, by block."""
    sums = block_matrices(answer.values[0], query.entries, query.blocks) * (1 + CONSTANT**2)
    counts = (sums[:, -1, -1] / CONSTANT**2).clamp_min(1.0)
    means = sums[:, :-1, -1] / CONSTANT / counts[:, None]
    seconds = sums[:, :-1, :-1] / counts[:, None, None]
    return counts, means, seconds - means[:, :, None] * means[:, None, :]


def mixture_of(
    channels: int,
    size: int,
    gaussians: tuple[MixtureQuery, Combined],
    texture: tuple[MixtureQuery, Combined],
) -> GaussianMixture:
    """The generator out of the last answers.

    Args:
        channels: of the images.
        size: of the images.
        gaussians: the query by class, or by component, and its answer.
        texture: the same.
    """
    query, answer = gaussians
    mapping = query.map.double()
    scale = mapping.norm(dim=0)[0]
    counts, means, covariances = moments_of(query, answer)
    edges = _noise_edge(answer.noise, query) / counts
    values, vectors = torch.linalg.eigh(covariances)
    spread = _seen(values, edges[:, None])
    # A mapped record is no longer than one, and so is the mean square of those of a component.
    room = (1 - means.square().sum(1)).clamp_min(0)
    spread = spread * (room / spread.sum(1).clamp_min(1e-300)).clamp_max(1)[:, None]
    each = query.blocks // query.classes
    return GaussianMixture(
        channels,
        size,
        query.classes,
        query.centre.double(),
        mapping / scale,
        counts,
        torch.arange(query.classes).repeat_interleave(each),
        means / scale,
        vectors * spread.sqrt()[:, None, :] / scale,
        _texture(channels, size, float(counts.sum()), *texture),
    )


def _texture(
    channels: int, size: int, records: float, query: MixtureQuery, answer: Combined
) -> Tensor:
    """Std of each frequency outside of the axes [d]: alike within a band, nothing out of noise."""
    where = bands_of(channels, size)
    energies = _seen(answer.values[0].double(), torch.tensor(_SEEN * answer.noise))
    # What a record has left is no longer than one.
    energies = energies * min(1.0, records / max(float(energies.sum()), 1.0))
    each = energies / torch.bincount(where, minlength=query.bands) / records
    return each[where].sqrt() / query.rest


def _seen(values: Tensor, edge: Tensor) -> Tensor:
    """Noisy values that should not be negative, without their noise: zero up to its edge."""
    return (values.clamp_min(0).square() - edge.square()).clamp_min(0).sqrt()


def _noise_edge(noise: float, query: MixtureQuery) -> float:
    """About the largest eigenvalue of the noise on a block's sum: τ √(2 k), in mapped units."""
    return noise * math.sqrt(2 * query.entries) * (1 + CONSTANT**2)
