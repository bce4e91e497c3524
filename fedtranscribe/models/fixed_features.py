"""Linear classifiers on fixed features, which no record has shaped."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial

import torch
from torch import Tensor, nn

from fedtranscribe.errors import ConfigError
from fedtranscribe.models.backbones import Backbone, FrozenBackbone
from fedtranscribe.models.classifier import SIDE_SEEN, Classifier, InputAdapter
from fedtranscribe.models.patches import Patches
from fedtranscribe.models.scattering import NormalisedScattering

SCATTER = "scatter"
PATCHES = "patches"

BIAS = 0.3
"""The constant entry of a row, which stands for the bias, before the row is scaled to norm one."""
_TINY = 1e-12
MOST_PRODUCTS = 64
"""Of so many features in pairs, at most."""
# Of the norm of the products in a row, in terms of that of the features themselves.
_PRODUCTS = 0.5


@dataclass(frozen=True)
class _Fixed:
    """What features are called, how many axes of theirs a row has, and how these are scaled."""

    make: Callable[[int], nn.Module]
    words: str
    width: int
    floor: float = 0.1


_BACKBONE_WIDTH = 1_000
_FIXED: Mapping[str, _Fixed] = {
    SCATTER: _Fixed(NormalisedScattering, "wavelet features", 500, floor=10.0),
    PATCHES: _Fixed(Patches, "features of small patches", 1_000),
}
FIXED = tuple(_FIXED)
"""The names of our own fixed features, and of the linear classifiers on them."""


def is_fixed(name: str | None) -> bool:
    """Whether features are called so: ours, or those of a public network."""
    return name in FIXED or Backbone.parse(name) is not None


def features_for(student: str | None, channels: int) -> str:
    """The features of a student that sums over records set."""
    if student is not None and is_fixed(student):
        return student
    return PATCHES if channels == 3 else SCATTER


def side_seen(features: str, size: int) -> int:
    """Pixels a side that features see of images of `size`: public images need no more."""
    backbone = Backbone.parse(features)
    return min(size, SIDE_SEEN if backbone is None else backbone.side)


def words_for(features: str) -> str:
    """What they are, in words."""
    return _of(features).words


def axis_floor(features: str) -> float:
    """What every axis of public images is taken to vary by at least, as `public_map` has it."""
    return _of(features).floor


class UnitFeatures(nn.Module):
    """Images [n, ch, s, s] -> rows of norm one: see `unit_rows_of`."""

    centre: Tensor
    map: Tensor

    def __init__(
        self, features: str, channels: int, raw: int, width: int, products: int = 0
    ) -> None:
        super().__init__()
        self.products = products
        self.fixed = fixed_features(features, channels)
        self.register_buffer("centre", torch.zeros(raw))
        self.register_buffer("map", torch.randn(raw, width) / math.sqrt(raw))

    def forward(self, images: Tensor) -> Tensor:
        """float [n, ch, s, s] -> float [n, `row_length`]."""
        return self.rows(self.fixed(images))

    def rows(self, raw: Tensor) -> Tensor:
        """Rows of features [n, d] that are there already."""
        return unit_rows_of(raw, self.centre, self.map, products=self.products)

    @property
    def axes(self) -> tuple[Tensor, Tensor]:
        """The mean of the features [d], and their map [d, k]."""
        return self.centre, self.map

    def set_axes(self, centre: Tensor, mapping: Tensor) -> None:
        """Take the mean of the features [d], and their map [d, k]."""
        self.centre.copy_(centre)
        self.map.copy_(mapping)


def fixed_features(features: str, channels: int) -> nn.Module:
    """Images float [n, ch, s, s] in [0, 1] -> float [n, d]."""
    return _of(features).make(channels)


def unit_rows_of(
    coefficients: Tensor,
    centre: Tensor,
    mapping: Tensor,
    product: Callable[[Tensor, Tensor], Tensor] = torch.matmul,
    *,
    products: int = 0,
) -> Tensor:
    """Rows of features [n, d], in their precision: float [n, `row_length`].

    A row has norm one; where the features are not finite, or all mapped to zero, it is zero. It
    holds the mapped features, products of the first of them in pairs, and a constant.

    Args:
        coefficients: [n, d].
        centre: [d].
        mapping: [d, k].
        product: of two matrices; a holder's is exact.
        products: of how many mapped features all products are entries, too.
    """
    mapped = product(coefficients - centre, mapping)
    norm = mapped.norm(dim=1, keepdim=True)
    usable = torch.isfinite(norm) & (norm > _TINY)
    unit = torch.where(usable, mapped, 0.0) / torch.where(usable, norm, 1.0)
    constant = torch.where(usable, torch.full_like(norm, BIAS), 0.0)
    if products:
        unit = torch.cat([unit, _products_of(unit, products)], dim=1)
        unit = torch.where(usable, unit / unit.norm(dim=1, keepdim=True), 0.0)
    return torch.cat([unit, constant], dim=1) / math.sqrt(1 + BIAS**2)


def row_length(axes: int, products: int) -> int:
    """Entries of a row: k, the products, and the constant."""
    return axes + products * (products + 1) // 2 + 1


def _products_of(unit: Tensor, count: int) -> Tensor:
    """Products of the first entries of rows in pairs, [n, count (count + 1) / 2].

    Entries of a row of k are about 1/√k: squares have that taken off. Together the products weigh
    half of what the row does, and at most as much.
    """
    first, second = torch.triu_indices(count, count, device=unit.device)
    leading = unit[:, :count] * math.sqrt(unit.shape[1])
    found = leading[:, first] * leading[:, second]
    square = first == second
    found = torch.where(square, (found - 1) / math.sqrt(2), found)
    found = found * (_PRODUCTS / math.sqrt(len(first)))
    return found / found.norm(dim=1, keepdim=True).clamp_min(2 * _PRODUCTS) * (2 * _PRODUCTS)


@lru_cache
def coefficient_count(features: str, channels: int, size: int) -> int:
    """d, how many numbers the features of an image are."""
    # The shape alone: no pixel is computed, however large the images.
    with torch.no_grad(), torch.device("meta"):
        try:
            fixed = fixed_features(features, channels).to("meta")
            _, numbers = fixed(torch.zeros(1, channels, size, size)).shape
        except (AssertionError, RuntimeError, ValueError) as error:  # a network's own refusal
            raise ConfigError(
                f"There are no {words_for(features)}: the network cannot take such images "
                f"({str(error).splitlines()[0][:200]}); choose another features-side."
            ) from None
    return numbers


def _of(features: str) -> _Fixed:
    backbone = Backbone.parse(features)
    if backbone is None:
        return _FIXED[features]
    return _Fixed(partial(FrozenBackbone, backbone), backbone.words, _BACKBONE_WIDTH)


def row_width(features: str, channels: int, size: int) -> int:
    """k + 1, entries of a row of features without products."""
    return min(_of(features).width, coefficient_count(features, channels, size)) + 1


def build_linear(
    features: str, classes: int, channels: int, size: int, products: int = 0
) -> Classifier:
    """The classifier, its map drawn from torch's current generator."""
    axes = row_width(features, channels, size) - 1
    raw = coefficient_count(features, channels, size)
    backbone = UnitFeatures(features, channels, raw, axes, products)
    adapter = InputAdapter([0.0] * channels, [1.0] * channels, size)
    head = nn.Linear(row_length(axes, products), classes)
    return Classifier(features, channels, size, adapter, backbone, head)
