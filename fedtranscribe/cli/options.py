"""Options that several commands share, and those made from the fields of settings."""

import inspect
from collections.abc import Callable, Collection, Mapping
from functools import wraps
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic.fields import FieldInfo
from typer.core import TyperCommand

from fedtranscribe.config import (
    FederationSettings,
    Mark,
    Metavar,
    RunOptions,
    Settings,
    StudentSettings,
    Topic,
)
from fedtranscribe.privacy.units import Adjacency, NoiseMode, RowAnswer, Unit

Command = Callable[..., None]

_KINDS = (bool, int, float, str, Path)


def settings_options(
    kind: type[Settings],
    *,
    only: Collection[str] | None = None,
    flags: Mapping[str, str] | None = None,
) -> Callable[[Command], Command]:
    """Give a command the options of some settings, between what it requires and its own options.

    The command's first parameter receives what was typed, by field. A parameter with a field's name
    takes the place of that field's option. Fields of tables are options, too; one that is in two
    tables is one option.
    """

    def decorate(function: Command) -> Command:
        _, *own = inspect.signature(function, eval_str=True).parameters.values()
        every = _fields(kind)
        wanted = set(every if only is None else only) - {each.name for each in own}
        fields = {name: every[name] for name in sorted(wanted, key=[*every].index)}

        @wraps(function)
        def command(**values: Any) -> None:
            chosen = {name: values.pop(name) for name in fields}
            function({n: value for n, value in chosen.items() if value is not None}, **values)

        alone = _in_one_table(kind)
        options = [
            _option(name, field, (flags or {}).get(name), alone.get(name))
            for name, field in fields.items()
        ]
        mine = [parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in own]
        first = [parameter for parameter in mine if parameter.default is parameter.empty]
        parameters = [*first, *options, *(each for each in mine if each not in first)]
        command.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        return command

    return decorate


def about(kind: type[Settings], name: str) -> str:
    """What a field means, in the sentence that its option shows; for options written by hand."""
    return kind.model_fields[name].description or ""


def table_options(kind: type[Settings]) -> dict[str, frozenset[str]]:
    """The options of each table of some settings, by the table's name."""
    return {
        name: frozenset(_own_fields(table))
        for name, field in kind.model_fields.items()
        if not _has_no_option(field) and (table := _table(field)) is not None
    }


class GroupedCommand(TyperCommand):
    """A command whose help shows options under the headings of their topics."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then options without a heading, then the topics in their order."""
        sections: dict[str, list[tuple[str, str]]] = {
            title: [] for title in ("Arguments", "Options", *Topic)
        }
        for parameter in self.params:
            record = parameter.get_help_record(ctx)
            usual = "Arguments" if parameter.param_type_name == "argument" else "Options"
            if record is not None:
                sections[getattr(parameter, "rich_help_panel", None) or usual].append(record)
        panels = {title: rows for title, rows in sections.items() if rows}
        if help_option := self.get_help_option(ctx):
            panels[[*panels][-1]] += filter(None, [help_option.get_help_record(ctx)])
        for title, rows in panels.items():
            with formatter.section(title):
                formatter.write_dl(rows)


# ---------------------------------------------------------------- fields


def _fields(kind: type[Settings]) -> dict[str, FieldInfo]:
    """What can be an option, those of tables included; a run's own settings before inherited."""
    found: dict[str, FieldInfo] = {}
    for name, field in _own_fields(kind).items():
        table = _table(field)
        for inner, meant in (_own_fields(table) if table else {name: field}).items():
            found.setdefault(inner, meant)
    return found


def _own_fields(kind: type[Settings]) -> dict[str, FieldInfo]:
    names = (name for base in kind.__mro__ for name in inspect.get_annotations(base))
    ordered = {name: kind.model_fields[name] for name in names if name in kind.model_fields}
    return {name: field for name, field in ordered.items() if not _has_no_option(field)}


def _in_one_table(kind: type[Settings]) -> dict[str, str]:
    """The table of each option that only one table has."""
    tables = table_options(kind)
    return {
        name: table
        for table, names in tables.items()
        for name in names
        if sum(name in others for others in tables.values()) == 1
    }


def _table(field: FieldInfo) -> type[Settings] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Settings) else None


def _has_no_option(field: FieldInfo) -> bool:
    return any(isinstance(mark, Mark) and Mark.NO_OPTION in mark for mark in field.metadata)


# ---------------------------------------------------------------- one option


