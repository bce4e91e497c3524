"""Classifiers, the generator, and their weights on disk."""

from fedtranscribe.models.classifier import (
    Classifier,
    InputAdapter,
    fixed_randomness,
    is_small,
    pick_device,
    xavier_,
)
from fedtranscribe.models.generator import Generator
from fedtranscribe.models.network_files import load_network, save_network
from fedtranscribe.models.registry import available, build
from fedtranscribe.models.weights import load_state, read_metadata, restore, save

__all__ = [
    "Classifier",
    "Generator",
    "InputAdapter",
    "available",
    "build",
    "fixed_randomness",
    "is_small",
    "load_network",
    "load_state",
    "pick_device",
    "read_metadata",
    "restore",
    "save",
    "save_network",
    "xavier_",
]
