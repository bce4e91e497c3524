"""A generator: low-rank Gaussians over images' low frequencies, sharpened or not."""

import json
import math
from dataclasses import dataclass, replace
from functools import lru_cache, partial, reduce
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
import safetensors.torch
import torch
from pydantic import Field, TypeAdapter
from scipy.fft import dct
from torch import Tensor

from fedtranscribe.errors import ConfigError
from fedtranscribe.files import write_atomically
from fedtranscribe.models.sharpener import Sharpener
from fedtranscribe.models.weights import (
    ENTRY,
    Header,
    State,
    expect_fit,
    expect_shapes,
    load_state,
    read_header,
    restore,
    unusable,
)

MOST_SIDE = 32
# Whole numbers up to 2⁵³ are float64 numbers.
_EXACT = 53
# Eyes and networks see less of colour than of brightness.
_COLOUR_WEIGHT = 4


def frequency_count(channels: int, size: int) -> int:
    """d, how many frequencies an image has."""
    return channels * min(size, MOST_SIDE) ** 2


def frequencies(images: Tensor) -> Tensor:
    """Frequencies of images: float64 [n, d], channel by channel.

    Args:
        images: uint8 [n, ch, s, s]; 255 counts as one.

    Guarantee:
        Those of an image are a function of that image alone, wherever it stands. Pixels and the
        transform are whole numbers, so that no sum of their products is rounded, in any order; the
        rest is done entry by entry.
    """
    channels, size = images.shape[1], images.shape[-1]
    bits = (_EXACT - 8 - 2 * math.ceil(math.log2(size))) // 2
    lines, colours = (_lines(size) * 2.0**bits).round(), _matrix(channels)
    rows = (lines @ images.double() @ lines.T) / (255 * 4.0**bits)
    shares = (rows[:, i, None] * colours[:, i, None, None] for i in range(channels))
    return reduce(torch.add, shares).flatten(1)


def images_from(found: Tensor, channels: int, size: int) -> Tensor:
    """Images [n, ch, s, s] of frequencies [n, d]: the inverse, where none was left out."""
    side = min(size, MOST_SIDE)
    lines, colours = _lines(size).to(found), _matrix(channels).to(found)
    squares = found.reshape(-1, channels, side, side)
    return lines.T @ torch.einsum("cd,nchw->ndhw", colours, squares) @ lines


@lru_cache
def lowest(channels: int, size: int, count: int) -> Tensor:
    """Where the `count` lowest frequencies stand, int64 [count]; brightness before colour."""
    side = min(size, MOST_SIDE)
    channel, row, column = torch.meshgrid(
        torch.arange(channels), torch.arange(side), torch.arange(side), indexing="ij"
    )
    weight = torch.where(channel == 0, 1, _COLOUR_WEIGHT)
    height = weight * (row.square() + column.square() + (channel > 0))
    return height.flatten().argsort(stable=True)[:count]


@lru_cache
def bands_of(channels: int, size: int) -> Tensor:
    """In which band each frequency lies, int64 [d]: half octaves of its height, by channel.

    Texture is described by a number for each: what images have of a frequency changes slowly from
    one to the next.
    """
    side = min(size, MOST_SIDE)
    line = torch.arange(side, dtype=torch.float64)
    steps = (2 * torch.hypot(line[:, None], line).clamp_min(1).log2()).long()
    channel = torch.arange(channels)[:, None, None]
    return (channel * (int(steps.max()) + 1) + steps).flatten()


def band_count(channels: int, size: int) -> int:
    """How many bands there are."""
    return int(bands_of(channels, size)[-1]) + 1


def _lines(size: int) -> Tensor:
    return _matrix(size)[: min(size, MOST_SIDE)]


@lru_cache(maxsize=8)
def _matrix(size: int) -> Tensor:
    """The orthonormal transform, float64 [size, size]."""
    return torch.from_numpy(np.ascontiguousarray(dct(np.eye(size), norm="ortho", axis=0)))


MOST_AXES, MOST_COMPONENTS = 500, 100_000
# Numbers in the images that are drawn together.
_TOGETHER = 4_000_000
# Pixels of the images that are sharpened together, each of which takes some kilobytes.
_SHARPENED = 200_000
# Of a usual pixel, however dark all of them are.
_LEAST_CONTRAST = 0.1
# Columns were orthonormal before they were rounded to float32.
_SKEW = 1e-3


