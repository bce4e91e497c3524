"""Several finished runs side by side: a table, and accuracy over ε."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedtranscribe.config import OF_RUNS, Mark, marked
from fedtranscribe.data import is_published
from fedtranscribe.errors import ConfigError, StorageError
from fedtranscribe.evaluation.evaluate import EVALUATION
from fedtranscribe.evaluation.figures import CurvePoint, draw_privacy_accuracy
from fedtranscribe.files import read_object, write_atomically
from fedtranscribe.results.figures import figures_available
from fedtranscribe.results.parts import Accuracy, Answers
from fedtranscribe.results.result import SCORES, Result
from fedtranscribe.results.run_directory import DAMAGED
from fedtranscribe.text import markdown

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
    measured = read_object(path / EVALUATION) or {}
    # Older runs may hold in `metrics.json` what belongs under `private/`.
    scores = result.accuracy if is_published(asked.data) else None
    own = {} if scores and scores.to_json() else read_object(path / SCORES) or {}
    incidental = marked(Mark.INCIDENTAL, *OF_RUNS)
    settings = {key: value for key, value in result.settings.items() if key not in incidental}
    fidelity = measured.get("fidelity") or {}
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
        cnn=(measured.get("downstream") or {}).get("cnn"),
        fid=fidelity.get("fid"),
        features=fidelity.get("features"),
        settings=json.dumps([result.method, settings], sort_keys=True),
    )


def _noise(answers: Answers) -> str | None:
    std, who = answers.noise_std, answers.noise
    if std is None:
        return who
    return f"{std:.3g} {who}" if who else f"{std:.3g}"


PRIVATE = "private"
SPREAD_WORDS = "Over several runs: mean (lowest–highest) ± half of the 95 % interval of the mean."


@dataclass(frozen=True)
class Group:
    """Runs that differ by chance alone."""

    runs: tuple[ComparedRun, ...]

    @property
    def first(self) -> ComparedRun:
        """A run that stands for all where they agree."""
        return self.runs[0]

    @property
    def epsilon(self) -> float | None:
        """The largest of the runs: what each of them keeps. None where one has no guarantee."""
        found = [run.epsilon for run in self.runs if run.epsilon is not None]
        return max(found) if len(found) == len(self.runs) else None

    @property
    def accuracy(self) -> Spread | None:
        """Of the student on declared-public images."""
        return _spread(run.accuracy for run in self.runs)

    @property
    def own_accuracy(self) -> Spread | None:
        """Of the student on a user's own records: for the terminal alone."""
        return _spread(run.own_accuracy for run in self.runs)

    @property
    def cnn(self) -> Spread | None:
        """Of the downstream CNN."""
        return _spread(run.cnn for run in self.runs)

    @property
    def fid(self) -> Spread | None:
        """None where runs were measured under several feature networks."""
        if len({run.features for run in self.runs if run.fid is not None}) > 1:
            return None
        return _spread(run.fid for run in self.runs)

    @property
    def line(self) -> str:
        """The line of the curve that it lies on."""
        run = self.first
        words = [run.method, run.data]
        return ", ".join(words if self.epsilon is None else [*words, run.unit, run.privacy])

    @property
    def private(self) -> bool:
        """Whether its accuracy rests on a user's own records."""
        return self.accuracy is None and self.own_accuracy is not None

    def to_json(self) -> dict[str, Any]:
        """What a file may hold."""
        run = self.first
        spreads = {"accuracy": self.accuracy, "downstream_cnn": self.cnn, "fid": self.fid}
        figures: dict[str, Any] = {k: asdict(v) if v else None for k, v in spreads.items()}
        if self.private:
            figures["accuracy"] = PRIVATE
        return {
            "method": run.method,
            "data": run.data,
            "privacy": run.privacy,
            "unit": run.unit,
            "epsilon": self.epsilon,
            "delta": run.delta,
            "noise": run.noise,
            "rows": run.rows,
            **figures,
            "features": run.features,
            "runs": [{"run": one.name, "seed": one.seed} for one in self.runs],
        }


