"""One finished run's figures as a comparison reads them, and one figure's spread over runs."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedtranscribe.config import OF_RUNS, Mark, marked
from fedtranscribe.data import is_published
from fedtranscribe.evaluation.evaluate import EVALUATION
from fedtranscribe.reading import read_object
from fedtranscribe.result import SCORES, Result
from fedtranscribe.result_parts import Accuracy, Answers

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
    result = Result.read(path)
    asked, guarantee, answers = result.asked, result.guarantee, result.answers or Answers()
    told = read_object(path / EVALUATION) or {}
    # Older runs may hold in `metrics.json` what belongs under `private/`.
    scores = result.accuracy if is_published(asked.data) else None
    own = {} if scores and scores.to_json() else read_object(path / SCORES) or {}
    incidental = marked(Mark.INCIDENTAL, *OF_RUNS)
    kept = {key: value for key, value in result.settings.items() if key not in incidental}
    fidelity = told.get("fidelity") or {}
    return ComparedRun(
        path=path,
        name=result.run,
        method=result.method,
        data=str(result.data),
        privacy=answers.privacy or "none",
        unit=guarantee.unit.value,
        seed=asked.seed,
        epsilon=guarantee.held,
        delta=guarantee.delta,
        noise=_noise(answers),
        rows=result.rows,
        accuracy=(scores or Accuracy()).student,
        own_accuracy=own.get("student"),
        cnn=(told.get("downstream") or {}).get("cnn"),
        fid=fidelity.get("fid"),
        features=fidelity.get("features"),
        settings=json.dumps([result.method, kept], sort_keys=True),
    )


def _noise(answers: Answers) -> str | None:
    std, who = answers.noise_std, answers.noise
    if std is None:
        return who
    return f"{std:.3g} {who}" if who else f"{std:.3g}"
