"""Facts, words and figures into one self-contained HTML page: a run, or several side by side."""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtranscribe import __version__
from fedtranscribe.data import is_published
from fedtranscribe.errors import ConfigError, StorageError
from fedtranscribe.evaluation.audit_checks import worst
from fedtranscribe.evaluation.comparison import Comparison, Group, cells, compare
from fedtranscribe.evaluation.report_drawings import (
    Drawing,
    accuracy_curve,
    privacy_accuracy,
    spending_curve,
)
from fedtranscribe.evaluation.report_facts import MAJORITY, OWN_DATA, RunFacts, read_facts
from fedtranscribe.evaluation.report_samples import draw_samples, png_url
from fedtranscribe.evaluation.report_words import (
    CHANGES,
    UNITS,
    asked_sums,
    judge,
    lines,
    shares,
    tiny,
)
from fedtranscribe.files import write_atomically
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.results.parts import Answers, Diffusion
from fedtranscribe.results.run_directory import DAMAGED
from fedtranscribe.text import printable

REPORT = "report.html"

_FOLDER = Path(__file__).parent / "templates"
_WHOLE = 10_000
# Of a table of counts.
_MOST_CLASSES = 20
_FIDELITY = {
    "fid": "FID",
    "inception_score": "Inception Score",
    "precision": "precision",
    "recall": "recall",
}
_COLUMNS = (
    *("method", "data", "privacy", "unit", "ε (sound)", "δ", "noise", "rows", "runs"),
    *("student, %", "downstream CNN, %", "FID"),
)


@dataclass(frozen=True)
class Figure:
    """One line among the key figures."""

    name: str
    value: str
    note: str = ""


def check_libraries() -> None:
    """Check that what a page needs is installed, without importing it."""
    missing = [n for n in ("jinja2", "matplotlib") if importlib.util.find_spec(n) is None]
    if missing:
        raise ConfigError(
            f"A report needs {' and '.join(missing)}: pip install 'fedtranscribe[report]'."
        )


def write_report(path: Path, out: Path | None = None, ledger: Path | None = None) -> Path:
    """Write the page of one finished run."""
    check_libraries()
    try:
        content = render(read_facts(path, ledger))
    except DAMAGED:
        raise StorageError(
            f"The files of the run in {path} are damaged, or of another version; no page can be "
            "made from them."
        ) from None
    target = out or path / REPORT
    write_atomically(target, content.encode())
    return target


def write_comparison(paths: Sequence[Path], out: Path) -> Path:
    """Write one page over several finished runs; those of several seeds are one row."""
    check_libraries()
    write_atomically(out, render_comparison(compare(paths)).encode())
    return out


def render(facts: RunFacts) -> str:
    """The page of a run."""
    verdict = judge(facts)
    answered, _ = facts.curve
    sums = asked_sums(facts.holder_events)
    # A training is one release, and sums are a few of unequal cost: no course of ε to draw.
    by_round = not facts.diffusion and not sums
    spent = lines(facts.holder_events, facts.adjacency, facts.delta, answered) if by_round else []
    return _rendered(
        "run.html.jinja",
        title=f"{facts.method} on {facts.data}",
        facts=facts,
        verdict=verdict,
        key_figures=_key_figures(facts),
        guarantees=_guarantees(facts),
        published=_published(facts),
        spending=spending_curve(spent, facts.delta) if spent else None,
        shares=shares(facts.holder_events, facts.unit, facts.adjacency, facts.delta)
        if sums
        else [],
        accuracy=_accuracy(facts, sums) if answered else None,
        scores=_scores(facts),
        confusion=_confusion(facts),
        samples=draw_samples(facts),
        inversion=png_url(facts.inversion) if facts.inversion else None,
        units=UNITS,
        changes=CHANGES,
    )


def render_comparison(comparison: Comparison) -> str:
    """The page over several runs."""
    curves = comparison.curves()
    drawing: Drawing | None = privacy_accuracy(curves) if curves else None
    return _rendered(
        "comparison.html.jinja",
        title="Runs side by side",
        columns=_COLUMNS,
        groups=[_cells(group) for group in comparison.groups],
        curve=drawing,
        unguarded=[
            f"{group.first.method}, {_data(group)}"
            for group in comparison.groups
            if group.epsilon is None
        ],
        private=any(group.private for group in comparison.groups),
        features=comparison.features,
    )


def _rendered(template: str, **values: Any) -> str:
    from jinja2 import ChainableUndefined, Environment, FileSystemLoader

    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        finalize=_finalize,
        undefined=ChainableUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["figure"] = figure
    environment.filters["percent"] = percent
    environment.filters["tiny"] = tiny
    return environment.get_template(template).render(version=__version__, **values)


def _finalize(value: Any) -> Any:
    """Every value on its way into the page: what is no markup of ours is made printable."""
    return value if hasattr(value, "__html__") else printable(text := str(value), len(text))


def figure(value: float | None) -> str:
    """A figure as a reader wants it."""
    if value is None:
        return "none"
    return f"{value:,.0f}" if value >= _WHOLE else f"{value:.4g}"


def percent(value: float | None) -> str:
    """A share in per cent."""
    return "–" if value is None else f"{100 * value:.1f}\u00a0%"


# ---------------------------------------------------------------- parts of a page


