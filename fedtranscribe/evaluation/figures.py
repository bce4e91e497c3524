"""Figures of an evaluation and of a comparison, drawn without a display."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedtranscribe.errors import StorageError
from fedtranscribe.text import literal

_PER_CLASS = 10
_MOST_CLASSES = 20
_MARGIN = 1.5


@dataclass(frozen=True)
class CurvePoint:
    """A point of a privacy-accuracy curve."""

    epsilon: float | None  # sound; None for a run without privacy
    mean: float  # accuracy, mean over runs
    low: float  # the lowest
    high: float  # the highest


def draw_classes(
    images: Tensor, labels: Tensor, path: Path, names: Sequence[str] | None = None
) -> None:
    """Ten synthetic images of every class, a row per class.

    Args:
        images: uint8 [n, ch, s, s].
        labels: int64 [n]; the first twenty classes that occur are shown.
        path: PNG to write.
        names: of all classes; their numbers if not given.
    """
    classes: list[int] = labels.unique()[:_MOST_CLASSES].tolist()
    rows = [images[labels == label][:_PER_CLASS] for label in classes]
    called = [str(label) if names is None else literal(names[label]) for label in classes]
    _draw_rows(rows, called, path, "Synthetic images by class")


def draw_neighbours(
    synthetic: Tensor, by_pixels: Tensor, by_features: Tensor | None, path: Path
) -> None:
    """Synthetic images, each beside real training records. What it writes is PRIVATE.

    Args:
        synthetic: uint8 [m, ch, s, s].
        by_pixels: records nearest in pixels, uint8 [m, k, ch, s, s].
        by_features: records nearest in the student's features, same shape; None without a student.
        path: PNG to write, under `private/`.
    """
    k = by_pixels.shape[1]
    parts = [synthetic[:, None], by_pixels]
    title = (
        "PRIVATE: shows records of the holder. Never release it.\n"
        f"left: synthetic; next {k}: nearest records in pixels"
    )
    if by_features is not None:
        parts.append(by_features)
        title += f"; last {k}: nearest in the student's features"
    rows = list(torch.cat(parts, dim=1))
    _draw_rows(rows, [""] * len(rows), path, title)


def draw_privacy_accuracy(lines: Mapping[str, Sequence[CurvePoint]], path: Path) -> None:
    """Accuracy over ε, a line per kind of run; runs without privacy are horizontal lines."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5, 4), layout="constrained")
    axis = figure.subplots()
    epsilons: set[float] = set()
    for number, (label, points) in enumerate(lines.items()):
        colour = f"C{number % 10}"
        private = sorted(
            (point for point in points if point.epsilon is not None),
            key=lambda point: point.epsilon or 0.0,
        )
        if private:
            _draw_line(axis, label, colour, private)
            epsilons |= {point.epsilon for point in private if point.epsilon is not None}
        for point in points:
            if point.epsilon is None:
                axis.axhline(point.mean, color=colour, linestyle="--", label=literal(label))
                axis.axhspan(point.low, point.high, color=colour, alpha=0.15, linewidth=0)
    if epsilons:
        # A single ε would leave the axis without a length, and the scale would warn of that.
        axis.set_xlim(min(epsilons) / _MARGIN, max(epsilons) * _MARGIN)
        axis.set_xscale("log")
        axis.set_xticks(sorted(epsilons), [f"{epsilon:.3g}" for epsilon in sorted(epsilons)])
        axis.minorticks_off()
    axis.set(xlabel="ε, sound", ylabel="student's accuracy on held-out images")
    axis.set_title("Mean over seeds; bars from the lowest to the highest", fontsize=9)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    _save(figure, path)


def _draw_line(axis: Any, label: str, colour: str, points: Sequence[CurvePoint]) -> None:
    means = [point.mean for point in points]
    below = [point.mean - point.low for point in points]
    above = [point.high - point.mean for point in points]
    axis.errorbar(
        [point.epsilon for point in points],
        means,
        yerr=[below, above],
        color=colour,
        label=literal(label),
        marker="o",
        markersize=4,
        capsize=3,
    )


def _draw_rows(rows: Sequence[Tensor], names: Sequence[str], path: Path, title: str) -> None:
    """One picture out of all images: a hundred axes would take seconds."""
    from matplotlib.figure import Figure

    columns = max(len(row) for row in rows)
    channels, size = rows[0].shape[1], rows[0].shape[2]
    step = size + max(1, size // 8)
    canvas = torch.full((channels, len(rows) * step, columns * step), 255, dtype=torch.uint8)
    for top, row in enumerate(rows):
        for left, image in enumerate(row):
            canvas[:, top * step : top * step + size, left * step : left * step + size] = image
    figure = Figure(figsize=(columns * 0.6 + 0.6, len(rows) * 0.6 + 0.6), layout="constrained")
    figure.suptitle(title, fontsize=8)
    axis = figure.subplots()
    axis.imshow(canvas.permute(1, 2, 0).numpy().squeeze(), cmap="gray", vmin=0, vmax=255)
    axis.set_xticks([])
    axis.set_yticks([top * step + size // 2 for top in range(len(rows))], names, fontsize=8)
    axis.tick_params(length=0)
    axis.set_frame_on(False)
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise StorageError(f"Cannot write {path}: {error.strerror or error}.") from None
