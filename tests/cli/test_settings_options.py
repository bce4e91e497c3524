"""Options come from settings: whatever a field says of itself, its option says too."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from fedtranscribe import cli
from fedtranscribe.cli.options import settings_options, table_options
from fedtranscribe.config import (
    DpPromiseOptions,
    DpSadOptions,
    Settings,
    SynthesizeSettings,
    TranscribeSettings,
)
from fedtranscribe.config.evaluation import AuditSettings, EvaluationSettings

FROM_SETTINGS = {
    "transcribe": (TranscribeSettings,),
    "synthesize": (SynthesizeSettings, DpPromiseOptions, DpSadOptions),
    "audit": (AuditSettings,),
    "evaluate": (EvaluationSettings,),
}


def command(name: str) -> Any:
    return typer.main.get_command(cli.app).commands[name]  # pyright: ignore[reportAttributeAccessIssue]


def help_of(capsys: pytest.CaptureFixture[str], name: str) -> str:
    assert cli.run([*name.split(), "--help"]) == 0
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("name", FROM_SETTINGS)
def test_every_option_has_words_and_none_contradicts_its_field(name: str):
    fields = {n: f for kind in FROM_SETTINGS[name] for n, f in kind.model_fields.items()}
    for option in command(name).params:
        assert option.param_type_name == "argument" or option.help, option.name
        if option.name in fields:
            words = fields[option.name].description.rstrip(".")
            assert words[1:] in option.help, option.name


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("transcribe", "--privacy [data|label|vote]"),
        ("transcribe", "--source [moments|teachers]"),
        ("transcribe", "--unit [record|holder]"),
        ("transcribe", "ε of this run. [default: 10]"),
        ("transcribe", "δ at which ε is stated. [default: 1e-05]"),
        ("synthesize", "--method [dp-promise|dp-sad]"),
        ("synthesize", "--conditional / --unconditional"),
        ("synthesize", "--teacher [public|dp] dp-sad: trained on public images"),
        ("synthesize", "dp-promise: S, first time step"),
        ("synthesize", "--copies INTEGER K, time steps"),
        ("synthesize", "Test a CNN trained on samples. [default: evaluate]"),
        ("audit", "inversion, canaries. [default: all]"),
        ("evaluate", "names by commas. [default: quick]"),
        ("evaluate", "--no-fidelity"),
        ("plant", "--kind [pattern|mislabelled]"),
        ("teacher train", "Data: --data NAME|PATH Private data"),
    ],
)
def test_help_shows_choices_defaults_and_tables(
    capsys: pytest.CaptureFixture[str], name: str, shown: str
):
    assert shown in help_of(capsys, name)


def test_help_is_in_sections_and_ends_with_itself(capsys: pytest.CaptureFixture[str]):
    shown = help_of(capsys, "transcribe")
    places = [shown.index(f" {title}: --") for title in ("Options", "Data", "Privacy", "Run")]
    assert places == sorted(places)
    assert shown.endswith("--help Show this message and exit.")


def test_a_wrong_choice_is_refused_in_the_models_words(capsys: pytest.CaptureFixture[str]):
    assert cli.run(["transcribe", "--privacy", "votes"]) == 2
    assert capsys.readouterr().err == (
        "error: privacy='votes': input should be 'data', 'label' or 'vote'\n"
    )


def test_options_of_tables():
    tables = table_options(SynthesizeSettings)
    assert tables["dp_promise"] & tables["dp_sad"] == {"copies", "clip"}
    assert "boundary" in tables["dp_promise"] - tables["dp_sad"]
    assert "phase1_lr" not in tables["dp_promise"], "settings files alone say it"
    assert table_options(TranscribeSettings) == {}


def test_only_what_was_typed_reaches_a_command():
    class Wanted(Settings):
        steps: int = 3
        quiet: bool = False
        loud: bool | None = None

    seen = []

    @settings_options(Wanted)
    def run(typed: dict[str, Any], out: str = "here") -> None:
        seen.append((typed, out))

    app = typer.Typer(rich_markup_mode=None)
    app.command()(run)
    for words in ([], ["--steps", "4", "--no-loud"], ["--quiet", "--out", "there"]):
        app(words, standalone_mode=False)
    assert seen == [({}, "here"), ({"steps": 4, "loud": False}, "here"), ({"quiet": True}, "there")]


def helps(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.keyword) and node.arg in ("help", "description"):
            words = node.value.value if isinstance(node.value, ast.Constant) else None
            if isinstance(words, str):
                yield words


def test_no_sentence_of_a_setting_is_written_again_for_its_option():
    package = Path(cli.__file__).parents[1]
    said = {words for path in (package / "config").glob("*.py") for words in helps(path)}
    again = {words for path in (package / "cli").glob("*.py") for words in helps(path)}
    assert said
    assert not said & again


def options(command, path=""):
    for name, below in command.commands.items():
        if hasattr(below, "commands"):
            yield from options(below, f"{path} {name}")
        else:
            context = typer.Context(below, info_name=name)
            yield from ((f"{path} {name}", p, context) for p in below.params)


def test_help_says_what_every_option_takes():
    for path, parameter, context in options(typer.main.get_command(cli.app)):
        if parameter.param_type_name == "option":
            assert parameter.make_metavar(context) != "TEXT", f"{path} {parameter.opts[0]}"
