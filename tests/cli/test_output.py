"""No name, key or path from outside acts on the terminal that it is shown on."""

import ast
import contextlib
import io
import json
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedtranscribe
from fedtranscribe import cli
from fedtranscribe.cli import output
from fedtranscribe.cli.output import emit, emit_json, say, say_path, show_table, warn
from fedtranscribe.privacy import Adjacency, Budget, Gaussian, MechanismRelease, Unit
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.results.stage_bars import StageBars

HOSTILE = [
    "[/x]",
    "[red]record left: 9.99[/red]",
    "[link=https://example.org]x[/link]",
    ":skull:",
    "a\nrecord left: 9.99",
    "\x1b[2J\x1b]0;title\x07",
    "\x9b31m",
    "\u202e99.9 :tfel",
    "\udcff",
    "\\[/x]",
    "[" * 50,
]


@contextlib.contextmanager
def caught():
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
        yield stream


def harmless(text: str) -> bool:
    text.encode()
    return all(c in "\n" or c.isprintable() or unicodedata.category(c) == "Zs" for c in text)


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")


def shown_everywhere(name: str) -> str:
    with caught() as stream:
        emit({name: 1.0, "runs": {name: name}, "list": name}, as_json=False, title=name)
        show_table(name, ("a", "b"), [(name, (name, name))], right=("b",), lines=True)
        say(name, "bold red")
        say_path(name, Path(name.replace("\0", "")))
        warn(name)
        emit({name: [name, {name: name}]}, as_json=True, title=name)
        emit_json([name])
    return stream.getvalue()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_is_shown_as_it_is_written(name):
    shown = shown_everywhere(name)
    assert harmless(shown)
    if name.isprintable():
        assert shown.count(name.replace("\\", "\\\\")) + shown.count(name) >= 10


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.text(max_size=40) | st.from_regex(r"\[/?[a-z #=]{0,9}\]{0,2}", fullmatch=True))
def test_any_name_passes_through_every_way_out(name):
    assert harmless(shown_everywhere(name))


@pytest.mark.parametrize("name", HOSTILE)
def test_bars_bear_any_stage(name):
    with caught() as stream, StageBars() as bars:
        bars(name, 1, 2, name)
        bars.named(name)(name, 1, 2)
        bars.say(name)
    assert harmless(stream.getvalue())
    assert "\nrecord left" not in stream.getvalue()


def book_of(folder: Path, run: str) -> Path:
    path = folder / "ledger.sqlite"
    budget = Budget(10.0, 1e-5, Unit.RECORD, Adjacency.ZERO_OUT)
    event = {Unit.RECORD: {Adjacency.ZERO_OUT: Gaussian(0.1, 1)}}
    with Ledger.open(path, "[/data]", budget) as ledger:
        ledger.reserve("q", "0" * 64, MechanismRelease("rows", 1, event), run)
    return path


@pytest.mark.parametrize("run", ["[/x]", "[red]record left: 9.99[/red]"])
def test_a_ledger_with_any_run_is_shown(tmp_path, run, capsys):
    assert cli.run(["holder", "ledger", "show", str(book_of(tmp_path, run))]) == 0
    shown = capsys.readouterr().out
    assert f"runs: {run}" in shown
    assert "[/data]" in shown


@pytest.mark.parametrize("name", ["[/x]", "\x1b[2J", "a\nerror: b", "\udcff", "\u202ex"])
def test_an_error_stays_one_line(tmp_path, name, capsys):
    assert cli.run(["release", "verify", str(tmp_path / name)]) == 7
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert harmless(shown)


def test_json_for_programs_stays_json(capsys):
    emit_json({"a": ["\x1b\x7f\x9b\u202e\U000e0041", float("inf"), {"b": float("nan")}]})
    shown = capsys.readouterr().out
    assert harmless(shown)
    assert shown.isascii()
    assert json.loads(shown) == {"a": ["\x1b\x7f\x9b\u202e\U000e0041", None, {"b": None}]}


def test_nothing_else_of_the_package_prints():
    """One place escapes; what prints by itself would go around it."""
    package = Path(fedtranscribe.__file__).parent
    allowed = {Path(output.__file__), package / "results" / "stage_bars.py"}
    for path in package.rglob("*.py"):
        if path in allowed:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                assert node.module not in ("rich.console", "rich.table", "rich"), path
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "typer.echo"):
                told = ast.unparse(node.args[0])
                # None of these holds anything from outside.
                known = ("context.get_help()", "f'fedtranscribe {__version__}'", "TEMPLATE")
                assert told in known, path
