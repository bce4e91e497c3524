"""Data that a function of Python was given: in memory, or by name or path like the command line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtranscribe.catalogue import MEMORY
from fedtranscribe.config import OwnData
from fedtranscribe.data import DataSplit, from_memory
from fedtranscribe.data.memory import Ids, Images, Labels
from fedtranscribe.errors import ConfigError


@dataclass(frozen=True, eq=False)
class GivenData:
    """The private data of a run, as keyword arguments state them; see `transcribe`."""

    images: Images | None
    labels: Labels | None
    data: str | Path | None
    data_id: str | None
    classes: int | Sequence[str] | None
    class_names: Sequence[str] | None
    ids: Ids | Path | None
    test: Images | tuple[Images, Labels] | None

    @property
    def settings(self) -> dict[str, Any]:
        """What the run's settings say of them: public facts only.

        Raises:
            ConfigError: something is missing, or does not belong to such data.
        """
        said: dict[str, Any] = {}
        if (classes := self._classes()) is not None:
            said["classes"] = classes
        if self.images is not None:
            return {"data": f"{MEMORY}{self._data_id()}", **said}
        for name in ("labels", "data_id", "test"):
            if getattr(self, name) is not None:
                raise ConfigError(
                    f"Expected images with {name}: both belong to data in memory. For data with a "
                    "name or a path pass data alone."
                )
        if self.data is not None:
            said["data"] = str(self.data)
        if self.ids is not None:
            said["ids"] = self.ids
        return said

    def split(self, own: OwnData) -> DataSplit | None:
        """Train and test part of data in memory; None for data that have a name or a path.

        Args:
            own: the facts that the run's settings state.

        Raises:
            InvalidDataError, ConfigError: as `from_memory`.
        """
        if self.images is None:
            return None
        if isinstance(self.ids, Path):
            raise ConfigError("Expected ids as one id per image; a file is for an image folder.")
        return from_memory(
            self.images, self.labels, self._data_id(), ids=self.ids, test=self.test, own=own
        )

    def _data_id(self) -> str:
        if self.data is not None:
            raise ConfigError(f"Expected images or data={str(self.data)!r}, not both.")
        if isinstance(self.images, str | Path):
            raise ConfigError(f"Expected data={str(self.images)!r}: a name or a path is no array.")
        if not isinstance(self.data_id, str):
            raise ConfigError(
                "Expected data_id, a lasting name of these records such as "
                "data_id='chest-2024'. All runs on them share the ledger that is kept under it."
            )
        return self.data_id

    def _classes(self) -> int | tuple[str, ...] | None:
        named = self.class_names if self.class_names is not None else self.classes
        if named is None or isinstance(named, int):
            return named
        names = (named,) if isinstance(named, str) else tuple(map(str, named))
        count = self.classes if isinstance(self.classes, int) else len(names)
        if len(names) != count:
            raise ConfigError(f"Expected class_names to name classes={count}, got {len(names)}.")
        return names


def given_settings(settings: Mapping[str, Any], **named: Any) -> dict[str, Any]:
    """Settings that were said; a keyword argument that is None was left out."""
    return {**settings, **{name: value for name, value in named.items() if value is not None}}
