"""Progress of a run to Weights & Biases.

The project is WANDB_PROJECT, or "fedtranscribe"; WANDB_MODE=offline writes files only, which
`wandb sync` sends later. A run that is resumed goes on as the same run, under our run's name.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb

from fedtranscribe.errors import ConfigError
from fedtranscribe.results.allowed import run_and_settings
from fedtranscribe.results.progress import Report, scalars

_PROJECT = "fedtranscribe"


def track(folder: Path) -> Report:
    """A tracker, for the run in a folder."""
    name, settings = run_and_settings(folder)
    try:
        run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or _PROJECT,
            id=name,
            name=name,
            resume="allow",
            config=dict(settings),
            settings=_quiet(),
        )
    except wandb.Error as error:
        raise ConfigError(
            f"tracker=wandb: Weights & Biases refuses the run ({type(error).__name__}); run "
            "`wandb login`, or set WANDB_MODE=offline."
        ) from error
    stages: set[str] = set()

    def report(entry: Mapping[str, Any]) -> None:
        values = scalars(entry)
        for stage in {key.partition("/")[0] for key in values} - stages:
            # A stage counts for itself, while W&B's own step only ever grows.
            run.define_metric(f"{stage}/*", step_metric=f"{stage}/done")
            stages.add(stage)
        done = {f"{key.partition('/')[0]}/done": int(entry["done"]) for key in values}
        if values:
            run.log({**values, **done})

    return report


def _quiet() -> wandb.Settings:
    """Nothing but what we log: the terminal shows figures that are not private."""
    return wandb.Settings(
        console="off",
        disable_code=True,
        disable_git=True,
        disable_job_creation=True,
        save_code=False,
        silent=True,
        x_disable_machine_info=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
        host="",
        program="",
    )
