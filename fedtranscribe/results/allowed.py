"""What a run's folder may hold outside `private/`, and why: the list, and the check of it.

Guarantee
    Outside `private/` a run writes what it was charged for and what was public from the start.
    Every writer of JSON passes its keys to `expect_allowed` first: a key that is not listed here
    with a reason is refused, and nothing is written. `metrics.json` needs no list: it holds what
    the type `Result` has a field for, and each field names its reason. Both speak of keys; that a
    value is what its key says is up to the code that works it out. Accuracies of single teachers
    and of ensembles are in neither, not even on benchmarks: they are functions of private records
    that nobody was charged for.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from fedtranscribe.config import OF_RUNS, Mark, marked, read_toml
from fedtranscribe.errors import PrivacyError


class Why(StrEnum):
    """Why something may stand outside `private/`."""

    SETTING = "public setting"
    """Chosen, or declared public, before a record is looked at: counts, shapes, names."""
    COST = "privacy figure"
    """Follows from settings and mechanisms."""
    PROGRESS = "course of the run"
    """Steps, bytes, times, who answered, and texts that describe the run."""
    OUTPUT = "output of a mechanism"
    """An answer that was charged, or what follows from such answers and public values."""
    BENCHMARK = "benchmark's public test set"
    """A score of an output on held-out images that are public by declaration."""


Listed = Mapping[Why, str]
"""Keys by reason; those of objects in a list follow the list's. `*` is any name, `**` any tree."""

KEYS: Mapping[str, Listed] = {
    "progress.jsonl": {
        Why.COST: "epsilon",
        Why.PROGRESS: "time stage done total bytes",
        Why.OUTPUT: "student_loss generator_loss",
        Why.BENCHMARK: "accuracy",
    },
    "events.jsonl": {
        Why.SETTING: "holder",
        Why.COST: "mechanism rows costs.** release.mechanism release.rows release.costs.**",
    },
    "roster.json": {
        Why.SETTING: "*.name *.classes *.channels *.size *.shards *.positional_ids *.multilabel "
        "*.kinds *.noise *.rows_per_message *.rows_per_run *.dropouts *.colluders *.masks "
        "*.trainers *.records *.features *.shards_declared_by *.weights_declared_by",
    },
    "trainers.json": {Why.SETTING: "holders"},
    "checkpoints/secagg-keys.json": {Why.SETTING: "*.advert *.drawn"},
    "checkpoints/secagg-round.json": {
        Why.PROGRESS: "query vectors survivors signatures.*",
        Why.OUTPUT: "sent.*.* tags.*.* revealed.*.*",
    },
    "answers.json": {Why.COST: "*.noise_std", Why.OUTPUT: "*.values"},
    "error.json": {Why.PROGRESS: "error exit_code"},
    "evaluation.json": {
        Why.SETTING: "data samples seed fidelity.features fidelity.samples fidelity.real "
        "downstream.mean_sklearn_of",
        Why.PROGRESS: "run real date note downstream.untrained.*",
        Why.OUTPUT: "synthetic.class_shares synthetic.confidence fidelity.inception_score "
        "fidelity.inception_score_std downstream.selection.*.*",
        Why.BENCHMARK: "student.accuracy student.balanced student.per_class student.confusion "
        "student.operating_point.* "
        "student.findings.* downstream.* fidelity.fid fidelity.precision fidelity.recall",
    },
    "audit.json": {
        Why.SETTING: "data seed",
        Why.COST: "epsilon delta unit adjacency confidence risk.** findings.epsilon findings.delta "
        "findings.unit findings.adjacency findings.confidence",
        Why.PROGRESS: "run date withheld checks.check checks.ok checks.words findings.attack "
        "findings.trials findings.rows_played findings.rows_of_the_run",
        Why.OUTPUT: "sound findings.lower_bound findings.contradicts findings.words",
    },
    "release/privacy.json": {
        Why.SETTING: "method unit answers trust teachers holders shards.* data public_data "
        "public_weights.* declared_teachers.*.* class_names threshold.*",
        Why.COST: "epsilon delta adjacency accountant composition sound.* units.* published.** "
        "noise_std noise_mode private stamp events.holder events.release.mechanism "
        "events.release.rows events.release.costs.** ledger.booked ledger.limit.* "
        "ledger.accountant audits.epsilon audits.delta audits.unit audits.adjacency "
        "audits.confidence",
        Why.PROGRESS: "schema fedtranscribe run rows data_dependent_choices.* audits.attack "
        "audits.trials audits.rows_played audits.rows_of_the_run",
        Why.OUTPUT: "files.* audits.lower_bound audits.contradicts audits.words",
    },
}
"""What each file may hold."""

