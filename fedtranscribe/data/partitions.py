"""Who holds which records in a simulation, and which teacher sees which record."""

import re

import numpy as np
import torch

from fedtranscribe.data.imageset import ImageSet, groups_of
from fedtranscribe.errors import ConfigError

_PART = re.compile(r"(.+) holder-\d+")


def holder_name(number: int) -> str:
    """How a simulated holder is called in logs, files and tables."""
    return f"holder-{number}"


def part_id(data_id: str, number: int) -> str:
    """The data id of a simulated holder's part of a set."""
    return f"{data_id} {holder_name(number)}"


def whole_id(data_id: str) -> str:
    """The data id of the set that an id belongs to: its own, unless it is that of a part."""
    part = _PART.fullmatch(data_id)
    return data_id if part is None else part[1]


def dirichlet_partition(
    images: ImageSet, holders: int, alpha: float, seed: int, least: int = 1
) -> list[ImageSet]:
    """Split records by label so that every holder has its own mixture of classes.

    For each class the holders' shares are drawn from Dirichlet(alpha, …, alpha), as in Hsu et al.
    2019: a small alpha gives every class to few holders, a large one gives all the same mixture.
    All images of one id go to one holder, by the label of the first of them: a record that is at
    two holders would be charged by neither for the other.

    Args:
        images: all records.
        holders: how many parts.
        alpha: concentration, above 0.
        seed: public; the same seed gives the same parts.
        least: drawn again until every part has so many records.
    """
    if not (alpha > 0 and np.isfinite(alpha)):
        raise ConfigError(f"Expected alpha={alpha} > 0 and finite.")
    numbers: dict[str, int] = {}
    record = np.array([numbers.setdefault(i, len(numbers)) for i in images.ids])
    if not 1 <= holders * least <= len(numbers):
        raise ConfigError(
            f"Expected holders={holders} with {least} records each to fit into {len(numbers)} "
            "records; ask for fewer holders or shards."
        )
    rng = np.random.default_rng(seed)
    labels = groups_of(images.labels).numpy()[np.unique(record, return_index=True)[1]]
    for _ in range(_ATTEMPTS):
        owner = np.empty(len(labels), dtype=np.int64)
        for label in range(images.facts.groups):
            rows = rng.permutation(np.flatnonzero(labels == label))
            shares = rng.dirichlet(np.full(holders, alpha))
            cuts = np.rint(shares.cumsum()[:-1] * len(rows)).astype(int)
            for holder, part in enumerate(np.split(rows, cuts)):
                owner[part] = holder
        if np.bincount(owner, minlength=holders).min() >= least:
            return [
                images.subset(torch.from_numpy(np.flatnonzero(owner[record] == holder)))
                for holder in range(holders)
            ]
    raise ConfigError(
        f"No draw of {_ATTEMPTS} gave each of {holders} holders {least} records at alpha={alpha}; "
        "raise alpha, or ask for fewer holders or shards."
    )


_ATTEMPTS = 100
