"""Private images by the record that they belong to."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedtranscribe.errors import ConfigError
from fedtranscribe.mechanisms.draws import Draws


class RecordImages:
    """Private images and labels; all images of one id are one record.

    Args:
        images: float32 [N, c, h, w] in [-1, 1].
        labels: int64 [N].
        ids: one per image; None where every image is a record of its own.

    Raises:
        ConfigError: another number of ids than of images.

    Guarantee:
        Unit: record, which is an id with all of its images. A record is shown by one image for
        each row that asks for it, drawn afresh from the record's own stream, so that its images
        share one coin and one clipped gradient; as an average over time, they count alike. Which
        image was drawn is as secret as the images.
    """

    def __init__(self, images: Tensor, labels: Tensor, ids: Sequence[str] | None = None) -> None:
        if ids is not None and len(ids) != len(images):
            raise ConfigError(f"Expected one id per image, got {len(ids)} for {len(images)}.")
        self._images, self._labels = images, labels
        numbers: dict[str, int] = {}
        record_of = [
            numbers.setdefault(i, len(numbers)) for i in ids or map(str, range(len(images)))
        ]
        records = torch.tensor(record_of)
        # The images of record r: rows first[r] .. first[r] + count[r] of `order`.
        self._order = records.argsort(stable=True)
        self._count = records.bincount()
        self._first = self._count.cumsum(0) - self._count

    def __len__(self) -> int:
        """How many records there are; public."""
        return len(self._count)

    def shown(self, records: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        """An image of each record, and that image's label.

        Args:
            records: int64 [n], each in 0..len - 1.
            draws: n rows of random numbers, each of its record's own stream.

        Returns:
            float32 [n, c, h, w] and int64 [n], on the CPU.
        """
        which = (draws.uniform().cpu().double() * self._count[records]).long()
        rows = self._order[self._first[records] + which]
        return self._images[rows], self._labels[rows]