@dataclass(frozen=True)
class Comparison:
    """Groups of runs, in the order of method, data, unit, privacy and ε."""

    groups: tuple[Group, ...]

    @property
    def features(self) -> list[str]:
        """Features that FIDs were measured under."""
        runs = [run for group in self.groups for run in group.runs]
        return sorted({run.features for run in runs if run.features and run.fid is not None})

    def to_json(self) -> dict[str, Any]:
        """What a file may hold."""
        return {"groups": [group.to_json() for group in self.groups]}

    def to_markdown(self) -> str:
        """The table of a file."""
        head = [
            *("method", "data", "privacy", "unit", "ε (sound)", "δ", "noise", "rows", "runs"),
            *("student", "downstream CNN", "FID"),
        ]
        lines = ["# Comparison", "", _markdown_row(head), _markdown_row(["---"] * len(head))]
        lines += [_markdown_row([markdown(cell) for cell in cells(group)]) for group in self.groups]
        lines += ["", SPREAD_WORDS]
        lines += [f"Features of FID: {markdown(name)}." for name in self.features]
        return "\n".join(lines) + "\n"

    def write(self, folder: Path) -> list[Path]:
        """Write `compare.json`, `compare.md` and, where there is something to draw, `curve.png`.

        Returns:
            What was written.

        Raises:
            StorageError: the folder cannot be written.
        """
        text = json.dumps(self.to_json(), indent=2, ensure_ascii=False, allow_nan=False)
        written = [folder / "compare.json", folder / "compare.md"]
        write_atomically(written[0], text.encode())
        write_atomically(written[1], self.to_markdown().encode())
        lines = self.curves()
        if lines and figures_available():
            written.append(folder / "curve.png")
            draw_privacy_accuracy(lines, written[-1])
        return written

    def curves(self) -> dict[str, list[CurvePoint]]:
        """Accuracy over ε per method, data, unit and privacy; only if it may be published."""
        lines: dict[str, list[CurvePoint]] = {}
        for group in self.groups:
            if group.accuracy is not None:
                spread = group.accuracy
                point = CurvePoint(group.epsilon, spread.mean, spread.low, spread.high)
                lines.setdefault(group.line, []).append(point)
        return lines


def compare(paths: Sequence[Path]) -> Comparison:
    """Read finished runs and put those together that differ by chance alone.

    Raises:
        StorageError: a folder holds no finished run, or a damaged one.
        ConfigError: two folders hold the same run, which would count it twice.
    """
    runs = [_read(path) for path in paths]
    seen: dict[str, Path] = {}
    for run in runs:
        if run.name in seen:
            raise ConfigError(
                f"{seen[run.name]} and {run.path} hold the same run {run.name}; give it once."
            )
        seen[run.name] = run.path
    groups: dict[str, list[ComparedRun]] = {}
    for run in runs:
        groups.setdefault(run.settings, []).append(run)
    ordered = [Group(tuple(sorted(group, key=lambda run: run.seed))) for group in groups.values()]
    return Comparison(tuple(sorted(ordered, key=_order)))


def _read(path: Path) -> ComparedRun:
    try:
        return read_run(path)
    except DAMAGED:
        raise StorageError(
            f"The files of the run in {path} are damaged, or of another version; it cannot be "
            "compared."
        ) from None


def cells(group: Group) -> list[str]:
    """One line of a table that may be told."""
    run = group.first
    return [
        run.method,
        run.data,
        run.privacy,
        run.unit,
        "none" if group.epsilon is None else f"{group.epsilon:.3g}",
        f"{run.delta:g}",
        run.noise or "-",
        f"{run.rows:,}",
        str(len(group.runs)),
        PRIVATE if group.private else percent(group.accuracy),
        percent(group.cnn),
        _cell(group.fid, 1, ".1f"),
    ]


def percent(spread: Spread | None) -> str:
    """An accuracy in per cent, with its spread where there are several runs."""
    return _cell(spread, 100, ".1f")


def _cell(spread: Spread | None, scale: float, form: str) -> str:
    if spread is None:
        return "-"
    mean, low, high = (scale * x for x in (spread.mean, spread.low, spread.high))
    if spread.interval is None:
        return f"{mean:{form}}"
    half = scale * (spread.interval[1] - spread.mean)
    return f"{mean:{form}} ({low:{form}}–{high:{form}}) ± {half:{form}}"


def _spread(values: Any) -> Spread | None:
    return Spread.of([value for value in values if value is not None])


def _order(group: Group) -> tuple[Any, ...]:
    run = group.first
    epsilon = math.inf if group.epsilon is None else group.epsilon
    return run.method, run.data, run.unit, run.privacy, epsilon, run.settings


def _markdown_row(words: Sequence[str]) -> str:
    return f"| {' | '.join(words)} |"
