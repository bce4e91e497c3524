"""Private and public image sets, their checks, and who sees which record."""

from fedtranscribe.data.imageset import DataSplit, DrawnFrom, ImageSet
from fedtranscribe.data.memory import from_memory
from fedtranscribe.data.overlap import NamedData, expect_public, load_public, share_records
from fedtranscribe.data.partitions import dirichlet_partition
from fedtranscribe.data.registry import (
    available,
    folder_of,
    has_own_ids,
    is_benchmark,
    is_published,
    load,
)
from fedtranscribe.data.shapes import augment, draw_shapes
from fedtranscribe.data.shards import assign_shards, held_out

__all__ = [
    "DataSplit",
    "DrawnFrom",
    "ImageSet",
    "NamedData",
    "assign_shards",
    "augment",
    "available",
    "dirichlet_partition",
    "draw_shapes",
    "expect_public",
    "folder_of",
    "from_memory",
    "has_own_ids",
    "held_out",
    "is_benchmark",
    "is_published",
    "load",
    "load_public",
    "share_records",
]
