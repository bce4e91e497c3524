"""Canaries: made-up records, each planted by a fair coin of its own, that a student may betray.

Who planted them guesses afterwards, from the released student alone, which coins came up heads. One
run suffices for a lower bound on ε with a stated confidence (Steinke, Nasr and Jagielski 2023).
"""

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtranscribe.config.evaluation import CanaryKind
from fedtranscribe.data import DataSplit, ImageSet
from fedtranscribe.data.imageset import expect_single_labels
from fedtranscribe.data.npz import keys_of, read_arrays
from fedtranscribe.errors import ConfigError, InvalidDataError
from fedtranscribe.evaluation.audit_bounds import best_guesses, fair_coins
from fedtranscribe.evaluation.findings import Claim, Finding, proved
from fedtranscribe.evaluation.membership import clue_of, familiarity
from fedtranscribe.files import write_atomically
from fedtranscribe.models import Classifier
from fedtranscribe.models.diffusion import Synthesizer
from fedtranscribe.noise.sources import BitSource

PLANTED = "planted.npz"
CANARIES = "canaries.npz"
_ID = "canary-{}"
_FIELDS = {"images", "labels", "used"}


@dataclass(frozen=True, eq=False)
class Canaries:
    """All canaries, those left out included, and the coins: SECRET until the student is released.

    Attributes:
        images: uint8 [m, ch, s, s].
        labels: int64 [m].
        used: which were planted, bool [m].
    """

    images: Tensor
    labels: Tensor
    used: NDArray[np.bool_]

    def save(self, path: Path) -> None:
        """Write as `.npz`."""
        _write(path, images=self.images.numpy(), labels=self.labels.numpy(), used=self.used)

    @classmethod
    def load(cls, path: Path) -> "Canaries":
        """Read what `save` wrote."""
        arrays = read_arrays(path, _FIELDS)
        if (
            set(keys_of(path)) != _FIELDS
            or len({value.shape[:1] for value in arrays.values()}) != 1
        ):
            raise InvalidDataError(
                f"Expected {path} to hold {', '.join(sorted(_FIELDS))} of one length; give the "
                f"{CANARIES} that `fedtranscribe plant` wrote."
            )
        images, labels = (torch.from_numpy(arrays[key]) for key in ("images", "labels"))
        return cls(images.to(torch.uint8), labels.long(), arrays["used"].astype(bool))


def plant(
    records: ImageSet,
    count: int,
    kind: CanaryKind = CanaryKind.PATTERN,
    *,
    seed: int = 0,
    coins: BitSource | None = None,
) -> tuple[ImageSet, Canaries]:
    """Add about half of so many canaries to private records; a fair coin decides on each.

    The others keep their ids, and positional ones become lasting: a canary that is left out moves
    nobody, so that add-remove is the adjacency that is tested.

    Args:
        records: the private ones.
        count: canaries in all.
        kind: what they look like.
        seed: public randomness of images and labels.
        coins: OS entropy unless a test seeds it.
    """
    if count < 2:
        raise ConfigError(f"Expected canaries={count} >= 2.")
    expect_single_labels(records.multilabel, "canaries")
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, records.classes, (count,), generator=rng)
    if kind is CanaryKind.PATTERN:
        shape = (count, *records.images.shape[1:])
        images = torch.randint(0, 256, shape, generator=rng).to(torch.uint8)
    else:
        rows = torch.randint(0, len(records), (count,), generator=rng)
        wrong = torch.randint(1, records.classes, (count,), generator=rng)
        images, labels = records.images[rows], (records.labels[rows] + wrong) % records.classes
    used = fair_coins(count, coins)
    present = torch.from_numpy(np.flatnonzero(used))
    planted = ImageSet(
        records.name,
        records.data_id,
        torch.cat([records.images, images[present]]),
        torch.cat([records.labels, labels[present]]),
        records.classes,
        (*records.ids, *(_ID.format(i) for i in present.tolist())),
        records.folder,
        records.class_names,
        ids_made=records.ids_by,
    )
    return planted, Canaries(images, labels, used)


def save_planted(split: DataSplit, planted: ImageSet, canaries: Canaries, folder: Path) -> None:
    """Write a set that `--data` takes, and beside it the secret.

    The name that the ledger knows stays: canaries are trained on together with the same records.

    Args:
        split: gives the held-out part, which stays as it was.
        planted: to train on.
        canaries: the secret.
        folder: receives both files.
    """
    names = planted.class_names
    _write(
        folder / PLANTED,
        images=planted.images.numpy(),
        labels=planted.labels.numpy(),
        ids=np.array(planted.ids),
        classes=np.array(planted.classes),
        data_id=np.array(planted.data_id),
        ids_made=np.array(planted.ids_made),
        test_images=split.test.images.numpy(),
        test_labels=split.test.labels.numpy(),
        **({} if names is None else {"class_names": np.array(names)}),
    )
    canaries.save(folder / CANARIES)


def check_planted(canaries: Canaries, records: ImageSet) -> None:
    """Refuse canaries of another set: every guess would be luck, and the audit would be blind."""
    there = {record for record in records.ids if record.startswith("canary-")}
    declared = {_ID.format(i) for i in np.flatnonzero(canaries.used).tolist()}
    if there != declared:
        raise ConfigError(
            f"Expected the {len(declared)} canaries of this file in {records.name!r}, found "
            f"{len(there & declared)} of them and {len(there - declared)} others; give the "
            "file that was written with the data of the run."
        )


def by_canaries(
    model: Classifier | Synthesizer, canaries: Canaries, claim: Claim, confidence: float
) -> Finding:
    """Guess from what was released which canaries were planted.

    Args:
        model: the student, or the diffusion model.
        canaries: with their coins.
        claim: add-remove, or what comes next to it.
        confidence: of the bound.
    """
    scores = familiarity(model, canaries.images, canaries.labels)
    lower, guesses, right = best_guesses(scores, canaries.used, claim.delta, confidence)
    words = (
        f"A fair coin decided for each of {len(scores):,} canaries whether it was planted. "
        f"{clue_of(model).capitalize()} guessed {right:,} of {guesses:,} right, {proved(lower)}."
        if guesses
        else f"Guessing which of {len(scores):,} canaries had been planted, from "
        f"{clue_of(model)}, did no better than luck: nothing is proved."
    )
    figures = {"canaries": len(scores), "guesses": guesses, "right": right}
    return Finding("canaries", claim, lower, confidence, words, figures)


def _write(path: Path, **arrays: NDArray[np.generic]) -> None:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # pyright: ignore[reportArgumentType]
    write_atomically(path, buffer.getvalue())
