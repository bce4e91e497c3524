"""What is public about a holder's private side, before it is asked anything."""

import re
from dataclasses import dataclass

from fedtranscribe.config.run import MOST_CLASSES
from fedtranscribe.errors import ConfigError
from fedtranscribe.text import expect_name

MOST_CHANNELS = 4_096
MOST_SIDE = 4_096
"""Beyond these no file and no manifest describes images that anybody has."""
MOST_SHARDS = 1_000_000

_PINNED = re.compile(r"(?:timm/)?[A-Za-z0-9_.-]{1,80}@[0-9a-f]{64}")


def expect_pinned(name: str) -> None:
    """Refuse what cannot be a `Backbone.pinned_name`; servers read these off the wire."""
    if _PINNED.fullmatch(name) is None:
        raise ConfigError(f"Expected features as NETWORK@SHA-256, got {name[:200]!r}.")


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
        multilabel: whether an image may have several of the classes, or none.
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
    multilabel: bool = False

    @property
    def groups(self) -> int:
        """Kinds of images that a generator tells apart; see `groups_of`."""
        return self.classes + self.multilabel

    def __post_init__(self) -> None:
        """Refuse what no holder's private side can be."""
        for name in filter(None, (self.shards_declared_by, self.weights_declared_by)):
            expect_name("name", name)
        for name in self.features:
            expect_pinned(name)
        counts = self.classes, self.channels, self.size, self.shards
        most = MOST_CLASSES, MOST_CHANNELS, MOST_SIDE, MOST_SHARDS
        if any(count > limit for count, limit in zip(counts, most, strict=True)):
            raise ValueError(f"classes, channels, size, shards = {counts} are more than {most}")
        # A holder that only gives sums or trains has no shards.
        if min(counts[:3]) < 1 or min(self.shards, self.records) < 0 or self.classes < 2:
            raise ValueError(f"classes, channels, size, shards = {counts} are out of range")
