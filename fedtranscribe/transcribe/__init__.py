"""From settings to a result on one machine: plan, run folder, rounds, figures."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedtranscribe.transcribe.preparation import Prepared, prepare
    from fedtranscribe.transcribe.transcription import transcribe

__all__ = ["Prepared", "prepare", "transcribe"]

# Rounds and holders need run folders from this room: they must not find themselves half imported.
_HOMES = {"Prepared": "preparation", "prepare": "preparation", "transcribe": "transcription"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
