"""A finished run of `synthesize` as the source of a transcription's queries.

Its samples are free to draw; what its training cost stays spent, and a student that learned from
both has cost both.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fedtranscribe.config import PUBLIC_SHAPES
from fedtranscribe.data import ImageSet, NamedData, is_benchmark
from fedtranscribe.errors import StorageError
from fedtranscribe.models.diffusion import Progress
from fedtranscribe.privacy.release_plan import Release
from fedtranscribe.reading import read_json_lines
from fedtranscribe.result import Result
from fedtranscribe.synthesis.samples import (
    ALL,
    chosen_labels,
    drawn_from,
    open_run,
    trained_on,
    write_samples,
)


@dataclass(frozen=True)
class GivenGenerator:
    """A private generator that was trained before, as the source of queries.

    Attributes:
        run: its name in the ledger of its data.
        data_id: of the data that it was trained on; None where the run's folder does not say.
        samples: drawn from it; labelled by the classes that they were drawn for.
        releases: what its training has cost.
        public: the public images that it started from; None for none, and for drawn shapes.
    """

    run: str
    data_id: str | None
    samples: ImageSet
    releases: tuple[Release, ...]
    public: NamedData | None = None


def open_generator(
    path: Path, num: int, device: torch.device, progress: Progress = lambda done, total: None
) -> GivenGenerator:
    """Labelled samples of a run, every class alike, and what the run has cost.

    Samples are kept beside the run and found again, because drawing them takes minutes.

    Args:
        path: folder of the run.
        num: how many samples.
        device: where to draw them.
        progress: called with (images done, images in all).

    Raises:
        StorageError: there is no finished run, it has no guarantee, or its folder is too old to
            say which public images it started from.
        ModelError: its network is absent or damaged.
    """
    model, result = open_run(path, device)
    if not result.guarantee.private:
        why = "; ".join(result.guarantee.caveats) or "no noise"
        raise StorageError(
            f"The run in {path} is not private ({why}): a student that learns from it "
            "could not be either; train one with noise."
        )
    kept = path / f"samples-{num}.npz"
    if not kept.exists():
        labels = chosen_labels(ALL, num, model.classes, seed=0)
        drawn = model.draw(labels, 0, progress)
        write_samples(drawn, labels, kept, model.classes, drawn_from=drawn_from(result))
    with np.load(kept) as arrays:
        images, labels = (torch.from_numpy(arrays[name]) for name in ("images", "labels"))
    # An unconditional network gives images without labels; one nominal class stands for none.
    classes = max(2, model.classes)
    pool = ImageSet(f"samples of {result.run}", result.run, images, labels, classes)
    return GivenGenerator(
        result.run, trained_on(result), pool, _releases(path), _public(path, result)
    )


def _public(path: Path, result: Result) -> NamedData | None:
    """The public images that a run started from; None for none, and for drawn shapes.

    Raises:
        StorageError: the folder is of an earlier version and names a path without an id.
    """
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


def _releases(path: Path) -> tuple[Release, ...]:
    events = path / "events.jsonl"
    try:
        lines = read_json_lines(events)
        return tuple(Release.from_json(line.get("release", line)) for line in lines)
    except (OSError, ValueError, KeyError, AttributeError):
        raise StorageError(f"{events} is absent or damaged; it says what the run cost.") from None
