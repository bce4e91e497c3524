"""`fedtranscribe transcribe|synthesize|simulate`: the commands that make a run."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from fedtranscribe.cli.options import (
    Force,
    Json,
    Out,
    Plan,
    Resume,
    SettingsFile,
    about,
    settings_options,
)
from fedtranscribe.cli.output import emit, say, say_path, show_table
from fedtranscribe.cli.runs import (
    expect_finished,
    expect_known,
    print_plan,
    show_confusion,
    show_privacy,
)
from fedtranscribe.config import FederationSettings, SynthesizeSettings, TranscribeSettings, build
from fedtranscribe.config.sources import layers, new_folder, synthesize_settings
from fedtranscribe.flower.apps import find_app
from fedtranscribe.flower.simulate import (
    choose,
    expect_packaged,
    expect_settings,
    nodes,
    require_flower,
    simulate,
)
from fedtranscribe.results.parts import StatedGuarantee
from fedtranscribe.results.result import Result, ScoredResult, with_private_scores
from fedtranscribe.results.stage_bars import StageBars
from fedtranscribe.text import counted

_TRANSCRIBE = """Turn private images into a differentially private student and generator.

\b
Examples:
  fedtranscribe transcribe                                     # packaged digits, noisy sums
  fedtranscribe transcribe --source teachers                   # the same, from small CNNs' votes
  fedtranscribe transcribe --teacher resnet50                  # any torchvision architecture
  fedtranscribe transcribe --teacher my-teachers --epsilon 5   # made by `teacher train`
  fedtranscribe transcribe --data scans.npz --epsilon 5 --plan  # what a run would ask and cost
  fedtranscribe transcribe --data scans.npz --epsilon 5 --out runs/scans
  fedtranscribe transcribe --data scans --classes 2 --features resnet18 \\
      --features-weights resnet18.pth --features-declared-by "J. Doe"   # public network, frozen
  fedtranscribe transcribe --generator runs/diffusion          # label its samples, add its cost
  fedtranscribe transcribe --resume --out runs/scans           # continue an interrupted run
  fedtranscribe transcribe --no-generator                      # the student only: faster

The student (the classifier that you get) learns from noisy sums over the records. With --teacher,
--student NETWORK, --shards or --rows it learns from noisy votes of teachers: classifiers trained
on disjoint parts (shards) of the records (DPSD). Options that you leave out are chosen from public
facts (records, classes, shapes) and printed. Settings of the method itself go into --config FILE,
tables [dpsd] and [teachers].
"""


@settings_options(
    TranscribeSettings,
    flags={
        "with_generator": "--with-generator/--no-generator",
        "sharpen": "--sharpen/--no-sharpen",
    },
)
def transcribe_command(
    typed: dict[str, Any],
    out: Out = None,
    config: SettingsFile = None,
    resume: Resume = False,
    plan: Plan = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Run it; the help text is `_TRANSCRIBE`."""
    stored, configured = layers(config, out, resume=resume, plan=plan)
    settings = build(TranscribeSettings, {**stored, **configured, **typed})
    # A run that is resumed knows the student by its features' name.
    student = None if settings.features else settings.student
    expect_known(settings, network=student, teacher=settings.teacher, public=settings.public_data)
    if settings.generator is not None:
        expect_finished(settings.generator)

    from fedtranscribe.runs.preparation import existing_generator, prepare
    from fedtranscribe.runs.transcription import show_plan, transcribe

    with StageBars() as bars:
        prepared = prepare(settings, existing_generator(settings, bars))
        if plan:
            print_plan(partial(show_plan, prepared, force=force), bars, as_json=as_json)
            return
        folder = out or new_folder("transcribe")
        bars.say(f"run folder: {folder}")
        try:
            scored = transcribe(
                prepared, folder, resume=resume, force=force, progress=bars, say=bars.say
            )
        except KeyboardInterrupt:
            bars.say(f"go on with: fedtranscribe transcribe --resume --out {folder}")
            raise
    if as_json:
        emit(scored.to_json(), as_json=True, title="")
    else:
        show_transcription(scored, folder)


transcribe_command.__doc__ = _TRANSCRIBE


