"""Where the ledger of a data set lies."""

from pathlib import Path

from fedtranscribe.data.imageset import ImageSet
from fedtranscribe.data.registry import is_published
from fedtranscribe.privacy.ledger_place import LedgerPlace


def ledger_of(images: ImageSet, data: str, named: Path | None) -> LedgerPlace:
    """Where the ledger of a run's data is, or will be.

    Args:
        images: the private records.
        data: as the user named them.
        named: the ledger that the user named.

    Raises:
        SecondLedgerError, StorageError: as `LedgerPlace.find`.
    """
    return LedgerPlace.find(images.data_id, images.folder, named, published=is_published(data))
