"""`fedtranscribe transcribe`: images in, a differentially private student and generator out."""

from functools import partial
from pathlib import Path
from typing import Any

from fedtranscribe.cli.options import Force, Json, Out, Plan, Resume, SettingsFile
from fedtranscribe.cli.output import emit, say, say_path, show_table
from fedtranscribe.cli.runs import (
    expect_finished,
    expect_known,
    print_plan,
    show_confusion,
    show_privacy,
)
from fedtranscribe.cli.settings_options import settings_options
from fedtranscribe.config import TranscribeSettings, build
from fedtranscribe.config.sources import layers, new_folder
from fedtranscribe.result import Shown
from fedtranscribe.stage_bars import StageBars

_EXAMPLES = """Turn private images into a differentially private student and generator.

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


@settings_options(TranscribeSettings, flags={"with_generator": "--with-generator/--no-generator"})
def transcribe_command(
    typed: dict[str, Any],
    out: Out = None,
    config: SettingsFile = None,
    resume: Resume = False,
    plan: Plan = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Run it; the help text is `_EXAMPLES`."""
    started, given = layers(config, out, resume=resume, plan=plan)
    settings = build(TranscribeSettings, {**started, **given, **typed})
    # A run that is resumed knows the student by its features' name.
    student = None if settings.features else settings.student
    expect_known(settings, network=student, teacher=settings.teacher, public=settings.public_data)
    if settings.generator is not None:
        expect_finished(settings.generator)

    from fedtranscribe.runs import given_generator, prepare, show_plan, transcribe

    with StageBars() as bars:
        prepared = prepare(settings, given_generator(settings, bars))
        if plan:
            print_plan(partial(show_plan, prepared, force=force), bars, as_json=as_json)
            return
        folder = out or new_folder("transcribe")
        bars.say(f"run folder: {folder}")
        try:
            shown = transcribe(
                prepared, folder, resume=resume, force=force, progress=bars, say=bars.say
            )
        except KeyboardInterrupt:
            bars.say(f"go on with: fedtranscribe transcribe --resume --out {folder}")
            raise
    if as_json:
        emit(shown.to_json(), as_json=True, title="")
    else:
        show(shown, folder)


transcribe_command.__doc__ = _EXAMPLES


def show(shown: Shown, folder: Path) -> None:
    """Print a finished run: accuracy, then privacy, then where things are."""
    result = shown.result
    names = {
        "single_teacher": f"one teacher of {result.teachers} (mean)",
        "ensemble": "teacher ensemble",
        "public_set_alone": f"public set alone ({result.public_data})",
        "student": "private student",
    }
    scores = [
        (f"{name}{', NOT PRIVATE' if key in shown.not_private else ''}", f"{value:.1%}")
        for key, name in names.items()
        if (value := shown.accuracy.get(key)) is not None
    ]
    columns = ("model", "accuracy")
    show_table("Accuracy on held-out real images", columns, scores, right=("accuracy",))
    say(result.accuracy_on, "dim")
    show_confusion(shown)
    show_privacy(result)
    say_path("Results, networks and figures", folder)
