"""`fedtranscribe release RUN` makes a release, `verify` checks one, `push` sends it to a hub."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fedtranscribe.cli.options import Json, Run
from fedtranscribe.cli.output import emit, say, say_path, show_table, warn
from fedtranscribe.cli.runs import expect_finished
from fedtranscribe.config.catalogue import expect_release, release_in
from fedtranscribe.errors import ConfigError, PrivacyError
from fedtranscribe.text import expect_repository

_PURPOSE = "Hand a finished run over in a form that others can use and check."
_MAKE, _VERIFY, _PUSH = "RUN", "verify", "push"

_EXAMPLES = """Hand a finished run over in a form that others can use and check.

\b
Examples:
  fedtranscribe release runs/scans                    # into runs/scans/release
  fedtranscribe release runs/scans --out scans-student
  fedtranscribe release runs/scans --threshold 0.37 --chosen-on "public test images of …"
  fedtranscribe release runs/a --stamp-not-private --choice "better of two runs on our scans"
  fedtranscribe release verify scans-student          # complete, and is its ε right?
  fedtranscribe release push runs/scans OWNER/NAME    # to the Hugging Face hub: what would be sent
  fedtranscribe release ./verify                      # a run whose folder is called verify

Networks, ONNX, model card and privacy.json go into one folder; open it with fedtranscribe.load.
A run that is not private is released only with a stamp that says so.
"""

_VERIFY_HELP = """Check a release: files, networks, every ε from its events, the card.

\b
Examples:
  fedtranscribe release verify runs/scans/release
  fedtranscribe release verify scans-student --json

Exit code 0 only if all checks are passed. It proves that the release is complete and its
arithmetic right, not who made it.
"""

_PUSH_HELP = """Push a release to the Hugging Face hub; without --yes, show what would be sent.

\b
Examples:
  fedtranscribe release push runs/scans example/scans-student          # nothing is sent
  fedtranscribe release push runs/scans example/scans-student --yes
  fedtranscribe release push scans-student example/scans-student --public --yes

The release is verified first. Nothing is sent but the files that its privacy.json lists,
privacy.json itself, and the card as README.md. The repository is created if it is not there, and is
private unless you pass --public. Log in with `hf auth login`, or set HF_TOKEN.
"""


class _RunFirst(TyperGroup):
    """`release RUN`, `release verify DIR` and so on: what names no command goes to the first."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Name the command that was left out; without anything, show the help."""
        if not args or args[0] not in (_VERIFY, _PUSH):
            args = [_MAKE, *(args or ["--help"])]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        """The command that was left out is not shown in usage lines either."""
        name, command, rest = super().resolve_command(ctx, args)
        return ("" if name == _MAKE else name), command, rest