def show_transcription(scored: ScoredResult, folder: Path) -> None:
    """Print a finished run: accuracy, then privacy, then where things are."""
    result = scored.result
    names = {
        "single_teacher": f"one teacher of {result.teachers} (mean)",
        "ensemble": "teacher ensemble",
        "public_set_alone": f"public set alone ({result.public_data})",
        "student": "private student",
    }
    scores = [
        (f"{name}{', NOT PRIVATE' if key in scored.not_private else ''}", f"{value:.1%}")
        for key, name in names.items()
        if (value := scored.accuracy.get(key)) is not None
    ]
    columns = ("model", "accuracy")
    show_table("Accuracy on held-out real images", columns, scores, right=("accuracy",))
    say(result.accuracy_on, "dim")
    show_confusion(scored)
    show_privacy(result)
    say_path("Results, networks and figures", folder)


_SYNTHESIZE = """Train a differentially private diffusion model where the data are.

\b
Examples:
  fedtranscribe synthesize --epsilon 10                        # packaged digits, dp-promise
  fedtranscribe synthesize --no-noise                          # the same WITHOUT privacy
  fedtranscribe synthesize --pretrain-data shapes --epsilon 1
  fedtranscribe synthesize --data scans.npz --epsilon 5 --plan  # what a run would train and cost
  fedtranscribe synthesize --method dp-sad --data scans.npz --out runs/scans
  fedtranscribe synthesize --data scans.npz --pretrain-data shapes --labels kmeans
  fedtranscribe synthesize --resume --out runs/scans           # continue an interrupted run
  fedtranscribe synthesize --data mnist --data-root DIR --profile paper --epsilon 10

ε is booked in the data's ledger before training begins, once. Draw images from the result with
`fedtranscribe sample`. More settings go into --config FILE.
"""


@settings_options(SynthesizeSettings, flags={"conditional": "--conditional/--unconditional"})
def synthesize_command(
    typed: dict[str, Any],
    out: Out = None,
    config: SettingsFile = None,
    resume: Resume = False,
    plan: Plan = False,
    as_json: Json = False,
) -> None:
    """Run it; the help text is `_SYNTHESIZE`."""
    stored, configured = layers(config, out, resume=resume)
    settings = synthesize_settings(typed, configured, stored)
    expect_known(settings, public=settings.pretrain_data)

    from fedtranscribe.evaluation.evaluate import cnn_judge
    from fedtranscribe.trainers.preparation import prepare
    from fedtranscribe.trainers.synthesize import show_plan, synthesize

    with StageBars() as bars:
        prepared = prepare(settings, say=bars.say)
        if plan:
            print_plan(partial(show_plan, prepared), bars, as_json=as_json)
            return
        folder = out or new_folder("synthesize")
        bars.say(f"run folder: {folder}")
        try:
            scored = synthesize(
                prepared,
                folder,
                resume=resume,
                judge=cnn_judge(settings.seed) if settings.evaluate else None,
                progress=bars,
                say=bars.say,
            )
        except KeyboardInterrupt:
            bars.say(f"go on with: fedtranscribe synthesize --resume --out {folder}")
            raise
    if as_json:
        emit(scored.to_json(), as_json=True, title="")
    else:
        show_synthesis(scored, folder)


synthesize_command.__doc__ = _SYNTHESIZE


def show_synthesis(scored: ScoredResult, folder: Path) -> None:
    """Print a finished run: accuracy, then privacy, then where things are."""
    result = scored.result
    for caveat in result.guarantee.caveats:
        say(f"NOT PRIVATE: {caveat}", "bold red")
    score = scored.accuracy.get("downstream")
    if score is not None:
        say(f"CNN trained on samples, tested on real images: {score:.1%}")
        say(result.accuracy_on, "dim")
    show_privacy(result)
    say_path("Network, samples and figures", folder)
    say(f"Draw images with: fedtranscribe sample {folder} --num 1000 --out samples.npz")


