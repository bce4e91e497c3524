"""Figures that live inside a page: SVG without scripts, sample images as small PNG."""

import base64
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedtranscribe.evaluation.figures import CurvePoint, literal
from fedtranscribe.report.spending import Line
from fedtranscribe.report.verdict import tiny
from fedtranscribe.text import counted

_COLOURS = ("#0b5c6b", "#b4531a", "#5b4a9c", "#3c7a3a", "#a3286a", "#6b6b6b")
_INK, _GRID = "#3b4249", "#d9dcdf"
_SIZE = (5.2, 3.1)
PER_CLASS = 10
_GAP = 2
_LARGE_RATIO = 30

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "fedtranscribe",
    "font.size": 10.5,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "text.color": _INK,
    "grid.color": _GRID,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
}
_FONT = re.compile(r"font: ([0-9.]+)px '?DejaVu Sans'?[^;\"]*")
_IDS = re.compile(r'(\bid="|url\(#|href="#)')


@dataclass(frozen=True)
class Drawing:
    """One figure.

    Attributes:
        svg: markup, to be placed as it is.
        words: what it shows, for who cannot see it.
    """

    svg: str
    words: str


@dataclass(frozen=True)
class SampleRow:
    """Synthetic images of one class.

    Attributes:
        label: what the student calls them.
        source: a `data:` URL.
        words: alternative text.
        width: pixels.
        height: pixels.
    """

    label: str
    source: str
    words: str
    width: int
    height: int


def accuracy_curve(rows: Sequence[int], values: Sequence[float], alone: float | None) -> Drawing:
    """The student's accuracy over answered rows.

    Args:
        rows: answered rows.
        values: accuracy at each.
        alone: accuracy after public images alone; None where it is not known.
    """
    with _canvas() as (figure, axis):
        axis.plot(rows, values, marker="o", markersize=3.5, color=_COLOURS[0], label="student")
        if alone is not None:
            axis.axhline(
                alone, color=_COLOURS[1], linestyle="--", linewidth=1.2, label="public images alone"
            )
        axis.set(xlabel="rows answered", ylabel="accuracy, held-out images", ylim=(0, 1))
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axis.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
        axis.legend(loc="best")
        svg = _svg(figure, "accuracy")
    words = (
        f"Line: the student's accuracy on held-out images rises from {100 * values[0]:.0f} % after "
        f"{rows[0]:,} answered rows to {100 * values[-1]:.0f} % after {rows[-1]:,}"
        if values[-1] >= values[0]
        else f"Line: the student's accuracy on held-out images, {100 * values[-1]:.0f} % at the end"
    )
    start = f"; {100 * alone:.0f} % after public images alone." if alone is not None else "."
    return Drawing(svg, words + start)


def spending_curve(lines: Sequence[Line], delta: float) -> Drawing:
    """Sound ε over answered rows, a line per holder and unit."""
    values = [epsilon for line in lines for epsilon in line.epsilon if epsilon > 0]
    with _canvas() as (figure, axis):
        for number, line in enumerate(lines):
            axis.plot(
                line.rows,
                line.epsilon,
                marker="o",
                markersize=3.5,
                color=_COLOURS[number % len(_COLOURS)],
                label=literal(line.label),
            )
        if values and max(values) > _LARGE_RATIO * min(values):
            axis.set_yscale("log")
            axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.{0 if value >= 1 else 2}f}")
        else:
            axis.set_ylim(bottom=0)
        axis.set(xlabel="rows answered", ylabel=f"sound ε at δ = {tiny(delta)}")
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axis.legend(loc="best")
        svg = _svg(figure, "spending")
    ends = "; ".join(
        f"{line.label}: ε = {line.epsilon[-1]:.4g} after {counted(line.rows[-1], 'row')}"
        for line in lines
    )
    return Drawing(svg, f"Lines of ε growing with answered rows. {ends}.")


def privacy_accuracy(lines: Mapping[str, Sequence[CurvePoint]]) -> Drawing:
    """Accuracy over ε for several runs; those without a guarantee are horizontal lines."""
    told: list[str] = []
    with _canvas() as (figure, axis):
        epsilons: set[float] = set()
        for number, (label, points) in enumerate(lines.items()):
            colour = _COLOURS[number % len(_COLOURS)]
            known = sorted((p.epsilon, p.mean, p.low, p.high) for p in points if p.epsilon)
            if known:
                x, mean, low, high = (list(column) for column in zip(*known, strict=True))
                axis.plot(x, mean, marker="o", markersize=4, color=colour, label=literal(label))
                axis.vlines(x, low, high, color=colour, linewidth=1.2)
                epsilons |= set(x)
                told += [f"{label}, ε = {e:.3g}: {100 * m:.0f} %" for e, m, _, _ in known]
            for point in points:
                if point.epsilon is None:
                    axis.axhline(point.mean, color=colour, linestyle="--", label=literal(label))
                    told.append(f"{label}, without guarantee: {100 * point.mean:.0f} %")
        if epsilons:
            axis.set_xlim(min(epsilons) / 1.5, max(epsilons) * 1.5)
            axis.set_xscale("log")
            axis.set_xticks(sorted(epsilons), [f"{e:.3g}" for e in sorted(epsilons)])
            axis.minorticks_off()
        axis.set(xlabel="sound ε", ylabel="accuracy, held-out images")
        axis.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
        axis.legend(loc="best")
        svg = _svg(figure, "curve")
    return Drawing(svg, f"Accuracy over ε. {'; '.join(told)}.")


def sample_rows(images: Tensor, labels: Tensor, classes: int) -> list[SampleRow]:
    """Ten synthetic images of every class.

    Args:
        images: uint8 [n, ch, s, s].
        labels: int64 [n].
        classes: of the task; one without images is left out.
    """
    rows = []
    for label in range(classes):
        some = images[labels == label][:PER_CLASS]
        if len(some) == 0:
            continue
        strip = _strip(some)
        words = f"{len(some)} synthetic images of class {label}"
        height, width = strip.shape[-2:]
        rows.append(SampleRow(str(label), _png(strip), words, width, height))
    return rows


def png_url(content: bytes) -> str:
    """A PNG as a `data:` URL."""
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"


@contextmanager
def _canvas() -> Iterator[tuple[Any, Any]]:
    """A figure and its axis in the page's style, which holds until the figure is saved."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=_SIZE, layout="constrained")
        axis = figure.subplots()
        axis.grid(linewidth=0.7)
        axis.set_axisbelow(True)
        yield figure, axis


def _svg(figure: Any, name: str) -> str:
    """The <svg> element alone, scalable, its ids its own, in the page's typeface."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = _IDS.sub(rf"\1{name}-", text)
    return _FONT.sub(r"font-size: \1px", text).strip()


def _strip(images: Tensor) -> Tensor:
    """Images side by side, a thin white gap between them: uint8 [ch, s, w]."""
    channels, size = images.shape[1], images.shape[2]
    step = size + _GAP
    strip = torch.full((channels, size, len(images) * step - _GAP), 255, dtype=torch.uint8)
    for place, image in enumerate(images):
        strip[:, :, place * step : place * step + size] = image
    return strip


def _png(picture: Tensor) -> str:
    from matplotlib.image import imsave

    buffer = io.BytesIO()
    array = picture.permute(1, 2, 0).numpy()
    grey = array.shape[-1] == 1
    imsave(buffer, array[..., 0] if grey else array, cmap="gray", vmin=0, vmax=255, format="png")
    return png_url(buffer.getvalue())
