"""Python on the pages runs and prints what it says; command lines name real commands."""

import contextlib
import io
import re
import shlex
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import doc_pages as pages
import numpy as np
import pytest
import typer

from fedtranscribe.cli import app
from fedtranscribe.config import TranscribeSettings
from fedtranscribe.errors import ConfigError
from fedtranscribe.releases import make_release
from fedtranscribe.runs.preparation import prepare
from fedtranscribe.runs.transcription import transcribe
from tests.conftest import TINY_DPSD, TINY_TEACHERS

WITH_PYTHON = [
    page for page in pages.PAGES if pages.blocks(page, "python") and page not in pages.FOLLOWED
]
WITH_COMMANDS = [*pages.PAGES, *pages.READMES]

# Folders that a page's commands have made before its Python is run.
RELEASES = {
    "release.md": "runs/scans",
    "tutorials/first-transcription.md": "runs/first",
    "tutorials/privacy-card.md": "runs/first",
}
_USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[2]
_SHELL = re.compile(r"\$(?:\{?\w+\}?)")


def name(page: Path) -> str:
    inside = pages.DOCS in page.parents
    return str(page.relative_to(pages.DOCS if inside else pages.ROOT))


# ---------------------------------------------------------------- Python


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory) -> Path:
    """A run with its release, for pages that read one; as small as can be."""
    folder = tmp_path_factory.mktemp("run")
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 3
    images = rng.integers(0, 80, (60, 28, 28)) + 60 * labels[:, None, None]
    ids = np.array([f"patient-{i}" for i in range(60)])
    facts = {"labels": labels, "ids": ids, "classes": 3}
    np.savez(folder / "scans.npz", images=images.astype(np.uint8), **facts)
    settings = TranscribeSettings(
        data=str(folder / "scans.npz"),
        teacher="cnn-small",
        student="cnn-small",
        shards=20,
        rows=40,
        device="cpu",
        ledger=folder / "ledger.sqlite",
        dpsd=TINY_DPSD,
        teachers=TINY_TEACHERS,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDTRANSCRIBE_HOME", str(folder / "home"))
        # The export is slow, and no page's Python opens it.
        patch.setattr("fedtranscribe.releases.writing.export_onnx", lambda student: None)
        transcribe(prepare(settings), folder / "run", force=True)
        make_release(folder / "run")
    return folder / "run"


def as_on_one_machine(app: Any, chosen: Any, federation: Any, show: Any, say: Any) -> Path:
    """The run of an app as one holder's, without Flower; its settings were checked before."""
    settings = TranscribeSettings(
        data=chosen["data"], epsilon=chosen["epsilon"], descent_rounds=0, with_generator=False
    )
    transcribe(prepare(settings), Path(chosen["out"]))
    return Path(chosen["out"])


@pytest.mark.parametrize(
    "page",
    [
        # Five runs.
        pytest.param(page, marks=pytest.mark.long if page.name == "python.md" else ())
        for page in WITH_PYTHON
    ],
    ids=name,
)
def test_the_python_of_a_page_runs_and_prints_what_it_says(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
):
    monkeypatch.chdir(tmp_path)
    # Data in memory leave a marker in the home.
    monkeypatch.setenv("HOME", str(tmp_path))
    # A simulation takes minutes: the notebook on two holders runs one.
    monkeypatch.setattr("fedtranscribe.api.run_app", as_on_one_machine)
    if name(page) in RELEASES:
        wanted = tmp_path / RELEASES[name(page)]
        shutil.copytree(request.getfixturevalue("finished_run"), wanted)
    namespace: dict[str, Any] = {"__name__": name(page)}
    for block in pages.blocks(page, "python"):
        # Blank lines in front, so that a traceback names the page's own line.
        code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)
        expected = pages.expected_output(block.text)
        if expected:
            assert printed.getvalue().splitlines() == expected, f"{name(page)}:{block.line}"


def test_a_wrong_figure_on_a_page_is_noticed():
    code = 'for x in (1, 2):\n    print(x)\n# 1\n# 2\nprint("a")  # b\n# aside\n'
    assert pages.expected_output(code) == ["1", "2", "b", "aside"]
    assert pages.expected_output("x = 1  # one\n# aside\n") == []


# ---------------------------------------------------------------- commands


def parse(command: Any, words: list[str], parent: Any = None) -> None:
    """Take a command line apart as the program does, without running anything.

    Raises:
        click's UsageError: no such command or option, a value of the wrong kind, or one missing.
    """
    context = command.make_context(command.name, words, parent=parent)
    if hasattr(command, "commands"):
        rest = [*context._protected_args, *context.args]
        if rest:
            _, below, left = command.resolve_command(context, rest)
            parse(below, left, context)


@cache
def root() -> Any:
    return typer.main.get_command(app)


def words_of(line: str) -> list[str]:
    """As a shell would split them: comments and a last `&` off, variables as some text."""
    return shlex.split(_SHELL.sub("value", line.removesuffix("&")), comments=True)[1:]


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=name)
def test_command_lines_name_commands_and_options_that_exist(page: Path):
    for number, line in pages.commands(page):
        try:
            # A file that the reader writes is not there.
            with contextlib.suppress(ConfigError):
                parse(root(), words_of(line))
        except _USAGE_ERROR as error:
            pytest.fail(f"{name(page)}:{number}: {line}: {error.format_message()}")  # type: ignore[attr-defined]


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=name)
def test_commands_in_running_text_exist_too(page: Path):
    for line in pages.mentioned(page):
        command, words = root(), line.replace("…", "").split()[1:]
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        options = {option for p in command.params for option in (*p.opts, *p.secondary_opts)}
        commands_below = getattr(command, "commands", {})
        if command.name == "release":
            options |= {o for c in commands_below.values() for p in c.params for o in p.opts}
        elif commands_below and words:
            alternatives = set(words[0].split("|"))
            assert alternatives <= set(commands_below) | {"--help"}, f"{name(page)}: {line}"
        unknown = {word for word in words if word.startswith("--")} - options - {"--help"}
        assert not unknown, f"{name(page)}: {line}: {', '.join(unknown)}"


def test_a_command_that_does_not_exist_is_noticed():
    for line in (
        "fedtranscribe transcribe --nosuch 1",
        "fedtranscribe nosuch",
        "fedtranscribe holder ledger prove ledger.sqlite",
        "fedtranscribe sample runs/a",  # --num is missing
    ):
        with pytest.raises(_USAGE_ERROR):
            parse(root(), words_of(line))
    parse(root(), words_of("fedtranscribe release runs/a --choice 'the better one'  # a comment"))
