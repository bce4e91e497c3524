"""Private and public image sets, their checks, and who sees which record."""

from fedtranscribe.data.augment import augment
from fedtranscribe.data.imageset import DataSplit, ImageSet
from fedtranscribe.data.partitions import dirichlet_partition
from fedtranscribe.data.registry import available, is_benchmark, is_published, load, load_first
from fedtranscribe.data.shapes import draw_shapes
from fedtranscribe.data.shards import assign_shards, held_out

__all__ = [
    "DataSplit",
    "ImageSet",
    "assign_shards",
    "augment",
    "available",
    "dirichlet_partition",
    "draw_shapes",
    "held_out",
    "is_benchmark",
    "is_published",
    "load",
    "load_first",
]
