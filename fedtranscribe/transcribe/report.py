"""Results as figures: a grid of synthetic images and the accuracy curve."""

from pathlib import Path

from torch import Tensor

from fedtranscribe.errors import StorageError

_COLUMNS = 10


def figures_available() -> bool:
    """Whether the plots extra is installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def draw_images(images: Tensor, labels: Tensor, path: Path) -> None:
    """A grid of synthetic images, each under the class that the student gives it.

    Args:
        images: uint8 [n, ch, s, s].
        labels: int64 [n], the student's.
        path: PNG to write.
    """
    figure, axes = _subplots((len(images) + _COLUMNS - 1) // _COLUMNS, _COLUMNS)
    for axis in axes.flat:
        axis.axis("off")
    for axis, image, label in zip(axes.flat, images, labels.tolist(), strict=False):
        picture = image.permute(1, 2, 0).numpy()
        axis.imshow(picture.squeeze(), cmap="gray", vmin=0, vmax=255)
        axis.set_title(str(label), fontsize=7, pad=1)
    _save(figure, path)


def draw_curve(rows: list[int], values: list[float], lines: dict[str, float], path: Path) -> None:
    """Student accuracy over answered rows, with horizontal lines to compare.

    Args:
        rows: answered rows.
        values: accuracy at each.
        lines: label -> accuracy.
        path: PNG to write.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axis = figure.subplots()
    axis.plot(rows, values, marker="o", markersize=3, label="student")
    for number, (label, value) in enumerate(lines.items(), start=1):
        axis.axhline(value, linestyle="--", linewidth=1, color=f"C{number}", label=label)
    axis.set(xlabel="rows answered", ylabel="accuracy on held-out images", ylim=(0, 1))
    axis.legend(fontsize=8, loc="lower right")
    axis.grid(alpha=0.3)
    _save(figure, path)


def _subplots(rows: int, columns: int):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(columns * 0.6, rows * 0.7), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def _save(figure, path: Path) -> None:
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise StorageError(f"Cannot write {path}: {error.strerror or error}.") from None
