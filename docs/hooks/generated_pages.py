"""What no one writes by hand: the version; command line, settings, changelog, measured figures.

They are made from the program itself and from files outside of docs/ while the site is built, so
that they cannot fall behind. Links from a page to a file of `benchmarks/results/`, right for
readers of the repository, are turned to the page that the site has of it.
"""

import os
import posixpath
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from fedtranscribe import __version__
from fedtranscribe import config as settings

with warnings.catch_warnings():
    # The typer that flwr allows imports names that click is about to drop.
    warnings.filterwarnings("ignore", "'click", DeprecationWarning)
    import typer

    from fedtranscribe.cli import app

ROOT = Path(__file__).parents[2]
RESULTS = "benchmarks/results"
FIGURES = "figures"

_TO_RESULTS = re.compile(rf"(?:\.\./)+{RESULTS}/([\w-]+\.md)")

_CLI = """# Command line

Made from the program itself. `fedtranscribe COMMAND --help` says the same.

Commands end with 0, or with the code of the kind of mistake that was made
([errors](api/errors.md)); then standard error has one line that names the value and the fix.
"""

_SETTINGS = """# Settings

What settings files may say: `--config FILE` of `transcribe`, `synthesize`, `simulate` and
`teacher train`, and the configuration of a Flower app, which writes `-` for `_`. Options of the
command line win over the file. Made from the program itself; a wrong name or value is an error that
names it.
"""


def on_config(config: MkDocsConfig) -> None:
    """Say the version, and put the figures into the navigation, before the changelog."""
    if os.environ.get("MIKE_DOCS_VERSION"):
        # One of several versions, as `make docs-version` builds it: the theme lets readers choose.
        config.extra["version"] = {"provider": "mike", "default": "latest"}
    else:
        config.site_name = f"{config.site_name} {__version__}"
    assert config.nav is not None
    config.nav.insert(-1, {"Figures": [f"{FIGURES}/{path.name}" for path in _results()]})


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the made pages to those that were written."""
    made = {
        "reference/cli.md": cli_page(),
        "reference/settings.md": settings_page(),
        "changelog.md": (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"),
    }
    for result in _results():
        made[f"{FIGURES}/{result.name}"] = result.read_text(encoding="utf-8")
    for path, content in made.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to measured figures from the repository's place to the site's."""
    folder = posixpath.dirname(page.file.src_uri) or "."
    return _TO_RESULTS.sub(
        lambda link: posixpath.relpath(f"{FIGURES}/{link[1]}", folder),
        markdown,
    )


def _results() -> list[Path]:
    return sorted((ROOT / RESULTS).glob("*.md"))


# ---------------------------------------------------------------- command line


def cli_page() -> str:
    """Every command with its help, arguments and options, as Markdown."""
    root = typer.main.get_command(app)
    context = typer.Context(root, info_name="fedtranscribe")  # pyright: ignore[reportArgumentType]
    return "\n".join([_CLI, *_commands(root, context, 1)])


def _commands(command: Any, context: Any, depth: int) -> Iterator[str]:
    for name, below in command.commands.items():
        inner = type(context)(below, info_name=name, parent=context)
        # A group that only chooses a command is a heading; its commands say the rest.
        yield f"{'#' * min(depth + 1, 4)} {_words(inner)}\n"
        if hasattr(below, "commands"):
            if depth == 1:
                yield f"{_prose(below.help or '')}\n"
            yield from _commands(below, inner, depth + 1)
        else:
            yield _command(below, inner)


def _words(context: Any) -> str:
    """What is typed; the command that `release RUN` leaves out is left out here too."""
    return context.command_path.removeprefix("fedtranscribe ").removesuffix(" RUN")


def _command(command: Any, context: Any) -> str:
    usage = command.get_usage(context).removeprefix("Usage: ").replace("release RUN [", "release [")
    parts = [f"```text\n{usage}\n```", *_help(command.help or "")]
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option"]
    rows = [(p.make_metavar(context), p.help or "") for p in arguments]
    rows += [record for p in options if (record := p.get_help_record(context))]
    parts.append(_table(("", ""), [(f"`{name}`", _prose(words)) for name, words in rows]))
    return "\n\n".join(parts) + "\n"


def _help(text: str) -> Iterator[str]:
    """Paragraphs; what click must not wrap is a listing."""
    for paragraph in text.strip().split("\n\n"):
        if paragraph.startswith("\b"):
            title, *lines = paragraph.removeprefix("\b").strip("\n").split("\n")
            block = "\n".join(line.removeprefix("  ") for line in lines)
            yield f"{title}\n\n```bash\n{block}\n```"
        else:
            yield _prose(paragraph)


# ---------------------------------------------------------------- settings


def settings_page() -> str:
    """Every class of settings as a table: name, kind, default, meaning."""
    kinds = [
        kind
        for kind in vars(settings).values()
        if isinstance(kind, type) and issubclass(kind, settings.Settings) and kind.model_fields
    ]
    parts = [_SETTINGS]
    for kind in kinds:
        inherited = [base for base in kind.__bases__ if getattr(base, "model_fields", None)]
        own = {
            name: field
            for name, field in kind.model_fields.items()
            if not any(name in base.model_fields for base in inherited)
        }
        parts.append(f"## {kind.__name__}\n\n{_prose(kind.__doc__ or '')}\n")
        if inherited:
            links = ", ".join(f"[{b.__name__}](#{b.__name__.lower()})" for b in inherited)
            parts.append(f"With those of {links}.\n")
        rows = [(f"`{n}`", _kind(f.annotation), _default(f), _about(f)) for n, f in own.items()]
        parts.append(_table(("setting", "kind", "default", "meaning"), rows) + "\n")
    return "\n".join(parts)


def _kind(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(annotation))
    if get_origin(annotation) in (Union, UnionType):
        return ", ".join(_kind(part) for part in get_args(annotation) if part is not type(None))
    name = annotation.__name__
    return f"table [{name}](#{name.lower()})" if hasattr(annotation, "model_fields") else name


def _default(field: FieldInfo) -> str:
    if isinstance(field.default, settings.Settings):
        return ""
    return "" if field.default in (None, PydanticUndefined) else f"`{_toml(field.default)}`"


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _about(field: FieldInfo) -> str:
    """The description and the bounds that pydantic keeps as metadata."""
    signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
    bounds = [
        f"{sign} {getattr(limit, name):g}"
        for limit in field.metadata
        for name, sign in signs.items()
        if hasattr(limit, name)
    ]
    allowed = f"Allowed: {', '.join(bounds)}." if bounds else ""
    return _prose(f"{field.description or ''} {allowed}")


# ---------------------------------------------------------------- Markdown


def _prose(text: str) -> str:
    """Plain text as Markdown: `code` stays code, signs that Markdown takes for its own do not."""
    parts = " ".join(text.split()).split("`")
    # Every other part stands between two backquotes.
    parts[::2] = [
        re.sub(r"[\\*_<>\[\]|]", lambda sign: f"&#{ord(sign[0])};", p) for p in parts[::2]
    ]
    return "`".join(parts)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
