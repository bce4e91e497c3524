"""A simulated holder as a Flower node's ClientApp opens it."""

from functools import lru_cache
from pathlib import Path

import torch
from flwr.app import Context

from fedtranscribe.config import FederationSettings
from fedtranscribe.data import ImageSet
from fedtranscribe.errors import ConfigError
from fedtranscribe.flower.apps import settings_from
from fedtranscribe.flower.run_config import run_folder
from fedtranscribe.holder.node import Node
from fedtranscribe.runs.simulation import (
    holder_name,
    holders_folder,
    load_data,
    open_holder,
    partitions,
)


def open_simulated(context: Context, number: int, name: str) -> Node:
    """The holder of that number, as the ClientApp of a simulation opens it."""
    settings = settings_from(context.run_config)
    folder = run_folder(settings, name, context.run_id)
    if settings.device == "auto" and not torch.cuda.is_available():
        # Ray runs a worker per core.
        torch.set_num_threads(1)
    return _cached_holder(settings.model_dump_json(), number, folder)


@lru_cache(maxsize=8)
def _cached_holder(settings_json: str, number: int, folder: Path) -> Node:
    # A worker process plays a holder for many messages.
    settings = FederationSettings.model_validate_json(settings_json)
    part = _cached_part(settings_json, number)
    return open_holder(settings, part, number, holders_folder(folder) / holder_name(number))


def simulated_part(context: Context, number: int) -> tuple[FederationSettings, ImageSet]:
    """Settings of a simulation and the records of the holder of that number."""
    settings = settings_from(context.run_config)
    return settings, _cached_part(settings.model_dump_json(), number)


@lru_cache(maxsize=8)
def _cached_part(settings_json: str, number: int) -> ImageSet:
    settings = FederationSettings.model_validate_json(settings_json)
    if not 0 <= number < settings.holders:
        raise ConfigError(f"Expected a holder's number={number} within 0..{settings.holders - 1}.")
    return partitions(settings, load_data(settings).train)[number]
