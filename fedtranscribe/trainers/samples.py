"""Images from a finished run of `synthesize`, and such a run as a source of queries."""

import csv
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedtranscribe.config import PUBLIC_SHAPES
from fedtranscribe.data import DrawnFrom, ImageSet, NamedData, is_benchmark
from fedtranscribe.data.archives import DRAWN_FROM, DRAWN_FROM_DATA
from fedtranscribe.errors import ConfigError, StorageError
from fedtranscribe.files import expect_free, read_json_lines, unwritable, write_atomically
from fedtranscribe.models.diffusion import Progress, Synthesizer, load_synthesizer
from fedtranscribe.privacy.release_plan import MechanismRelease
from fedtranscribe.results.result import Result
from fedtranscribe.results.run_directory import DENOISER

ALL, UNIFORM = "all", "uniform"


def open_run(path: Path, device: torch.device) -> tuple[Synthesizer, Result]:
    """The network of a finished run of `synthesize`, and the run's result."""
    result = Result.read(path)
    if result.diffusion is None:
        raise StorageError(
            f"The run in {path} has no diffusion model; give the folder of a run of "
            "`fedtranscribe synthesize`."
        )
    return load_synthesizer(path / DENOISER).to(device), result


def drawn_from(result: Result) -> DrawnFrom:
    """Where samples of a run come from, as their archive states it."""
    return DrawnFrom(result.run, trained_on(result))


def trained_on(result: Result) -> str | None:
    """Which data a run was trained on; None where its folder does not say.

    Folders of earlier versions lack the id. There a benchmark's name is its id, and a path is none.
    What a server fetched from a holder names the server's test images instead of the records.
    """
    if result.says_data_id:
        return result.data_id
    return result.data if result.data is not None and is_benchmark(result.data) else None


def chosen_labels(words: str, num: int, classes: int, seed: int) -> Tensor:
    """int64 [num] labels that a user means; all 0 where images come without labels.

    Args:
        words: `all` for every class alike, `uniform` for classes by lot, or classes by commas.
        num: how many.
        classes: that can be asked for; 0 where images come without labels.
        seed: of the lot.
    """
    if num < 1:
        raise ConfigError(f"Expected num={num} >= 1.")
    if classes == 0:
        if words not in (ALL, UNIFORM):
            raise ConfigError(
                f"Expected labels={words!r} to be left out: the network learned no labels."
            )
        return torch.zeros(num, dtype=torch.int64)
    if words == UNIFORM:
        # Apart from the stream that images are drawn from.
        rng = torch.Generator().manual_seed(seed ^ 0x1ABE1)
        return torch.randint(0, classes, (num,), generator=rng)
    picked = list(range(classes)) if words == ALL else _parsed(words, classes)
    return torch.tensor(picked)[torch.arange(num) % len(picked)]


def _parsed(words: str, classes: int) -> list[int]:
    try:
        picked = [int(word) for word in words.split(",")]
    except ValueError:
        picked = []
    if not picked or not all(0 <= label < classes for label in picked):
        raise ConfigError(
            f"Expected labels={words!r} as {ALL}, {UNIFORM}, or classes 0..{classes - 1} by commas."
        )
    return picked


# ---------------------------------------------------------------- files


def expect_writable(out: Path) -> None:
    """Fail before any work where samples could not be written."""
    expect_free(out)
    if out.suffix != ".npz" and out.suffix:
        raise ConfigError(f"Expected --out {out} as a file .npz, or a folder without an ending.")
    if out.suffix != ".npz":
        _import_pillow()
    folder = out.parent if out.suffix == ".npz" else out
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from None
    if not os.access(folder, os.W_OK):
        raise StorageError(f"Cannot write {folder}: it is read-only; choose another --out.")


def write_samples(
    images: Tensor,
    labels: Tensor | None,
    out: Path,
    classes: int,
    names: Sequence[str] | None = None,
    drawn_from: DrawnFrom | None = None,
) -> None:
    """Write an archive that `--data` reads, or a folder of PNG with one sub-folder per label.

    Where an image may have several labels, a folder has a table of them instead, `labels.csv`.

    Args:
        images: uint8 [n, ch, s, s].
        labels: int64 [n], or [n, classes] of 0 and 1; None where the network learned none, and
            there are no sub-folders then.
        out: a path that ends in `.npz`, or a folder.
        classes: that the network knows, whether or not they were drawn.
        names: what they are called, for the archive.
        drawn_from: the run, which an archive names, so that nobody takes samples of the private
            records for public images that cost nothing. A folder of PNG cannot name it.
    """
    if out.suffix == ".npz":
        _write_archive(images, labels, out, classes, names, drawn_from)
    else:
        _write_pictures(images, labels, out, classes, names)


