"""Training teachers on disjoint shards, and asking them."""

from fedtranscribe.teachers.ensemble import Teachers
from fedtranscribe.teachers.manifest import Manifest, load_manifest
from fedtranscribe.teachers.training import train_teachers

__all__ = ["Manifest", "Teachers", "load_manifest", "train_teachers"]
