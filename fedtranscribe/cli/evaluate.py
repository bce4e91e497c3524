"""`fedtranscribe evaluate`: what finished runs have learned, measured the way the field does it."""

from pathlib import Path
from typing import Any

from fedtranscribe.cli.options import Json, Runs
from fedtranscribe.cli.output import emit, emit_json, say, say_path, show_table
from fedtranscribe.cli.runs import expect_finished
from fedtranscribe.cli.settings_options import settings_options
from fedtranscribe.config import build
from fedtranscribe.config.evaluation import EvaluationSettings
from fedtranscribe.stage_bars import StageBars

_EXAMPLES = """Measure finished runs: student, classifiers on synthetic images, fidelity.

\b
Examples:
  fedtranscribe evaluate runs/demo                              # a minute or two
  fedtranscribe evaluate runs/demo --classifiers all            # all fourteen classifiers
  fedtranscribe evaluate runs/a runs/b --classifiers cnn,lda
  fedtranscribe evaluate runs/demo --inception weights-inception-2015-12-05-6726825d.pth
  fedtranscribe evaluate runs/demo --samples 60000 --max-train 60000 --classifiers all

Figures are written into each run's evaluation.json. Those that rest on your own records go to
private/evaluation.json only. Without Inception weights FID uses a network trained on public images,
and says so.
"""


@settings_options(EvaluationSettings)
def evaluate_command(typed: dict[str, Any], runs: Runs, as_json: Json = False) -> None:
    """Run it; the help text is `_EXAMPLES`."""
    settings = build(EvaluationSettings, typed)
    expect_finished(*runs)

    from fedtranscribe.evaluation import check_libraries, evaluate
    from fedtranscribe.runs.finished import FinishedRun

    check_libraries(settings)
    opened = [FinishedRun.open(path) for path in runs]
    results = []
    with StageBars() as bars:
        for run in opened:
            prefix = f"{run.path.name}: " if len(opened) > 1 else ""
            results.append(evaluate(run, settings, bars.named(prefix)))
    if as_json and len(results) > 1:
        emit_json(results)
        return
    for run, result in zip(opened, results, strict=True):
        if as_json:
            emit(result, as_json=True, title="")
        else:
            show(result, run.path)


evaluate_command.__doc__ = _EXAMPLES


def show(result: dict[str, Any], folder: Path) -> None:
    """Print the figures of one run; those on a user's own records under their stamp."""
    _show_figures(f"Figures that may be published: {folder}", result)
    say(f"real images: {result['real']}", "dim")
    if "fidelity" in result:
        say(f"features: {result['fidelity']['features']}", "dim")
    if "note" in result:
        say(result["note"], "dim")
    if "private" in result:
        _show_figures(f"NOT PRIVATE, do not release: {folder}", result["private"])
        say(result["private"]["stamp"], "bold red")
    say_path("Figures and pictures", folder)


def _show_figures(title: str, result: dict[str, Any]) -> None:
    show_table(title, ("figure", "value"), _lines(result), right=("value",))


def _lines(result: dict[str, Any]) -> list[tuple[str, str]]:
    lines = []
    if "student" in result:
        lines.append(("student's accuracy", f"{result['student']['accuracy']:.1%}"))
    lines += _downstream_lines(result.get("downstream") or {})
    fidelity = result.get("fidelity") or {}
    names = {
        "fid": "FID",
        "inception_score": "Inception Score",
        "precision": "precision",
        "recall": "recall",
    }
    for key, name in names.items():
        if fidelity.get(key) is not None:
            lines.append((name, f"{fidelity[key]:.3f}"))
    if "synthetic" in result:
        shares = result["synthetic"]["class_shares"]
        lines.append(("rarest and commonest class", f"{min(shares):.1%}, {max(shares):.1%}"))
        lines.append(("student's mean confidence", f"{result['synthetic']['confidence']:.1%}"))
    return lines


def _downstream_lines(found: dict[str, Any]) -> list[tuple[str, str]]:
    extra = ("mean_sklearn", "mean_sklearn_of", "selection", "untrained")
    lines = []
    for name, value in found.items():
        if name not in extra:
            why = found["untrained"].get(name, "")
            lines.append((f"{name} on synthetic", f"{value:.1%}" if value is not None else why))
    if found.get("mean_sklearn") is not None:
        count = found["mean_sklearn_of"]
        lines.append((f"mean of {count} by scikit-learn", f"{found['mean_sklearn']:.1%}"))
    return lines