def _key_figures(facts: RunFacts) -> list[Figure]:
    result, answers = facts.result, facts.result.answers or Answers()
    under = f"{facts.unit.value}, {facts.adjacency.value}, δ\u00a0=\u00a0{tiny(facts.delta)}"
    found = [Figure("ε, sound", figure(facts.epsilon), under if facts.epsilon else "no guarantee")]
    if "student" in facts.scores:
        beside = "" if facts.majority is None else f"; {MAJORITY}: {percent(facts.majority)}"
        score = percent(facts.scores["student"])
        found.append(Figure("student’s accuracy", score, f"held-out images{beside}"))
    if result.diffusion is not None:
        found += _of_training(facts, result.diffusion)
    elif answers.privacy == "moments":
        found.append(Figure("answers", f"{result.rows}", "noisy sums over all records"))
    elif result.rows:
        kind = answers.privacy and f"kind: {answers.privacy}"
        found.append(Figure("rows answered", f"{result.rows:,}", kind or ""))
    if result.teachers:
        found.append(
            Figure(
                "teachers" if result.teachers > 1 else "teacher",
                f"{result.teachers:,}",
                "on disjoint records",
            )
        )
    if result.federation is not None:
        found.append(Figure("data holders", f"{result.federation.holders:,}"))
    if answers.noise_std:
        where = f"std, added: {answers.noise or 'local'}"
        found.append(Figure("noise", f"{answers.noise_std:.4g}", where))
    return found


def _of_training(facts: RunFacts, trained: Diffusion) -> list[Figure]:
    """Of a diffusion model: what its images teach, and how it was trained."""
    found = [] if facts.taught is None else [Figure("CNN on its images", percent(facts.taught))]
    if trained.private_start is not None:
        share = f"{trained.private_start.share:.0%}"
        found.append(Figure("private start", share, "of μ², for a mixture to begin with"))
    if trained.sigma:
        found.append(Figure("noise", f"{trained.sigma:.4g}", "multiplier of every step"))
    steps = sum(trained.steps.values())
    return [*found, Figure("training steps", f"{steps:,}", f"U-Net: {trained.unet}")]


def _guarantees(facts: RunFacts) -> list[tuple[str, str, str, bool]]:
    """Unit, adjacency, ε, whether it is the headline; nothing for a run that claims nothing."""
    if facts.epsilon is None:
        return []
    found: dict[tuple[Unit, Adjacency], float | None] = {
        (unit, facts.adjacency): worst(facts.holder_events, unit, facts.adjacency, facts.delta)
        for unit in Unit
    }
    for adjacency, epsilon in facts.result.guarantee.sound.items():
        found[facts.unit, adjacency] = epsilon
    for unit, epsilon in facts.result.guarantee.units.items():
        found[unit, facts.adjacency] = epsilon
    found[facts.unit, facts.adjacency] = facts.epsilon
    headline = facts.unit, facts.adjacency
    return [
        (unit.value, adjacency.value, figure(epsilon), (unit, adjacency) == headline)
        for (unit, adjacency), epsilon in sorted(
            found.items(), key=lambda item: (item[0] != headline, item[0][0] != facts.unit)
        )
    ]


def _published(facts: RunFacts) -> Mapping[str, Any] | None:
    """The paper's own figure, which is no guarantee."""
    found = facts.result.guarantee.published
    if found is None:
        return None
    chose = facts.result.asked.calibrate_by == "published"
    return {"epsilon": found.epsilon, "reason": found.reason, "used": chose}


def _accuracy(facts: RunFacts, sums: bool) -> Drawing:
    return accuracy_curve(*facts.curve, facts.baselines, "sums" if sums else "rows")


def _scores(facts: RunFacts) -> list[tuple[str, list[tuple[str, str]]]]:
    """Tables of figures that may be shown: caption, lines."""
    student = [(name, percent(value)) for name, value in facts.scores.items()]
    downstream = facts.evaluation.get("downstream") or {}
    learned = [
        (name, percent(value))
        for name, value in downstream.items()
        if isinstance(value, float) and name != "mean_sklearn"
    ]
    if isinstance(downstream.get("mean_sklearn"), float):
        many = downstream.get("mean_sklearn_of")
        learned.append((f"mean of {many} by scikit-learn", percent(downstream["mean_sklearn"])))
    fidelity = facts.evaluation.get("fidelity") or {}
    close = [
        (name, f"{fidelity[key]:.3g}")
        for key, name in _FIDELITY.items()
        if isinstance(fidelity.get(key), int | float)
    ]
    real = f"held-out images of {facts.data}"
    if learned and facts.majority is not None:
        learned.append((MAJORITY, percent(facts.majority)))
    tables = [
        (f"Accuracy on {real}.", student + _beside(facts)),
        (f"Classifiers that learned from synthetic images only, tested on {real}.", learned),
        (f"Synthetic images beside real ones. Features: {fidelity.get('features')}.", close),
    ]
    return [(caption, rows) for caption, rows in tables if rows]


def _beside(facts: RunFacts) -> list[tuple[str, str]]:
    """What the student's accuracy is held against, and two classes' own figures."""
    found, names = facts.decisions, facts.class_names
    if found is None or names is None:
        return []
    return found.figures(names)


def _confusion(facts: RunFacts) -> dict[str, Any] | None:
    """A table of counts; none where there are too many classes for a page."""
    found, names = facts.confusion, facts.class_names
    if found is None or names is None or len(found.counts) > _MOST_CLASSES:
        return None
    return {"names": names, "rows": list(zip(names, found.counts, strict=True))}


def _cells(group: Group) -> list[tuple[str, str]]:
    """Column and cell of a row that may be told."""
    row = dict(zip(_COLUMNS, cells(group), strict=True))
    return list((row | {"data": _data(group)}).items())


def _data(group: Group) -> str:
    """Name of the data, where it may be told."""
    return group.first.data if is_published(group.first.data) else OWN_DATA