class MixtureHeader(Header):
    """Of `generator.safetensors`, where a run asked for a mixture."""

    kind: Literal["mixture"]
    channels: Literal[1, 3]
    size: Annotated[int, Field(ge=8, le=4_096)]
    classes: Annotated[int, Field(ge=2, le=100_000)]
    components: Annotated[int, Field(ge=1, le=MOST_COMPONENTS)]
    axes: Annotated[int, Field(ge=1, le=MOST_AXES)]
    sharpened: bool = False


@dataclass(frozen=True)
class GaussianMixture:
    """A released generator: public once its answers were private."""

    channels: int  # of its images
    size: int  # pixels a side
    classes: int  # how many there are; some may have no component
    centre: Tensor  # float64 [d], frequencies of the mean image
    axes: Tensor  # float64 [d, k], orthonormal columns
    counts: Tensor  # float64 [c], noisy numbers of records, nonnegative
    labels: Tensor  # int64 [c], class of each component
    means: Tensor  # float64 [c, k], on the axes
    roots: Tensor  # float64 [c, k, k], of the covariances on the axes
    texture: Tensor  # float64 [d], std of what lies outside of the axes, of a usual pixel
    # what every image passes through, without texture of the mixture's own
    sharpener: Sharpener | None = None

    @property
    def blurred(self) -> Self:
        """The same mixture without its sharpener."""
        return replace(self, sharpener=None)

    @property
    def smooth(self) -> Self:
        """The same mixture without sharpener and texture: what a sharpener is given."""
        return replace(self.blurred, texture=torch.zeros_like(self.texture))

    def sample(self, n: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Images float32 [n, ch, s, s] in [0, 1], and their labels int64 [n]."""
        if n < 1:
            raise ConfigError(f"Expected n={n} >= 1.")
        drawn = torch.multinomial(self.counts, n, replacement=True, generator=rng)
        return self._of(drawn, rng), self.labels[drawn]

    def draw(self, labels: Tensor, rng: torch.Generator) -> Tensor:
        """One image per label, float32 [n, ch, s, s] in [0, 1].

        Args:
            labels: int64 [n].
            rng: public randomness.
        """
        self.expect_known(labels)
        drawn = torch.empty_like(labels)
        for label in labels.unique().tolist():
            here = labels == label
            counts = self.counts * (self.labels == label)
            drawn[here] = torch.multinomial(counts, int(here.sum()), True, generator=rng)
        return self._of(drawn, rng)

    def expect_known(self, labels: Tensor) -> None:
        """Refuse classes that nothing can be drawn of."""
        for label in labels.unique().tolist():
            if not float(self.counts[self.labels == label].sum()) > 0:
                raise ConfigError(
                    f"Expected labels that the mixture has records of; of class {label} it has "
                    "none. Leave it out."
                )

    def is_sharpened(self, labels: Tensor) -> Tensor:
        """Whether images of these classes are sharpened, bool [n]; rare classes are not."""
        if self.sharpener is None:
            return torch.zeros_like(labels, dtype=torch.bool)
        return self.sharpener.known[labels]

    @property
    def noise_shape(self) -> tuple[int, ...]:
        """Of the numbers that make texture, or that a sharpener takes, for one image."""
        if self.sharpener is None:
            return (len(self.centre),)
        return self.sharpener.noise_shape

    def images_of(self, components: Tensor, steps: Tensor, noise: Tensor) -> Tensor:
        """Images float32 [n, ch, s, s] in [0, 1], a function of its arguments.

        Args:
            components: int64 [n].
            steps: [n, k], standard normal: along the axes.
            noise: [n, *noise_shape], standard normal.
        """
        placed = self.means[components] + torch.einsum("nk,njk->nj", steps, self.roots[components])
        images = self._seen(self.centre + placed @ self.axes.T).clamp(0, 1)
        if self.sharpener is not None:
            return self.sharpener(images.float(), self.labels[components], noise)
        rest = noise * self.texture
        rest = self._seen(rest - (rest @ self.axes) @ self.axes.T)
        # Where an image is black or white there is no grain: it lies where there is contrast.
        usual = _contrast(self._seen(self.centre).clamp(0, 1)).square().mean().sqrt()
        rest = rest * _contrast(images) / usual.clamp_min(_LEAST_CONTRAST)
        return (images + rest).clamp(0, 1).float()

    def _seen(self, found: Tensor) -> Tensor:
        return images_from(found, self.channels, self.size)

    def _of(self, drawn: Tensor, rng: torch.Generator) -> Tensor:
        """Images of the components that were drawn."""
        k, sharpened = self.means.shape[1], self.sharpener is not None
        together = _SHARPENED if sharpened else _TOGETHER // self.channels
        images = []
        for part in drawn.split(max(1, together // self.size**2)):
            steps = torch.randn(len(part), k, generator=rng, dtype=torch.float64)
            # A sharpener computes in single precision.
            kind = torch.float32 if sharpened else torch.float64
            noise = torch.randn(len(part), *self.noise_shape, generator=rng, dtype=kind)
            with torch.no_grad():
                images.append(self.images_of(part, steps, noise))
        return torch.cat(images)


def _contrast(images: Tensor) -> Tensor:
    """How far pixels are from black and white: 0 to 1."""
    return 2 * (images * (1 - images)).sqrt()


_SHARPENER = "sharpener."
_NAMES = ("centre", "axes", "counts", "labels", "means", "roots", "texture")


def save_mixture(mixture: GaussianMixture, path: Path) -> None:
    """Write a mixture; equal ones are equal files."""
    header = {
        "kind": "mixture",
        "channels": mixture.channels,
        "size": mixture.size,
        "classes": mixture.classes,
        "components": len(mixture.counts),
        "axes": mixture.axes.shape[1],
        "sharpened": mixture.sharpener is not None,
    }
    stored = {name: getattr(mixture, name) for name in _NAMES}
    state = {name: (t.float() if t.is_floating_point() else t) for name, t in stored.items()}
    if mixture.sharpener is not None:
        weights = mixture.sharpener.state_dict()
        state |= {f"{_SHARPENER}{name}": tensor.cpu() for name, tensor in weights.items()}
    tensors = {name: tensor.contiguous() for name, tensor in state.items()}
    write_atomically(path, safetensors.torch.save(tensors, {ENTRY: json.dumps(header)}))


def load_mixture(path: Path) -> GaussianMixture:
    """Read a mixture from anywhere."""
    header = read_header(path, TypeAdapter(MixtureHeader))
    state = load_state(path)
    sharpener = _sharpener(header, state, path) if header.sharpened else None
    d, k, c = frequency_count(header.channels, header.size), header.axes, header.components
    shapes = {"centre": (d,), "axes": (d, k), "counts": (c,), "labels": (c,)}
    shapes |= {"means": (c, k), "roots": (c, k, k), "texture": (d,)}
    kinds = {name: torch.int64 if name == "labels" else torch.float32 for name in shapes}
    planned = {
        name: torch.empty(shape, dtype=kinds[name], device="meta") for name, shape in shapes.items()
    }
    expect_shapes(planned, state, path)
    strange = next((name for name, dtype in kinds.items() if state[name].dtype != dtype), None)
    if strange is not None:
        raise unusable(path, f"{strange} as {state[strange].dtype}, not {kinds[strange]}")
    labels = state["labels"]
    doubles = {name: t.double() for name, t in state.items() if name != "labels"}
    axes = doubles["axes"]
    if bool((doubles["counts"] < 0).any()) or not 0 < float(doubles["counts"].sum()) < math.inf:
        raise unusable(path, "counts of records that cannot be drawn from")
    if bool((labels < 0).any()) or bool((labels >= header.classes).any()):
        raise unusable(path, f"labels beyond its {header.classes} classes")
    if k > d or float((axes.T @ axes - torch.eye(k).double()).abs().max()) > _SKEW:
        raise unusable(path, "axes that are not orthonormal")
    shape = header.channels, header.size, header.classes
    return GaussianMixture(*shape, labels=labels, sharpener=sharpener, **doubles)


def _sharpener(header: MixtureHeader, state: State, path: Path) -> Sharpener:
    """The sharpener among a file's tensors, which are taken out."""
    names = [name for name in state if name.startswith(_SHARPENER)]
    weights = {name.removeprefix(_SHARPENER): state.pop(name) for name in names}
    make = partial(Sharpener, header.channels, header.size, header.classes)
    expect_fit(make, weights, path)
    sharpener = make()
    restore(sharpener, weights, path)
    return sharpener.eval()