release_app = typer.Typer(
    cls=_RunFirst,
    help=_PURPOSE,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@release_app.command(_MAKE, help=_EXAMPLES)
def make(
    run: Run,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the release; RUN/release if left out.")
    ] = None,
    choice: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WORDS",
            help="Something chosen by looking at private data without charging it; repeatable.",
        ),
    ] = None,
    stamp_not_private: Annotated[
        bool,
        typer.Option(
            "--stamp-not-private",
            help="Release a run that is not private, with a stamp that says so.",
        ),
    ] = False,
    threshold: Annotated[
        str | None,
        typer.Option(
            metavar="PROBABILITY",
            help="Two classes: the probability from which on the second one is named. Several "
            "labels per image: one for each class, separated by commas.",
        ),
    ] = None,
    chosen_on: Annotated[
        str | None,
        typer.Option(
            metavar="WORDS",
            help="The images that the threshold was chosen on; you declare that they are public.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a release."""
    expect_finished(run)

    from fedtranscribe.releases import make_release

    made = make_release(
        run,
        out,
        choices=choice or [],
        stamp_not_private=stamp_not_private,
        threshold=_probabilities(threshold),
        chosen_on=chosen_on,
    )
    statement = made.statement
    if statement.stamp is not None:
        warn(statement.stamp)
    if as_json:
        values = statement.model_dump(mode="json", by_alias=True)
        emit({"folder": str(made.folder), **values}, as_json=True, title="")
        return
    guarantee = f"{statement.unit.value}, {statement.adjacency.value}, δ = {statement.delta:g}"
    facts = {
        f"ε, sound ({guarantee})": (
            "infinite: no guarantee" if statement.epsilon is None else statement.epsilon
        ),
        "data": statement.data,
        "files": ", ".join([*statement.files, "privacy.json"]),
    }
    emit(facts, as_json=False, title="Release")
    for possible in statement.data_dependent_choices:
        if not possible.stated:
            say(
                f"With this release you state that nothing was chosen by: {possible.choice}. If "
                f"something was, name it by --choice.",
                "dim",
            )
    say_path("Release", made.folder)


def _probabilities(text: str | None) -> float | list[float] | None:
    """One number, or several with commas between them."""
    if text is None:
        return None
    try:
        found = [float(word) for word in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"Expected --threshold {text!r} as a probability, or one for each class with commas."
        ) from None
    return found[0] if len(found) == 1 else found


@release_app.command(_VERIFY, help=_VERIFY_HELP)
def verify_command(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder made by `fedtranscribe release`.")
    ],
    as_json: Json = False,
) -> None:
    """Check a release."""
    expect_release(folder)

    from fedtranscribe.releases import verify

    verification = verify(folder)
    if as_json:
        checks = [{"name": c.name, "ok": c.ok, "words": c.words} for c in verification.checks]
        emit({"ok": verification.ok, "checks": checks}, as_json=True, title="")
    else:
        rows = [(c.name, "ok" if c.ok else "not ok", c.words) for c in verification.checks]
        show_table("Verification", ("check", "", "what was found"), rows)
    failed = verification.first_failure
    if failed is not None:
        raise PrivacyError(f"The release in {folder} is rejected ({failed.name}): {failed.words}.")


@release_app.command(_PUSH, help=_PUSH_HELP)
def push_command(
    folder: Annotated[
        Path, typer.Argument(metavar="RUN|DIR", help="A run that has a release, or a release.")
    ],
    repository: Annotated[
        str, typer.Argument(metavar="OWNER/NAME", help="Repository on the Hugging Face hub.")
    ],
    yes: Annotated[
        bool, typer.Option("--yes", "--push", help="Push; without it nothing is sent.")
    ] = False,
    private: Annotated[
        bool, typer.Option("--private/--public", help="Who may see the repository.")
    ] = True,
    revision: Annotated[
        str, typer.Option(metavar="BRANCH", help="Created if it is not there.")
    ] = "main",
    message: Annotated[
        str | None, typer.Option(metavar="WORDS", help="Of the commit; names the run if left out.")
    ] = None,
    stamp_not_private: Annotated[
        bool,
        typer.Option("--stamp-not-private", help="Push what is stamped as not private."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Push a release."""
    expect_repository(repository)
    folder = release_in(folder)

    from fedtranscribe.releases import plan_push, push

    plan = plan_push(
        folder,
        repository,
        private=private,
        revision=revision,
        message=message,
        stamp_not_private=stamp_not_private,
    )
    if plan.stamp is not None:
        warn(plan.stamp)
    sizes = {name: len(content) for name, content in plan.files.items()}
    commit = push(plan) if yes else None
    if as_json:
        values = {
            "repository": plan.repository,
            "private": plan.private,
            "revision": plan.revision,
            "message": plan.message,
            "files": sizes,
            "card": dict(plan.metadata),
            "pushed": yes,
            "commit": commit,
        }
        emit(values, as_json=True, title="")
        return
    title = "Pushed" if yes else "Would be pushed"
    rows = [(name, f"{size:,}") for name, size in sizes.items()]
    show_table(title, ("file", "bytes"), rows, right=("bytes",))
    show_table("The card's metadata", (), [(k, str(v)) for k, v in plan.metadata.items()])
    visible = "private" if plan.private else "PUBLIC"
    say(f"repository {plan.repository} ({visible}), branch {plan.revision}: {plan.message}")
    if commit is None:
        say("Nothing was sent; add --yes to push.", "bold")
    else:
        say_path("Commit", commit)
