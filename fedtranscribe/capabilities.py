"""What a holder states to a server before any query."""

from dataclasses import dataclass

from fedtranscribe.data import ImageSet
from fedtranscribe.models.backbones import expect_told
from fedtranscribe.models.headers import MOST_CHANNELS, MOST_CLASSES, MOST_SIDE
from fedtranscribe.names import expect_name
from fedtranscribe.privacy.units import NoiseMode
from fedtranscribe.query import Kind

MOST_SHARDS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is public about a holder's private side.

    Attributes:
        classes, channels, size: of its records' images.
        shards: p, its teachers on disjoint records; 0 for a holder without teachers.
        positional_ids: whether its records are known by position only (then no add-remove).
        records: how many it declares; 0 where it does not.
        features: public networks that sums may be taken on, each with its weights' digest.
        shards_declared_by: who declares that its teachers, trained elsewhere, learned from disjoint
            shards; empty where fedtranscribe trained them.
        weights_declared_by: who declares that the weights its teachers began with never saw the
            private records; empty where there were none.
    """

    classes: int
    channels: int
    size: int
    shards: int
    positional_ids: bool
    records: int = 0
    features: tuple[str, ...] = ()
    shards_declared_by: str = ""
    weights_declared_by: str = ""

    def __post_init__(self) -> None:
        """Refuse what no holder's private side can be.

        Raises:
            ConfigError, ValueError: names the value.
        """
        for name in filter(None, (self.shards_declared_by, self.weights_declared_by)):
            expect_name("name", name)
        for name in self.features:
            expect_told(name)
        counts = self.classes, self.channels, self.size, self.shards
        most = MOST_CLASSES, MOST_CHANNELS, MOST_SIDE, MOST_SHARDS
        if any(count > limit for count, limit in zip(counts, most, strict=True)):
            raise ValueError(f"classes, channels, size, shards = {counts} are more than {most}")
        # A holder that only gives sums or trains has no shards.
        if min(counts[:3]) < 1 or min(self.shards, self.records) < 0 or self.classes < 2:
            raise ValueError(f"classes, channels, size, shards = {counts} are out of range")

    @classmethod
    def of(cls, records: ImageSet) -> "Facts":
        """What is public about records of which there are no teachers, but not how many."""
        return cls(
            classes=records.classes,
            channels=records.channels,
            size=records.size,
            shards=0,
            positional_ids=records.positional,
        )


@dataclass(frozen=True, kw_only=True)
class Capabilities(Facts):
    """What a holder states about itself: those facts and its policy, never an accuracy.

    Attributes:
        name: how the server calls the holder in logs and files.
        kinds: what it answers.
        noise: the least protective mode it accepts.
        rows_per_message, rows_per_run: its limits.
        dropouts, colluders: its terms for masked sums.
        masks: whether it has a key and a roster for them.
        trainers: private trainings that it carries out, by method.
    """

    name: str
    kinds: tuple[Kind, ...]
    noise: NoiseMode
    rows_per_message: int
    rows_per_run: int
    dropouts: int = 0
    colluders: int = 0
    masks: bool = False
    trainers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what no holder can be; a server reads these off the wire.

        Raises:
            ConfigError, ValueError: names the value.
        """
        super().__post_init__()
        for name in (self.name, *self.trainers):
            expect_name("name", name)
