"""A finished run of `synthesize` as the source of a transcription's queries.

Its samples are free to draw; what its training cost stays spent, and a student that learned from
both has cost both.
"""

import json
from pathlib import Path

import numpy as np
import torch

from fedtranscribe.data import ImageSet
from fedtranscribe.errors import StorageError
from fedtranscribe.models.diffusion import Progress
from fedtranscribe.privacy.release_plan import Release
from fedtranscribe.synthesize.samples import ALL, chosen_labels, open_run, write_samples
from fedtranscribe.transcribe.preparation import GivenGenerator


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
        StorageError: there is no finished run, or it has no guarantee.
        ModelError: its network is absent or damaged.
    """
    model, result = open_run(path, device)
    if not result["private"]:
        raise StorageError(
            f"The run in {path} is not private ({'; '.join(result['caveats']) or 'no noise'}): "
            "a student that learns from it could not be either; train one with noise."
        )
    kept = path / f"samples-{num}.npz"
    if not kept.exists():
        labels = chosen_labels(ALL, num, result["classes"], seed=0)
        write_samples(model.draw(labels, 0, progress), labels, kept)
    with np.load(kept) as arrays:
        images, labels = (torch.from_numpy(arrays[name]) for name in ("images", "labels"))
    # An unconditional network gives images without labels; one nominal class stands for none.
    classes = max(2, result["classes"])
    pool = ImageSet(f"samples of {result['run']}", result["run"], images, labels, classes)
    return GivenGenerator(result["run"], result["data"], pool, _releases(path))


def _releases(path: Path) -> tuple[Release, ...]:
    events = path / "events.jsonl"
    try:
        lines = [json.loads(line) for line in events.read_text(encoding="utf-8").splitlines()]
        return tuple(Release.from_json(line.get("release", line)) for line in lines)
    except (OSError, ValueError, KeyError, AttributeError):
        raise StorageError(f"{events} is absent or damaged; it says what the run cost.") from None
