"""`fedtranscribe synthesize`: a differentially private diffusion model of private images."""

from functools import partial
from pathlib import Path
from typing import Any

from fedtranscribe.cli.options import Json, Out, Plan, Resume, SettingsFile
from fedtranscribe.cli.output import emit, say, say_path
from fedtranscribe.cli.runs import expect_known, print_plan, show_privacy
from fedtranscribe.cli.settings_options import settings_options
from fedtranscribe.config import SynthesizeSettings
from fedtranscribe.config.sources import layers, new_folder
from fedtranscribe.config.synthesize import synthesize_settings
from fedtranscribe.result import Shown
from fedtranscribe.stage_bars import StageBars

_EXAMPLES = """Train a differentially private diffusion model where the data are.

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
    """Run it; the help text is `_EXAMPLES`."""
    started, given = layers(config, out, resume=resume)
    settings = synthesize_settings(typed, given, started)
    expect_known(settings, public=settings.pretrain_data)

    from fedtranscribe.evaluation.judging import cnn_judge
    from fedtranscribe.synthesis import prepare, show_plan, synthesize

    with StageBars() as bars:
        prepared = prepare(settings, say=bars.say)
        if plan:
            print_plan(partial(show_plan, prepared), bars, as_json=as_json)
            return
        folder = out or new_folder("synthesize")
        bars.say(f"run folder: {folder}")
        try:
            shown = synthesize(
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
        emit(shown.to_json(), as_json=True, title="")
    else:
        show(shown, folder)


synthesize_command.__doc__ = _EXAMPLES


def show(shown: Shown, folder: Path) -> None:
    """Print a finished run: accuracy, then privacy, then where things are."""
    result = shown.result
    for caveat in result.guarantee.caveats:
        say(f"NOT PRIVATE: {caveat}", "bold red")
    score = shown.accuracy.get("downstream")
    if score is not None:
        say(f"CNN trained on samples, tested on real images: {score:.1%}")
        say(result.accuracy_on, "dim")
    show_privacy(result)
    say_path("Network, samples and figures", folder)
    say(f"Draw images with: fedtranscribe sample {folder} --num 1000 --out samples.npz")