FILES: Mapping[Why, str] = {
    Why.SETTING: "config.toml",
    Why.PROGRESS: "superlink.log",
    Why.OUTPUT: "student.safetensors generator.safetensors denoiser.safetensors images.png "
    "samples.npz samples.png inversion.png checkpoints/state.pt checkpoints/answer.pt "
    "checkpoints/generator.pt checkpoints/secagg-vectors.bin "
    "release/student.safetensors release/generator.safetensors release/denoiser.safetensors "
    "release/student.onnx release/generator.onnx",
    Why.BENCHMARK: "accuracy.png tensorboard/events.out.tfevents.* report.html release/card.md",
}
"""Other files, each with the reason for the most that it may tell."""

Key = tuple[str, ...]


def why(listed: Listed, key: Sequence[str]) -> Why | None:
    """Why a key may stand in a file; None where it may not.

    Args:
        listed: what the file may hold.
        key: names from the outermost object inwards.
    """
    for reason, patterns in listed.items():
        if any(_fits(key, pattern.split(".")) for pattern in patterns.split()):
            return reason
    return None


def expect_allowed(file: str, content: Mapping[str, Any]) -> None:
    """Refuse to write a key that is not listed.

    Args:
        file: one of `KEYS`.
        content: what would be written there, as JSON has it.

    Raises:
        PrivacyError: names the first such key.
    """
    for key in keys_of(content):
        if why(KEYS[file], key) is None:
            raise PrivacyError(
                f"{file} must not hold {'.'.join(key)!r}: it is not on the list of what may leave "
                "private/, so nothing was written. This is a fault of fedtranscribe; report it."
            )


def keys_of(content: Any, above: Key = ()) -> Iterator[Key]:
    """Paths to all values that are no objects; null and empty lists are passed over."""
    if isinstance(content, Mapping):
        for name, value in content.items():
            yield from keys_of(value, (*above, str(name)))
    elif isinstance(content, list | tuple) and any(isinstance(one, Mapping) for one in content):
        for one in content:
            yield from keys_of(one, above)
    elif content not in (None, [], ()):
        yield above


def why_file(path: str) -> Why | None:
    """Why a file of another kind than those of `KEYS` may stand there; None where it may not.

    Args:
        path: within the run's folder, with `/`.
    """
    for reason, names in FILES.items():
        if any(fnmatchcase(path, name) for name in names.split()):
            return reason
    return None


def _fits(key: Sequence[str], pattern: Sequence[str]) -> bool:
    if pattern[-1] == "**":
        pattern = [*pattern[:-1], *["*"] * max(1, len(key) - len(pattern) + 1)]
    return len(key) == len(pattern) and all(
        part in ("*", name) for name, part in zip(key, pattern, strict=True)
    )


def public_settings(settings: Mapping[str, Any]) -> dict[str, str]:
    """Settings as a flat table of texts, `table.name` for those in tables.

    Args:
        settings: of a run, resolved.
    """
    untold = marked(Mark.UNTOLD, *OF_RUNS)
    return dict(_flat({name: settings[name] for name in settings if name not in untold}))


def run_and_settings(folder: Path) -> tuple[str, dict[str, str]]:
    """The name of the run in a folder, and what may be shown of its settings.

    Raises:
        ConfigError: there is no run.
    """
    stored = read_toml(folder / "config.toml")
    return str(stored.pop("run", "")), public_settings(stored)


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, str) and ("/" in value or "\\" in value):
            yield f"{prefix}{name}", "a file of the holder"
        else:
            yield f"{prefix}{name}", f"{value:g}" if isinstance(value, float) else str(value)
