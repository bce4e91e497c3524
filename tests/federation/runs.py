"""Runs of the tiny federation, the same for every transport."""

from pathlib import Path
from typing import Any

from fedtranscribe.config import FederationSettings
from fedtranscribe.data import DataSplit
from fedtranscribe.holder.node import Node
from fedtranscribe.noise.sources import SeededNoise
from fedtranscribe.results.run_directory import RunDirectory
from fedtranscribe.rounds.transport import Transport
from fedtranscribe.runs.federate import federate
from fedtranscribe.runs.learning import HeldOut


def start(path: Path, settings: FederationSettings) -> RunDirectory:
    run = RunDirectory.create(path, settings)
    run.run_id = "run-fixed"  # seeded noise depends on it; two runs are compared
    return run


def go(
    settings: FederationSettings,
    transport: Transport,
    run: RunDirectory,
    split: DataSplit | None = None,
    **options: Any,
) -> dict[str, Any]:
    return federate(
        settings,
        transport,
        run,
        expected=settings.holders,
        test=HeldOut(split.test, public=True) if split else None,
        **{"noise": SeededNoise(1), **options},
    ).to_json()


def ledger_file(node: Node) -> Path:
    """Where a simulated holder's ledger lies."""
    return node._open_ledger.args[0]  # type: ignore[attr-defined]
