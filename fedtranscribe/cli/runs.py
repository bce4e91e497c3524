"""What commands that make a run share: names are checked first, and its privacy is shown last."""

from collections.abc import Callable
from pathlib import Path

from fedtranscribe.cli.output import emit_json, say, show_table
from fedtranscribe.config import PUBLIC_SHAPES, SynthesizeSettings, TranscribeSettings
from fedtranscribe.config.catalogue import expect_data, expect_network, expect_root, expect_teachers
from fedtranscribe.config.sources import expect_readable
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.results.decisions import Confusion
from fedtranscribe.results.parts import LedgerFacts, StatedGuarantee
from fedtranscribe.results.progress import check_tracking
from fedtranscribe.results.result import Result, ScoredResult
from fedtranscribe.results.stage_bars import StageBars

# Classes of a table that a terminal can show.
_MOST_LINES = 12

_UNITS = {
    Unit.RECORD: "an image and its label, or all images of one id",
    Unit.HOLDER: "all records and teachers of one data holder",
}
_CHANGES = {
    Adjacency.ZERO_OUT: "becomes empty",
    Adjacency.REPLACE: "becomes any other",
    Adjacency.ADD_REMOVE: "is added or removed",
}


def expect_known(
    settings: TranscribeSettings | SynthesizeSettings,
    *,
    network: str | None = None,
    teacher: str | None = None,
    public: str | None = None,
) -> None:
    """Refuse what names, paths and settings show, before torch or any data are loaded.

    Args:
        settings: of the run; their data may be None.
        network: an architecture.
        teacher: an architecture, or a folder of teachers, which may say where the data lie.
        public: images.
    """
    check_tracking(settings)
    folder = Path(teacher) if teacher is not None and Path(teacher).is_dir() else None
    if folder is not None:
        expect_teachers(folder)
    for name in (network, None if folder else teacher):
        if name is not None:
            expect_network(name)
    if settings.data is not None:
        expect_readable(settings.data, settings.own_data)
    for name in (settings.data, public):
        if name not in (None, "none", PUBLIC_SHAPES):
            expect_data(name, table=name == settings.data and settings.table is not None)
            if folder is None:
                expect_root(name, settings.data_root, settings.download)


def expect_finished(*runs: Path) -> None:
    """Refuse folders without a finished run before torch is loaded."""
    for run in runs:
        Result.read(run)


def print_plan(make: Callable[..., StatedGuarantee], bars: StageBars, *, as_json: bool) -> None:
    """Print what a run would ask and cost; with `--json` its privacy as `metrics.json` has it."""
    lines: list[str] = []
    cost = make(say=lines.append if as_json else bars.say)
    if as_json:
        emit_json({**cost.to_json(), "plan": lines})
    else:
        bars.say("nothing was spent; leave out --plan to run it")


def show_confusion(scored: ScoredResult) -> None:
    """Print what the student takes for what; nothing where nobody looked."""
    found = scored.confusion or scored.findings
    if found is None:
        return
    names = scored.result.class_names or tuple(map(str, range(found.classes)))
    note = ", NOT PRIVATE" if {"confusion", "findings"} & {*scored.not_private} else ""
    rows = found.figures(names)
    show_table(f"For comparison{note}", ("figure", "value"), rows, right=("value",))
    if isinstance(found, Confusion) and found.classes <= _MOST_LINES:
        table = [(name, *map(str, row)) for name, row in zip(names, found.counts, strict=True)]
        show_table(f"Confusion table{note}", ("true class", *names), table, right=names)
        say("held-out images; columns: the class that the student predicts", "dim")


def show_privacy(result: Result) -> None:
    """Print what a finished run cost; only sound figures are called ε."""
    declared, published = result.guarantee, result.guarantee.published
    stated = f"ε, sound ({declared.unit}, {declared.adjacency}, δ = {declared.delta:g})"
    rows = [(stated, _figure(declared.epsilon))]
    for adjacency, value in declared.sound.items():
        if adjacency is not declared.adjacency:
            rows.append((f"ε, sound ({declared.unit}, {adjacency})", _figure(value)))
    if published is not None:
        rows.append(("published formula, no guarantee", _figure(published.epsilon)))
    if result.ledger is not None:
        rows += _ledger_rows(result.ledger)
    show_table("Privacy", ("figure", "value"), rows, right=("value",))
    say(_legend(declared), "dim")
    if (used := result.features) is not None:
        say(
            f"Features of {used.network} at {used.side} pixels, weights SHA-256 {used.sha256}: "
            f"{used.declared_by} declares that they never saw the private records.",
            "dim",
        )
    if (declared := result.declared_teachers) is not None:
        for by in declared.shards.values():
            say(f"{by} declares that the imported teachers learned from disjoint shards.", "dim")
        for by in declared.weights.values():
            say(f"{by} declares that the teachers' first weights saw no private record.", "dim")
    if published is not None:
        say(f"Why the published figure is no guarantee: {published.reason}", "dim")


def _legend(stated: StatedGuarantee) -> str:
    """What the terms of the table mean."""
    hidden = (f"{name} (it {_CHANGES[name]})" for name in {stated.adjacency: 0, **stated.sound})
    return (
        f"sound: computed from what was released; {stated.unit}: {_UNITS[stated.unit]}; "
        f"what ε hides: {', '.join(hidden)}"
    )


def _ledger_rows(ledger: LedgerFacts) -> list[tuple[str, str]]:
    """The limit is the ε of all runs; what is booked would be, had nobody chosen when to stop."""
    limit, booked = ledger.limit, ledger.booked
    words = "none: the ledger answered without a fixed limit"
    if limit is not None:
        words = f"{_figure(limit.epsilon)} ({limit.unit}, {limit.adjacency})"
    return [
        ("limit of the ledger: ε of all runs on these data", words),
        ("booked by all runs on these data so far", "-" if booked is None else f"{booked:.4g}"),
    ]


def _figure(value: float | None) -> str:
    return "infinite: no guarantee" if value is None else f"{value:.4g}"