def _option(name: str, field: FieldInfo, flag: str | None, table: str | None) -> inspect.Parameter:
    kind, choices = _kind(field.annotation)
    topic = next((mark for mark in field.metadata if isinstance(mark, Topic)), None)
    spelling = flag or f"--{name.replace('_', '-')}"
    if kind is bool and flag is None and field.default is not False:
        spelling = f"{spelling}/--no-{name.replace('_', '-')}"
    option = typer.Option(
        spelling,
        help=_help(name, field, table),
        metavar=f"[{'|'.join(choices)}]" if choices else _form(field),
        rich_help_panel=topic and topic.value,
    )
    annotation = Annotated[kind | None, option]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


def _form(field: FieldInfo) -> str | None:
    return next((mark.words for mark in field.metadata if isinstance(mark, Metavar)), None)


def _kind(annotation: Any) -> tuple[type, tuple[str, ...]]:
    """The type that an option shows, and its choices; what is no plain type is read from a text."""
    parts = [annotation]
    if get_origin(annotation) in (Union, UnionType):
        parts = [part for part in get_args(annotation) if part is not NoneType]
    if len(parts) == 1 and parts[0] in _KINDS:
        return parts[0], ()
    if len(parts) == 1 and get_origin(parts[0]) is Literal:
        return str, get_args(parts[0])
    return str, ()


def _help(name: str, field: FieldInfo, table: str | None) -> str:
    words = field.description or ""
    if table is not None:
        # "S, first step" begins with a symbol, "Expected records" with a word.
        words = words[:1].lower() + words[1:] if words[1:2].islower() else words
        words = f"{table.replace('_', '-')}: {words}"
    default = _default(name, field.default)
    return f"{words}  [default: {default}]" if default else words


def _default(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return name.replace("_", "-") if value else ""
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) if isinstance(value, int | str) else ""


Epsilon = Annotated[float, typer.Option(help="Target ε of the whole plan.")]
Delta = Annotated[float, typer.Option(help=about(RunOptions, "delta"))]
Rows = Annotated[int, typer.Option(help="Rows (images that teachers label) in all.")]
Teachers = Annotated[int, typer.Option(help="Teachers of all holders, on disjoint records.")]
Holders = Annotated[int, typer.Option(help="Data holders, each with the same number of teachers.")]
UnitOption = Annotated[Unit, typer.Option("--unit", help=about(StudentSettings, "unit"))]
AdjacencyOption = Annotated[
    Adjacency, typer.Option("--adjacency", help="The change to a record that ε hides.")
]
Noise = Annotated[NoiseMode, typer.Option(help="Where the noise is added.")]
Dropouts = Annotated[
    int | None,
    typer.Option(
        help="secagg: holders that may miss from a sum.  [default: 1]",
    ),
]
Colluders = Annotated[
    int | None,
    typer.Option(help="secagg: holders that may side with the server.  [default: 1]"),
]
Classes = Annotated[int, typer.Option(help="Classes of the task: numbers in a row.")]
Answer = Annotated[RowAnswer, typer.Option(help="What a row of the answer holds.")]
Records = Annotated[int, typer.Option(help="Private records.")]
Batch = Annotated[int, typer.Option(help="Expected records per Poisson batch.")]
Epochs = Annotated[float, typer.Option(help="Passes over the records.")]
Json = Annotated[
    bool,
    typer.Option(
        "--json", help="Print one JSON object instead of a table.", rich_help_panel=Topic.RUN
    ),
]

# Of the calculators.
Sigma = Annotated[float, typer.Option(help="Noise multiplier.")]
Dimensions = Annotated[int, typer.Option(help="Numbers in an image, d.")]
Queries = Annotated[int, typer.Option(help="Labels in all.")]
SetSize = Annotated[int, typer.Option(help="Classes that a label is randomised over.")]
LabelEpsilon = Annotated[float, typer.Option(help="ε of one randomised label.")]

# Of runs.
Out = Annotated[
    Path | None, typer.Option(help=about(StudentSettings, "out"), rich_help_panel=Topic.RUN)
]
SettingsFile = Annotated[
    Path | None, typer.Option(help="TOML file with settings.", rich_help_panel=Topic.RUN)
]
Resume = Annotated[
    bool,
    typer.Option("--resume", help=about(FederationSettings, "resume"), rich_help_panel=Topic.RUN),
]
Force = Annotated[
    bool,
    typer.Option("--force", help=about(FederationSettings, "force"), rich_help_panel=Topic.RUN),
]
Plan = Annotated[
    bool,
    typer.Option(
        "--plan",
        help="Print what the run would ask and cost, and stop: nothing is spent or written.",
        rich_help_panel=Topic.RUN,
    ),
]

# Of what is done with finished runs.
Runs = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of finished runs.")]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")]


def group(purpose: str) -> typer.Typer:
    """A group of commands that shows its help when no command is named."""
    app = typer.Typer(
        help=purpose,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        invoke_without_command=True,
    )

    @app.callback(help=purpose)
    def _show_help(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            typer.echo(context.get_help())

    return app
