"""`fedtranscribe evaluate|compare|report|sample`: what is done with finished runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedtranscribe.cli.options import Json, Run, Runs, settings_options
from fedtranscribe.cli.output import emit, emit_json, say, say_path, show_table
from fedtranscribe.cli.runs import expect_finished
from fedtranscribe.config import Place, Topic, build
from fedtranscribe.config.evaluation import EvaluationSettings
from fedtranscribe.errors import ConfigError
from fedtranscribe.files import expect_free
from fedtranscribe.results.stage_bars import StageBars

if TYPE_CHECKING:
    from fedtranscribe.evaluation.comparison import Comparison

_EVALUATE = """Measure finished runs: student, classifiers on synthetic images, fidelity.

\b
Examples:
  fedtranscribe evaluate runs/demo                              # a minute or two
  fedtranscribe evaluate runs/demo --classifiers all            # all fourteen classifiers
  fedtranscribe evaluate runs/a runs/b --classifiers cnn,lda
  fedtranscribe evaluate runs/scans --at sensitivity=0.95       # two classes: the threshold
  fedtranscribe evaluate runs/demo --inception weights-inception-2015-12-05-6726825d.pth
  fedtranscribe evaluate runs/demo --samples 60000 --max-train 60000 --classifiers all

Figures are written into each run's evaluation.json. Those that rest on your own records go to
private/evaluation.json only. Without Inception weights FID uses a network trained on public images,
and says so.
"""


@settings_options(EvaluationSettings)
def evaluate_command(typed: dict[str, Any], runs: Runs, as_json: Json = False) -> None:
    """Run it; the help text is `_EVALUATE`."""
    settings = build(EvaluationSettings, typed)
    expect_finished(*runs)

    from fedtranscribe.evaluation.evaluate import check_libraries, evaluate
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
            show_evaluation(result, run.path)


evaluate_command.__doc__ = _EVALUATE


def show_evaluation(result: dict[str, Any], folder: Path) -> None:
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
        lines += _student_lines(result["student"])
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


def _student_lines(student: dict[str, Any]) -> list[tuple[str, str]]:
    point = student.get("operating_point")
    if (found := student.get("findings")) is None:
        lines = [("its mean over classes", f"{student['balanced']:.1%}")]
        if point is not None:
            for name in ("sensitivity", "specificity"):
                lines.append((f"{name} at {point['at']}", f"{point[name]:.1%}"))
            lines.append(("probability from which on it is so", f"{point['threshold']:.6g}"))
        return lines
    area = found["mean_auc"]
    lines = [("area under the ROC curve, mean", "-" if area is None else f"{area:.3f}")]
    for number, each in enumerate(point or []):
        shares = f"{each['sensitivity']:.1%}, {each['specificity']:.1%}"
        line = f"class {number}: sensitivity, specificity"
        lines.append((line, f"{shares}, from {each['threshold']:.6g} on"))
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


_COMPARE = """Compare finished runs; runs that differ only in their seed are one row.

