"""One finished run's figures as a comparison reads them, and one figure's spread over runs."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtranscribe.config import OF_RUNS, Mark, marked
from fedtranscribe.data import is_published
from fedtranscribe.evaluation.evaluate import EVALUATION
from fedtranscribe.reading import read_object
from fedtranscribe.transcribe.rundir import read_result

_METHOD = "dpsd"
_LEVEL = 0.95


@dataclass(frozen=True)
class ComparedRun:
    """One run's figures.

    Attributes:
        path: its folder.
        name: of the run.
        method: dpsd, feddpsd, fedavg, feddf or dense.
        data: name of the data.
        privacy: data, label or vote.
        unit: record or holder.
        seed: its public one.
        epsilon: sound; None where there is no guarantee.
        delta: at which ε is quoted.
        noise: standard deviation, and who adds it; None for baselines.
        rows: answered.
        accuracy: the student's, on declared-public images.
        own_accuracy: on a user's own held-out records: NOT private, in no file.
        cnn: accuracy of the downstream CNN.
        fid: Fréchet distance.
        features: under which features.
        settings: all but what is incidental, as one string.
    """

    path: Path
    name: str
    method: str
    data: str
    privacy: str
    unit: str
    seed: int
    epsilon: float | None
    delta: float
    noise: str | None
    rows: int
    accuracy: float | None
    own_accuracy: float | None
    cnn: float | None
    fid: float | None
    features: str | None
    settings: str


@dataclass(frozen=True)
class Spread:
    """One figure over several runs.

    Attributes:
        mean: of the runs.
        low: the lowest.
        high: the highest.
        interval: 95 % interval of the mean; None for a single run.
        runs: how many have the figure.
    """

    mean: float
    low: float
    high: float
    interval: tuple[float, float] | None
    runs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread | None":
        """The spread of some values; None of none."""
        if not values:
            return None
        n, mean = len(values), sum(values) / len(values)
        if n == 1:
            return cls(mean, mean, mean, None, 1)
        from scipy.stats import t

        deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1))
        half = float(t.ppf((1 + _LEVEL) / 2, n - 1)) * deviation / math.sqrt(n)
        return cls(mean, min(values), max(values), (mean - half, mean + half), n)


def read_run(path: Path) -> ComparedRun:
    """The figures of one finished run.

    Raises:
        StorageError: there is none.
    """
    result = read_result(path)
    settings = result["settings"]
    told = read_object(path / EVALUATION) or {}
    # Older runs may hold in `metrics.json` what belongs under `private/`.
    scores = (result.get("accuracy") or {}) if is_published(str(settings.get("data"))) else {}
    own = {} if scores else read_object(path / "private" / "accuracy.json") or {}
    method = str(result.get("method", _METHOD))
    incidental = marked(Mark.INCIDENTAL, *OF_RUNS)
    kept = {key: value for key, value in settings.items() if key not in incidental}
    fidelity = told.get("fidelity") or {}
    return ComparedRun(
        path=path,
        name=str(result.get("run", path)),
        method=method,
        data=str(result.get("data")),
        privacy=str(result.get("privacy", "none")),
        unit=str(result.get("unit")),
        seed=int(settings.get("seed", 0)),
        epsilon=_epsilon(result),
        delta=float(result.get("delta", 0.0)),
        noise=_noise(result),
        rows=int(result.get("rows", 0)),
        accuracy=scores.get("student"),
        own_accuracy=own.get("student"),
        cnn=(told.get("downstream") or {}).get("cnn"),
        fid=fidelity.get("fid"),
        features=fidelity.get("features"),
        settings=json.dumps([method, kept], sort_keys=True),
    )


def _epsilon(result: Mapping[str, Any]) -> float | None:
    """The sound ε; none for a baseline, and none with seeded noise, whatever was printed."""
    return result.get("epsilon") if result.get("private") else None


def _noise(result: Mapping[str, Any]) -> str | None:
    std, who = result.get("noise_std"), result.get("noise")
    if std is None:
        return str(who) if who else None
    return f"{std:.3g} {who}" if who else f"{std:.3g}"
