"""Figures that live inside a page: SVG without scripts."""

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fedtranscribe.evaluation.figures import CurvePoint
from fedtranscribe.evaluation.report_words import Line, tiny
from fedtranscribe.text import counted, literal

_COLOURS = ("#0b5c6b", "#b4531a", "#5b4a9c", "#3c7a3a", "#a3286a", "#6b6b6b")
_INK, _GRID = "#3b4249", "#d9dcdf"
_SIZE = (5.2, 3.1)
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
    """One figure."""

    svg: str  # markup, to be placed as it is
    words: str  # what it shows, for who cannot see it


def accuracy_curve(
    answered: Sequence[int],
    values: Sequence[float],
    baselines: Mapping[str, float],
    what: str,
) -> Drawing:
    """The student's accuracy over what was answered."""
    with _canvas() as (figure, axis):
        axis.plot(answered, values, marker="o", markersize=3.5, color=_COLOURS[0], label="student")
        for number, (name, value) in enumerate(baselines.items(), start=1):
            style = {"color": _COLOURS[number], "linestyle": "--", "linewidth": 1.2}
            axis.axhline(value, label=name, **style)
        axis.set(xlabel=f"{what} answered", ylabel="accuracy, held-out images", ylim=(0, 1))
        _whole_numbers(axis)
        axis.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
        axis.legend(loc="best")
        svg = _svg(figure, "accuracy")
    words = (
        f"Line: the student's accuracy on held-out images rises from {100 * values[0]:.0f} % after "
        f"{answered[0]:,} answered {what} to {100 * values[-1]:.0f} % after {answered[-1]:,}"
        if values[-1] >= values[0]
        else f"Line: the student's accuracy on held-out images, {100 * values[-1]:.0f} % at the end"
    )
    compared = "".join(f"; {name}: {100 * value:.0f} %" for name, value in baselines.items())
    return Drawing(svg, f"{words}{compared}.")


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
        _whole_numbers(axis)
        axis.legend(loc="best")
        svg = _svg(figure, "spending")
    ends = "; ".join(
        f"{line.label}: ε = {line.epsilon[-1]:.4g} after {counted(line.rows[-1], 'row')}"
        for line in lines
    )
    return Drawing(svg, f"Lines of ε growing with answered rows. {ends}.")


def privacy_accuracy(lines: Mapping[str, Sequence[CurvePoint]]) -> Drawing:
    """Accuracy over ε for several runs; those without a guarantee are horizontal lines."""
    labels: list[str] = []
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
                labels += [f"{label}, ε = {e:.3g}: {100 * m:.0f} %" for e, m, _, _ in known]
            for point in points:
                if point.epsilon is None:
                    axis.axhline(point.mean, color=colour, linestyle="--", label=literal(label))
                    labels.append(f"{label}, without guarantee: {100 * point.mean:.0f} %")
        if epsilons:
            axis.set_xlim(min(epsilons) / 1.5, max(epsilons) * 1.5)
            axis.set_xscale("log")
            axis.set_xticks(sorted(epsilons), [f"{e:.3g}" for e in sorted(epsilons)])
            axis.minorticks_off()
        axis.set(xlabel="sound ε", ylabel="accuracy, held-out images")
        axis.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
        axis.legend(loc="best")
        svg = _svg(figure, "curve")
    return Drawing(svg, f"Accuracy over ε. {'; '.join(labels)}.")


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


def _whole_numbers(axis: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


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