\b
Examples:
  fedtranscribe compare runs/*                            # a table
  fedtranscribe compare runs/eps-* --out results          # and compare.json, compare.md, curve.png

Downstream accuracy and FID come from `fedtranscribe evaluate`. Accuracy on your own records is
shown here only, with a stamp; the files say `private`.
"""


def compare_command(
    runs: Runs,
    out: Annotated[
        Path | None, typer.Option(help="Folder for compare.json, compare.md and curve.png.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run it; the help text is `_COMPARE`."""
    expect_finished(*runs)

    from fedtranscribe.evaluation.comparison import compare

    comparison = compare(runs)
    written = comparison.write(out) if out is not None else []
    if as_json:
        emit(comparison.to_json(), as_json=True, title="")
        return
    show_comparison(comparison)
    for path in written:
        say_path("written", path)


compare_command.__doc__ = _COMPARE


def show_comparison(comparison: "Comparison") -> None:
    """Print the table; accuracy on a user's own records under its stamp."""
    from fedtranscribe.evaluation.comparison import SPREAD_WORDS, cells, percent

    figures = ("student %", "CNN %", "FID")
    rows = []
    for group in comparison.groups:
        method, data, privacy, unit, epsilon, delta, noise, answered, runs, *scores = cells(group)
        if group.private:
            scores[0] = f"{percent(group.own_accuracy)} NOT PRIVATE"
        what = (f"{method}, {data}", f"{privacy}, {unit}")
        cost = (f"{epsilon}, δ = {delta}", f"noise {noise}")
        rows.append((what, cost, (answered, f"runs: {runs}"), *scores))
    columns = ("what", "ε (sound)", "rows", *figures)
    show_table("Finished runs", columns, rows, right=figures, lines=True)
    say(SPREAD_WORDS, "dim")
    for words in comparison.features:
        say(f"FID under {words}", "dim")
    if any(group.private for group in comparison.groups):
        say("NOT PRIVATE: accuracy on a holder's own held-out records; do not release.", "bold red")


_REPORT = """Write a finished run as one HTML page: verdict, figures, ε, samples, audits.

\b
Examples:
  fedtranscribe report runs/demo                             # into runs/demo/report.html
  fedtranscribe report runs/demo --out demo.html
  fedtranscribe report runs/eps-* --out comparison.html      # one page over several runs

The page needs no server and no script, and shows nothing that was measured on your own records.
Run `fedtranscribe evaluate` and `fedtranscribe audit` before: what they found is shown too.
"""


def report_command(
    runs: Runs,
    out: Annotated[
        Path | None, typer.Option(help="Page to write; RUN/report.html for a single run.")
    ] = None,
    ledger: Annotated[
        Path | None, typer.Option(help="Ledger of the data, where the run does not name it.")
    ] = None,
) -> None:
    """Run it; the help text is `_REPORT`."""
    if len(runs) > 1 and out is None:
        raise ConfigError(f"Expected --out FILE for one page over {len(runs)} runs.")
    if len(runs) > 1 and ledger is not None:
        raise ConfigError("Expected --ledger with a single run; a comparison shows no ledger.")
    expect_finished(*runs)

    from fedtranscribe.evaluation.report import write_comparison, write_report

    if len(runs) > 1 and out is not None:
        written = write_comparison(runs, out)
    else:
        written = write_report(runs[0], out, ledger)
    say_path("Report", written)


report_command.__doc__ = _REPORT


_SAMPLE = """Draw labelled images from the generator of a finished run; this costs no privacy.

\b
Examples:
  fedtranscribe sample runs/digits --num 1000 --out samples.npz    # --data reads it
  fedtranscribe sample runs/digits --num 100 --labels 3,7 --out pictures
  fedtranscribe sample runs/diffusion --num 100 --guidance 1 --steps 50 --out guided.npz

An .npz holds `images` (uint8), `labels` (int64), `classes` and what they were drawn from; a folder
holds PNG, one sub-folder per label. A diffusion model and a mixture draw the classes that you ask
for (a sharpened image that the student takes for another class is drawn anew, a few times at most);
the student labels what another generator draws. A diffusion model that learned no labels gives
none; only a diffusion model takes --steps and --guidance. For other runs on the same records,
samples do not count as public images.
"""


@settings_options(Place, only=("device",))
def sample_command(
    typed: dict[str, Any],
    run: Run,
    num: Annotated[int, typer.Option(help="Images to draw.")],
    out: Annotated[Path, typer.Option(help="A file .npz, or a folder.")],
    labels: Annotated[
        str,
        typer.Option(
            metavar="[all|uniform|NAMES]",
            help="all (equal numbers), uniform (at random), or classes, separated by commas.",
        ),
    ] = "all",
    steps: Annotated[
        int | None, typer.Option(help="Sampler steps T'; default: those of the run.")
    ] = None,
    guidance: Annotated[
        float | None, typer.Option(help="Guidance weight w; default: that of the run.")
    ] = None,
    sharpen: Annotated[
        bool, typer.Option(help="Whether a sharpened mixture's images are, or as it draws them.")
    ] = True,
    seed: Annotated[
        int, typer.Option(min=0, help="Public randomness.", rich_help_panel=Topic.RUN)
    ] = 0,
    as_json: Json = False,
) -> None:
    """Run it; the help text is `_SAMPLE`."""
    expect_finished(run)
    expect_free(out)

    from fedtranscribe.models import pick_device
    from fedtranscribe.runs.finished import Sampler
    from fedtranscribe.trainers.samples import drawn_from, expect_writable, write_samples

    device = pick_device(build(Place, typed).device)
    sampler = Sampler(run, labels, num, seed, device, steps, guidance, sharpen)
    result = sampler.result
    expect_writable(out)
    with StageBars() as bars:
        for caveat in result.guarantee.caveats:
            bars.say(f"NOT PRIVATE: {caveat}")
        drawn = sampler.draw(lambda done, total: bars("samples", done, total))
        names, origin = result.class_names, drawn_from(result)
        write_samples(drawn.images, drawn.labels, out, drawn.classes, names, origin)
    facts = {
        "out": str(out),
        "images": num,
        "shape": "x".join(str(side) for side in drawn.images.shape[1:]),
        "classes": drawn.classes,
        "steps": drawn.steps,
        "guidance": drawn.guidance,
        "seed": seed,
        "run": result.run,
        "private": result.guarantee.private,
        "epsilon": result.guarantee.epsilon,
    }
    emit(facts, as_json, "Samples")


sample_command.__doc__ = _SAMPLE
