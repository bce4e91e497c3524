"""A ClientApp that answers for simulated holders in its own process."""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedtranscribe.config import FederationSettings
from fedtranscribe.data import ImageSet
from fedtranscribe.errors import ConfigError
from fedtranscribe.flower.apps import settings_from
from fedtranscribe.flower.records import message_of, record_of
from fedtranscribe.flower.server_apps import run_folder
from fedtranscribe.holder.node import Node, reply_to
from fedtranscribe.questions import messages as wire
from fedtranscribe.runs.simulation import (
    holder_name,
    holders_folder,
    load_data,
    open_holder,
    partitions,
)

_REQUESTER = "flower"


def make_client_app(open_node: Callable[[Context, int], Node]) -> ClientApp:
    """A ClientApp that answers for the holders that `open_node` opens."""
    app = ClientApp()

    def handler(message_type: str) -> Callable[[Message, Context], Message]:
        def handle(message: Message, context: Context) -> Message:
            reply = reply_to(
                message_of(message.content),
                message_type,
                lambda number: open_node(context, number),
                _REQUESTER,
            )
            return Message(record_of(reply), reply_to=message)

        return handle

    for message_type in wire.MESSAGES:
        app.query(message_type.removeprefix("query."))(handler(message_type))
    return app


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
