"""The first picture: synthetic images class by class, beside real ones where these are public.

Real images are held-out ones of a public benchmark, never those of somebody's own data.
"""

import base64
import io
from dataclasses import dataclass

import torch
from torch import Tensor

from fedtranscribe.data import ImageSet
from fedtranscribe.data.imageset import NO_LABEL, groups_of
from fedtranscribe.errors import FedtranscribeError
from fedtranscribe.evaluation.report_facts import RunFacts
from fedtranscribe.models.diffusion import Synthesizer
from fedtranscribe.models.mixture import GaussianMixture
from fedtranscribe.runs.finished import FinishedRun

_PER_CLASS, _REAL_PER_CLASS = 10, 5
_MOST_CLASSES = 20
_SAMPLES = 600
_GAP = 2


@dataclass(frozen=True)
class Strip:
    """Images side by side."""

    source: str  # a `data:` URL
    words: str  # alternative text
    width: int  # pixels
    height: int  # pixels


@dataclass(frozen=True)
class ClassRow:
    """One class: its name, synthetic images, and real ones where these are public."""

    name: str
    synthetic: Strip
    real: Strip | None


@dataclass(frozen=True)
class Samples:
    """The picture."""

    rows: tuple[ClassRow, ...]  # one per class that came up; the first twenty
    classes: int  # of the task
    labels: str  # whose labels the synthetic images have

    @property
    def beside_real(self) -> bool:
        """Whether real images are shown."""
        return any(row.real is not None for row in self.rows)


def draw_samples(facts: RunFacts) -> Samples | None:
    """Draw from a run's generator anew; None where it has none, or it cannot be opened."""
    try:
        run = FinishedRun.open(facts.path)
        if run.generator is None:
            return None
        if isinstance(run.generator, Synthesizer):
            # It is asked for each class, and slow; one class stands for images without labels.
            classes = max(1, run.generator.classes)
            drawn = run.synthesise(classes * _PER_CLASS)
        else:
            assert run.student is not None
            classes = run.student.classes
            drawn = run.synthesise(_SAMPLES)
    except (FedtranscribeError, OSError, ValueError):
        # The page of a run of another kind, or without its networks, is still a page.
        return None
    real = facts.public if run.labelled and _same_shape(drawn[0], facts.public) else None
    names = facts.class_names if run.labelled else None
    names = names or _numbered(classes)
    if drawn[1].ndim == 2:
        names = [NO_LABEL, *names]
    rows = class_rows(*drawn, names, real)
    return Samples(tuple(rows), classes, _labels(run)) if rows else None


def class_rows(
    images: Tensor, labels: Tensor, names: list[str], real: ImageSet | None
) -> list[ClassRow]:
    """Rows of the picture, for the first twenty classes that have synthetic images.

    Args:
        images: synthetic, uint8 [n, ch, s, s].
        labels: int64 [n]; of several labels the first one counts.
        names: of all classes.
        real: public images of the same shape and classes.
    """
    rows, groups = [], groups_of(labels)
    for label, name in enumerate(names):
        some = images[groups == label][:_PER_CLASS]
        if len(some) == 0 or len(rows) == _MOST_CLASSES:
            continue
        beside = None
        if real is not None:
            known = real.images[groups_of(real.labels) == label][:_REAL_PER_CLASS]
            if len(known) > 0:
                beside = _strip(known, _REAL_PER_CLASS, f"{len(known)} real images of class {name}")
        words = f"{len(some)} synthetic images of class {name}"
        rows.append(ClassRow(name, _strip(some, _PER_CLASS, words), beside))
    return rows


def png_url(content: bytes) -> str:
    """A PNG as a `data:` URL."""
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"


def _same_shape(images: Tensor, real: ImageSet | None) -> bool:
    return real is not None and images.shape[1:] == real.images.shape[1:]


def _numbered(classes: int) -> list[str]:
    return [str(label) for label in range(classes)] if classes > 1 else [""]


def _labels(run: FinishedRun) -> str:
    if isinstance(run.generator, Synthesizer):
        if run.generator.classes == 0:
            return "The diffusion model knows no classes."
        if not run.labelled:
            return "The diffusion model was asked for each of its clusters, which are no classes."
        return "The diffusion model was asked for each class."
    if isinstance(run.generator, GaussianMixture) and run.generator.sharpener is None:
        return "The generator was asked for each class."
    return "The generator makes images without labels; the student sorted them."


def _strip(images: Tensor, places: int, words: str) -> Strip:
    """Images side by side with a thin gap between them, padded on the right to so many places."""
    channels, size = images.shape[1], images.shape[2]
    step = size + _GAP
    picture = torch.full((channels, size, places * step - _GAP), 255, dtype=torch.uint8)
    for place, image in enumerate(images):
        picture[:, :, place * step : place * step + size] = image
    return Strip(_png(picture), words, picture.shape[2], size)


def _png(picture: Tensor) -> str:
    from matplotlib.image import imsave

    buffer = io.BytesIO()
    array = picture.permute(1, 2, 0).numpy()
    grey = array.shape[-1] == 1
    imsave(buffer, array[..., 0] if grey else array, cmap="gray", vmin=0, vmax=255, format="png")
    return png_url(buffer.getvalue())
