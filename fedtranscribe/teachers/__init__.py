"""Training teachers on disjoint shards, and asking them."""

from fedtranscribe.teachers.ensemble import Ensemble
from fedtranscribe.teachers.manifest import Manifest, load_manifest
from fedtranscribe.teachers.teachers import Teachers, ensemble_accuracy
from fedtranscribe.teachers.training import train_teachers

__all__ = [
    "Ensemble",
    "Manifest",
    "Teachers",
    "ensemble_accuracy",
    "load_manifest",
    "train_teachers",
]
