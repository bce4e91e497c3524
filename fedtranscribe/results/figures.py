"""Results as figures: a grid of synthetic images and the accuracy curve."""

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from fedtranscribe.errors import StorageError
from fedtranscribe.text import literal

_COLUMNS = 10
_LONGEST_TITLE = 12


def figures_available() -> bool:
    """Whether the plots extra is installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def draw_images(
    images: Tensor, labels: Tensor, path: Path, names: Sequence[str] | None = None
) -> None:
    """A grid of synthetic images, each under its class.

    Args:
        images: uint8 [n, ch, s, s].
        labels: int64 [n], their own or the student's.
        path: PNG to write.
        names: of the classes; their numbers if not given.
    """
    from matplotlib.figure import Figure

    n, channels, size, _ = images.shape
    rows = math.ceil(n / _COLUMNS)
    # One picture of all: axes of their own for each would take seconds.
    high, wide = size + max(4, size // 3), size + max(2, size // 8)
    sheet = torch.full((channels, rows * high, _COLUMNS * wide), 255, dtype=torch.uint8)
    figure = Figure(figsize=(_COLUMNS * 0.6, rows * 0.7), layout="constrained")
    axis = figure.subplots()
    for place, (image, label) in enumerate(zip(images, labels.tolist(), strict=True)):
        top, left = place // _COLUMNS * high + high - size, place % _COLUMNS * wide
        sheet[:, top : top + size, left : left + size] = image
        title = literal(str(label) if names is None else names[int(label)], _LONGEST_TITLE)
        axis.text(left + size / 2, top - 1, title, fontsize=7, ha="center", va="bottom")
    axis.imshow(sheet.permute(1, 2, 0).numpy().squeeze(), cmap="gray", vmin=0, vmax=255)
    axis.axis("off")
    _save(figure, path)


def draw_curve(
    answered: list[int], values: list[float], lines: dict[str, float], path: Path, what: str
) -> None:
    """Student accuracy over what was answered, with horizontal lines to compare."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axis = figure.subplots()
    axis.plot(answered, values, marker="o", markersize=3, label="student")
    for number, (label, value) in enumerate(lines.items(), start=1):
        axis.axhline(value, linestyle="--", linewidth=1, color=f"C{number}", label=label)
    axis.set(xlabel=f"{what} answered", ylabel="accuracy on held-out images", ylim=(0, 1))
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.legend(fontsize=8, loc="lower right")
    axis.grid(alpha=0.3)
    _save(figure, path)


def _save(figure, path: Path) -> None:
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise StorageError(f"Cannot write {path}: {error.strerror or error}.") from None
