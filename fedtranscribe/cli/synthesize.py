"""`fedtranscribe synthesize`: a differentially private diffusion model of private images."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtranscribe.cli.options import Json, Out, Resume, SettingsFile
from fedtranscribe.cli.output import emit, say, say_path
from fedtranscribe.cli.progress import StageBars
from fedtranscribe.cli.runs import expect_known, layers, show_privacy
from fedtranscribe.cli.settings_options import settings_options, table_options
from fedtranscribe.config import SynthesizeSettings, build
from fedtranscribe.errors import ConfigError
from fedtranscribe.result import Shown

if TYPE_CHECKING:
    from fedtranscribe.synthesis.run import Judge

_EXAMPLES = """Train a differentially private diffusion model where the data are.

\b
Examples:
  fedtranscribe synthesize --epsilon 10                        # packaged digits, dp-promise
  fedtranscribe synthesize --no-noise                          # the same WITHOUT privacy
  fedtranscribe synthesize --pretrain-data shapes --epsilon 1
  fedtranscribe synthesize --method dp-sad --data scans.npz --out runs/scans
  fedtranscribe synthesize --data scans.npz --pretrain-data shapes --labels kmeans
  fedtranscribe synthesize --resume --out runs/scans           # go on after an interrupt
  fedtranscribe synthesize --data mnist --data-root DIR --profile paper --epsilon 10

ε is booked in the data's ledger before training begins, once. Draw images from the result with
`fedtranscribe sample`. More settings go into --config FILE.
"""

_TABLES = table_options(SynthesizeSettings)
_USUAL = {"method": SynthesizeSettings.model_fields["method"].default}
_NO_MEANING = ("epsilon", "adjacency", "budget")


@settings_options(SynthesizeSettings, flags={"conditional": "--conditional/--unconditional"})
def synthesize_command(
    typed: dict[str, Any],
    out: Out = None,
    config: SettingsFile = None,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Run it; the help text is `_EXAMPLES`."""
    settings = _settings(typed, config, out, resume)
    expect_known(settings.data)
    folder = out or Path("runs") / f"synthesize-{datetime.now(UTC):%Y%m%d-%H%M%S}"

    from fedtranscribe.synthesis import prepare, synthesize

    with StageBars() as bars:
        prepared = prepare(settings, say=bars.say)
        bars.say(f"run folder: {folder}")
        try:
            shown = synthesize(
                prepared,
                folder,
                resume=resume,
                judge=_cnn(settings) if settings.evaluate else None,
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


def _settings(
    typed: dict[str, Any], config: Path | None, out: Path | None, resume: bool
) -> SynthesizeSettings:
    started, given = layers(config, out, resume=resume)
    method = str({**_USUAL, **started, **given, **typed}["method"])
    own = _taken(typed, _table_of(method))
    said = {**given, **typed}
    if said.get("noise") is False:
        _expect_nothing_to_calibrate(said)
    tables = {name: {**_table(started, name), **_table(given, name)} for name in _TABLES}
    if own:
        tables[_table_of(method)] |= own
    return build(SynthesizeSettings, {**started, **said, **tables})


def _taken(typed: dict[str, Any], own: str) -> dict[str, Any]:
    """Take the options of the method's own table out of what was typed.

    Raises:
        ConfigError: an option belongs to another method.
    """
    allowed = _TABLES.get(own, frozenset())
    for table, names in _TABLES.items():
        for name in typed:
            if name in names - allowed:
                raise ConfigError(
                    f"Expected {name}={typed[name]} with --method {table.replace('_', '-')} only; "
                    "leave it out."
                )
    return {name: typed.pop(name) for name in sorted(allowed) if name in typed}


def _table_of(method: str) -> str:
    return method.replace("-", "_")


def _table(values: dict[str, Any], name: str) -> dict[str, Any]:
    table = values.get(name, {})
    if not isinstance(table, dict):
        raise ConfigError(f"Expected {name}={table!r} as a table, [{name}].")
    return table


def _expect_nothing_to_calibrate(said: dict[str, Any]) -> None:
    for name in _NO_MEANING:
        if name in said:
            raise ConfigError(
                f"Expected {name}={said[name]} or no noise, not both: without noise there is no "
                "guarantee. Leave one out."
            )


def _cnn(settings: SynthesizeSettings) -> "Judge":
    """The small CNN of the field's evaluations, chosen on synthetic images only."""
    from fedtranscribe.config.evaluation import EvaluationSettings
    from fedtranscribe.evaluation.downstream import downstream

    wanted = build(EvaluationSettings, {"classifiers": "cnn", "seed": settings.seed})

    def judge(images: Any, labels: Any, test: Any, device: Any, progress: Any) -> float | None:
        real = test.images, test.labels
        return downstream((images, labels), real, test.classes, wanted, device, progress)["cnn"]

    return judge


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
