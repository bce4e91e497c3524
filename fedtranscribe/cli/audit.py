"""`fedtranscribe audit`: finished runs attacked, and `fedtranscribe plant`: canaries for a run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedtranscribe.cli.options import Json, Runs, settings_options
from fedtranscribe.cli.output import emit_json, say, show_table
from fedtranscribe.cli.runs import expect_finished
from fedtranscribe.config import OwnData, RunOptions, Topic, build
from fedtranscribe.config.catalogue import expect_data, expect_root
from fedtranscribe.config.evaluation import AuditSettings, CanaryKind
from fedtranscribe.config.sources import expect_readable
from fedtranscribe.results.stage_bars import StageBars

if TYPE_CHECKING:
    from fedtranscribe.evaluation.audit import Audit

_EXAMPLES = """Attack finished runs and check their ledgers: does anything contradict ε?

\b
Examples:
  fedtranscribe audit runs/demo                                # a few minutes
  fedtranscribe audit runs/demo --attacks game,loss            # seconds
  fedtranscribe audit runs/a runs/b --records 500
  fedtranscribe audit runs/planted --attacks canaries --canaries planted/canaries.npz

Every attack gives a lower bound on ε, shown with the ε that the run claims; all bounds of a run
hold together with the confidence that you ask for. Exit code 5 if a bound exceeds what is claimed,
or if ledger, events or teachers do not fit. Figures go into audit.json; those that rest on private
records into private/audit.json only. A failed attack proves nothing.
"""

_PLANT = """Add canaries (made-up images) to private records, to audit a run with.

\b
Examples:
  fedtranscribe plant digits --out planted --canaries 500
  fedtranscribe transcribe --data planted/planted.npz --out runs/planted
  fedtranscribe audit runs/planted --attacks canaries --canaries planted/canaries.npz

Both files are as private as your data, and canaries.npz is a secret until the run is over. The
planted set keeps its data id; pass the ledger of the original as `--ledger`.
"""


@settings_options(AuditSettings)
def audit_command(typed: dict[str, Any], runs: Runs, as_json: Json = False) -> None:
    """Run it; the help text is `_EXAMPLES`."""
    settings = build(AuditSettings, typed)
    expect_finished(*runs)

    from fedtranscribe.evaluation.audit import audit
    from fedtranscribe.evaluation.findings import expect_sound
    from fedtranscribe.runs.finished import FinishedRun

    opened = [FinishedRun.open(path) for path in runs]
    audits = []
    with StageBars() as bars:
        for run in opened:
            prefix = f"{run.path.name}: " if len(opened) > 1 else ""
            audits.append(audit(run, settings, bars.named(prefix)))
    if as_json:
        rows = [done.to_json(public=False) for done in audits]
        whole = rows[0] if len(rows) == 1 else rows
        emit_json(whole)
    else:
        for done in audits:
            show(done)
    # After all figures, so that none is lost by the mistake that they show.
    for done in audits:
        expect_sound(done.findings, done.checks)


audit_command.__doc__ = _EXAMPLES


@settings_options(RunOptions, only=(*OwnData.model_fields, "data_root"))
def plant_command(
    typed: dict[str, Any],
    data: Annotated[str, typer.Argument(metavar="DATA", help="As --data of transcribe.")],
    out: Annotated[Path, typer.Option(help="Folder for planted.npz and canaries.npz.")],
    count: Annotated[
        int, typer.Option("--canaries", help="Number of canaries; about half of them are planted.")
    ] = 500,
    kind: Annotated[
        CanaryKind, typer.Option(help="What a canary looks like.")
    ] = CanaryKind.PATTERN,
    seed: Annotated[
        int,
        typer.Option(
            help="Seed of the canaries' images; never of the coins.", rich_help_panel=Topic.RUN
        ),
    ] = 0,
) -> None:
    """Run it; the help text is `_PLANT`."""
    settings = build(RunOptions, typed)
    expect_readable(data, settings.own_data)
    expect_data(data, table=settings.table is not None)
    expect_root(data, settings.data_root)

    from fedtranscribe.data import load
    from fedtranscribe.evaluation.canaries import plant, save_planted

    split = load(data, settings.data_root, own=settings.own_data)
    for note in split.notes:
        say(note)
    planted, canaries = plant(split.train, count, kind, seed=seed)
    save_planted(split, planted, canaries, out)
    say(
        f"Planted: about half of {count:,} canaries among {len(split.train):,} records: {out}. "
        "Keep canaries.npz secret until the run is over."
    )


plant_command.__doc__ = _PLANT


def show(done: "Audit") -> None:
    """Print bounds beside ε, checks, and ε in words; private findings under their stamp."""
    run = done.run
    private = [finding for finding in done.findings if finding.private]
    rows = []
    for finding in done.findings:
        claimed = finding.claim.epsilon
        rows.append(
            (
                finding.attack,
                f"{finding.lower:.3g}" + (" CONTRADICTS" if finding.contradicts else ""),
                "no guarantee" if claimed is None else f"{claimed:.3g}",
                f"{finding.confidence:g}",
                f"{finding.words}{' NOT PRIVATE.' if finding in private else ''}",
            )
        )
    for check in done.checks:
        verdict = "not tried" if check.ok is None else "ok" if check.ok else "not ok"
        rows.append((check.name, verdict, "", "", check.words))
    columns = ("attack", "ε at least", "ε claimed", "confidence", "what was found")
    show_table(f"Audit of {run.path}", columns, rows, lines=True)
    if done.risk is not None:
        say(done.risk.words)
    if private:
        from fedtranscribe.evaluation.audit import STAMP

        say(f"{', '.join(f.attack for f in private)}: {STAMP}", "bold red")