_SIMULATE = """Simulate a federation: data holders and server as a Flower app, on this machine.

\b
Examples:
  fedtranscribe simulate dirichlet_mnist data=digits            # 5 holders, packaged images
  fedtranscribe simulate dirichlet_mnist data=digits epsilon=5 rows=2000
  fedtranscribe simulate dirichlet_mnist data=digits noise=secagg --plan  # what it asks and costs
  fedtranscribe simulate dirichlet_cifar10 data-root=~/data --holders 10
  fedtranscribe simulate dirichlet_cifar10 data-root=~/data download=true
  fedtranscribe simulate dirichlet_cifar10 data-root=~/data --num-gpus 0.2  # five share one GPU
  fedtranscribe simulate dirichlet_mnist data-root=~/data --config paper.toml
  fedtranscribe simulate dirichlet_mnist data-root=~/data --out runs/m --resume

The settings of an app and their defaults are in its pyproject.toml; a wrong name lists them all.
The exit code is 0 only if the run was finished. Nothing is left behind except the run folder.
"""


def simulate_command(
    name: Annotated[
        str, typer.Argument(help="A packaged app (dirichlet_mnist, …) or an app's folder.")
    ],
    settings: Annotated[
        list[str] | None, typer.Argument(help="key=value, to replace defaults of the app.")
    ] = None,
    holders: Annotated[int | None, typer.Option(help=about(FederationSettings, "holders"))] = None,
    cpus: Annotated[int, typer.Option(help="CPU cores per active holder.")] = 1,
    workers: Annotated[
        int | None, typer.Option(help="Active holders at a time; default: as many as CPU cores.")
    ] = None,
    num_gpus: Annotated[float, typer.Option(help="Share of a GPU per active holder.")] = 0.0,
    config: Annotated[
        Path | None, typer.Option(help="TOML file with settings, like an app's paper.toml.")
    ] = None,
    out: Out = None,
    resume: Resume = False,
    plan: Plan = False,
    as_json: Json = False,
) -> None:
    """Run it; the help text is `_SIMULATE`."""
    require_flower()
    app = find_app(name)
    chosen = choose(app, settings or [], holders, out, resume, config)
    federation = nodes(app, chosen, cpus, num_gpus, workers)
    folder = Path(str(chosen["out"]))
    with StageBars() as bars:
        if plan:
            expect_packaged(app)
            expect_settings(app, chosen)
            from fedtranscribe.flower.simulated import show_plan

            run_config = {**app.defaults, **chosen}
            print_plan(partial(show_plan, run_config), bars, as_json=as_json)
            return
        try:
            simulate(app, chosen, federation, bars, bars.say)
        except (KeyboardInterrupt, SystemExit):
            if "resume" in app.defaults:
                bars.say(f"go on with the same settings and: --resume --out {folder}")
            raise
    scored = with_private_scores(folder, Result.read(folder))
    if as_json:
        emit({**scored.to_json(), "out": str(folder)}, as_json=True, title="")
    else:
        show_simulation(scored, folder)


simulate_command.__doc__ = _SIMULATE


def show_simulation(scored: ScoredResult, folder: Path) -> None:
    """Print a finished run: accuracy, then privacy, then where things are."""
    result = scored.result
    words = [f"method {result.method}"]
    if result.answers is not None:
        sums = result.answers.privacy == "moments"
        words.append(counted(result.rows, "noisy sum" if sums else "row"))
    if result.federation is not None:
        words.append(f"holders {result.federation.holders}")
    say(", ".join(words))
    scores = [
        (
            f"{name.replace('_', ' ')}{', NOT PRIVATE' if name in scored.not_private else ''}",
            "-" if value is None else f"{value:.1%}",
        )
        for name, value in scored.accuracy.items()
    ]
    show_table("Accuracy", ("model", "accuracy"), scores, right=("accuracy",))
    show_confusion(scored)
    _show_privacy(result.guarantee)
    say_path("Results, networks and figures", folder)


def _show_privacy(declared: StatedGuarantee) -> None:
    under = f"{declared.unit}, {declared.adjacency}, δ = {declared.delta:g}"
    stated = "infinite: no guarantee" if declared.epsilon is None else f"{declared.epsilon:.4g}"
    rows = [(f"ε, sound ({under})", stated)]
    if declared.published is not None:
        figure = declared.published.epsilon
        text = "-" if figure is None else f"{figure:.4g}"
        rows.append(("published formula, no guarantee", text))
    show_table("Privacy", ("figure", "value"), rows, right=("value",))
    if declared.published is not None:
        say(f"Why the published figure is no guarantee: {declared.published.reason}", "dim")
