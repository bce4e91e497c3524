"""Held-out parts for sets that come without one."""

import torch

from fedtranscribe.data.imageset import DataSplit, ImageSet
from fedtranscribe.data.shards import held_out
from fedtranscribe.errors import InvalidDataError


def split_by_id(whole: ImageSet) -> DataSplit:
    """Hold out one record in five by a fixed, public hash of its id.

    Raises:
        InvalidDataError: so few records that one of the two parts would be empty.
    """
    tested = held_out(whole.ids)
    if tested.all() or not tested.any():
        records = len(set(whole.ids))
        alone = f", since all {len(whole)} images share one id" if records == 1 < len(whole) else ""
        raise InvalidDataError(
            f"Expected more than {records} record{'s' * (records > 1)} in {whole.name!r} to hold "
            f"out one in five{alone}; pass a separate test part, or correct the ids."
        )
    rows = torch.arange(len(whole))
    mask = torch.from_numpy(tested)
    return DataSplit(whole.subset(rows[~mask]), whole.subset(rows[mask]))


def every_fifth_held_out(whole: ImageSet) -> DataSplit:
    """Rows 0, 5, 10, … to test on, the others to train on; for frozen, packaged files only."""
    rows = torch.arange(len(whole))
    return DataSplit(whole.subset(rows[rows % 5 != 0]), whole.subset(rows[rows % 5 == 0]))