def _write_archive(
    images: Tensor,
    labels: Tensor | None,
    out: Path,
    classes: int,
    names: Sequence[str] | None,
    drawn_from: DrawnFrom | None,
) -> None:
    arrays = {"images": images.numpy()}
    if labels is not None:
        arrays |= {"labels": labels.numpy(), "classes": np.array(classes)}
    if labels is not None and names is not None:
        arrays["class_names"] = np.array(names)
    if drawn_from is not None:
        arrays[DRAWN_FROM] = np.array(drawn_from.run)
        if drawn_from.data_id is not None:
            arrays[DRAWN_FROM_DATA] = np.array(drawn_from.data_id)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    write_atomically(out, buffer.getvalue())


def _write_pictures(
    images: Tensor,
    labels: Tensor | None,
    out: Path,
    classes: int,
    names: Sequence[str] | None,
) -> None:
    image_module = _import_pillow()
    width = len(str(len(images) - 1))
    # As wide as the largest class, so that the alphabet sorts them as numbers; and all of them,
    # because sub-folders are the classes of whoever reads them.
    digits = len(str(classes - 1))
    together = labels is None or labels.ndim == 2
    folders = [out] if together else [out / f"{label:0{digits}}" for label in range(classes)]
    try:
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        for number, image in enumerate(images):
            folder = folders[0 if labels is None or together else int(labels[number])]
            pixels = image.permute(1, 2, 0).numpy().squeeze()
            image_module.fromarray(pixels).save(folder / f"{number:0{width}}.png")
        if labels is not None and together:
            rows = [[f"{number:0{width}}.png", *row] for number, row in enumerate(labels.tolist())]
            with (out / "labels.csv").open("w", encoding="utf-8", newline="") as stream:
                table = csv.writer(stream)
                table.writerow(["path", *(names or map(str, range(classes)))])
                table.writerows(rows)
    except OSError as error:
        raise unwritable(out, error) from None


def _import_pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise ConfigError(
            "A folder of PNG needs Pillow: pip install 'fedtranscribe[vision]'; or give an --out "
            "that ends in .npz."
        ) from None
    return Image


@dataclass(frozen=True)
class ExistingGenerator:
    """A private generator that was trained before, as the source of queries."""

    run: str  # its name in the ledger of its data
    # of the data that it was trained on; None where the run's folder does not say
    data_id: str | None
    samples: ImageSet  # drawn from it; labelled by the classes that they were drawn for
    releases: tuple[MechanismRelease, ...]  # what its training has cost
    # the public images that it started from; None for none, and for drawn shapes
    public: NamedData | None = None


def open_generator(
    path: Path, num: int, device: torch.device, progress: Progress = lambda done, total: None
) -> ExistingGenerator:
    """Labelled samples of a run, every class alike, and what the run has cost.

    Samples are kept beside the run and found again, because drawing them takes minutes.
    """
    model, result = open_run(path, device)
    if not result.guarantee.private:
        why = "; ".join(result.guarantee.caveats) or "no noise"
        raise StorageError(
            f"The run in {path} is not private ({why}): a student that learns from it "
            "could not be either; train one with noise."
        )
    file = path / f"samples-{num}.npz"
    if not file.exists():
        labels = chosen_labels(ALL, num, model.classes, seed=0)
        drawn = model.draw(labels, 0, progress)
        write_samples(drawn, labels, file, model.classes, drawn_from=drawn_from(result))
    with np.load(file) as arrays:
        images, labels = (torch.from_numpy(arrays[name]) for name in ("images", "labels"))
    # An unconditional network gives images without labels; one nominal class stands for none.
    classes = max(2, model.classes)
    pool = ImageSet(f"samples of {result.run}", result.run, images, labels, classes)
    return ExistingGenerator(
        result.run, trained_on(result), pool, _releases(path), _public(path, result)
    )


def _public(path: Path, result: Result) -> NamedData | None:
    """The public images that a run started from; None for none, and for drawn shapes."""
    name = result.public_data
    if name is None or name == PUBLIC_SHAPES:
        return None
    data_id = result.public_data_id or (name if is_benchmark(name) else None)
    if data_id is None:
        raise StorageError(
            f"The run in {path} started from public_data={name!r} and does not say which data id "
            "they have: they may be the private records. Train it again."
        )
    return NamedData(name, data_id)


def _releases(path: Path) -> tuple[MechanismRelease, ...]:
    events = path / "events.jsonl"
    try:
        lines = read_json_lines(events)
        return tuple(MechanismRelease.from_json(line.get("release", line)) for line in lines)
    except (OSError, ValueError, KeyError, AttributeError):
        raise StorageError(f"{events} is absent or damaged; it says what the run cost.") from None
