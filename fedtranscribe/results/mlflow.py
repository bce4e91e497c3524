"""Progress of a run to MLflow.

Where to: MLFLOW_TRACKING_URI; where it is not set, MLflow's own default, the file `mlflow.db` in
the current folder. The experiment is MLFLOW_EXPERIMENT_NAME, or "fedtranscribe". A run that is
resumed goes on as the same MLflow run, which its tag `fedtranscribe.run` finds.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from fedtranscribe.errors import ConfigError
from fedtranscribe.results.allowed import run_and_settings
from fedtranscribe.results.progress import Report, scalars

_EXPERIMENT = "fedtranscribe"
_TAG = "fedtranscribe.run"


def track(folder: Path) -> Report:
    """A tracker, for the run in a folder."""
    run, settings = run_and_settings(folder)
    try:
        client = MlflowClient()
        found = _found(client, run, settings)
    except MlflowException as error:
        raise ConfigError(
            f"tracker=mlflow: MLflow refuses the run ({error.error_code}); check "
            "MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME."
        ) from error
    status = "RUNNING"

    def report(entry: Mapping[str, Any]) -> None:
        nonlocal status
        for name, value in scalars(entry).items():
            client.log_metric(found, name, value, step=int(entry["done"]))
        now = "FINISHED" if entry["done"] == entry["total"] else "RUNNING"
        if now != status:
            status = now
            if now == "FINISHED":
                client.set_terminated(found)
            else:
                client.update_run(found, status=now)

    return report


def _found(client: MlflowClient, run: str, settings: Mapping[str, str]) -> str:
    """The MLflow run that stands for a run of ours; a new one where there is none."""
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or _EXPERIMENT
    experiment = client.get_experiment_by_name(name)
    number = client.create_experiment(name) if experiment is None else experiment.experiment_id
    known = client.search_runs([number], f"tags.`{_TAG}` = '{run}'", max_results=1)
    if known:
        client.update_run(known[0].info.run_id, status="RUNNING")
        return known[0].info.run_id
    made = client.create_run(number, tags={_TAG: run}, run_name=run).info.run_id
    for key, value in settings.items():
        client.log_param(made, key, value)
    return made
