"""Where a run's settings come from, and whether they fit data and folder."""

import secrets
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedtranscribe.config.base import Settings, build, read_toml
from fedtranscribe.config.catalogue import DATA_SETS, MEDMNIST, is_saved_dataset
from fedtranscribe.config.run import OwnData
from fedtranscribe.config.training import SynthesizeSettings
from fedtranscribe.errors import ConfigError, StorageError

Layers = tuple[dict[str, Any], dict[str, Any]]

NOISE_KEY = "private/noise.key"
"""Of the noise that a server adds, in the folder of its run."""


def layers(config: Path | None, out: Path | None, *, resume: bool, plan: bool = False) -> Layers:
    """Settings of the run that is resumed, and of the settings file."""
    if resume and out is None:
        raise ConfigError("Expected --out with --resume: it names the run to go on with.")
    stored: dict[str, Any] = {}
    if resume and out is not None:
        if not (out / "config.toml").exists():
            raise StorageError(f"No run in {out} to resume; leave out --resume to start one.")
        stored = read_toml(out / "config.toml")
        stored.pop("run", None)
    elif out is not None and not plan:
        expect_new_run(out)
    return stored, read_toml(config) if config is not None else {}


def expect_readable(spec: str, own: OwnData) -> None:
    """Refuse what is said about data of one kind where they are of another."""
    columns = {
        "--image-column": own.image_column,
        "--label-column": own.label_column,
        "--id-column": own.id_column,
    }
    saved = is_saved_dataset(Path(spec).expanduser())
    for option, column in columns.items():
        if column is not None and not saved and own.table is None:
            raise ConfigError(
                f"Expected no {option} for data={spec!r}: it is for a --table, and for folders "
                "that the package datasets has saved."
            )
    if own.split_column is not None and own.table is None:
        raise ConfigError(f"Expected --table with --split-column {own.split_column!r}.")
    named = spec in DATA_SETS or spec.startswith(MEDMNIST)
    if own.multilabel and named and not spec.startswith(f"{MEDMNIST}chestmnist"):
        raise ConfigError(
            f"Expected no --task multilabel for {spec!r}, whose images have one label each."
        )
    if own.table is not None and (named or saved or not Path(spec).expanduser().is_dir()):
        raise ConfigError(
            f"Expected no --table for data={spec!r}: it is for a folder of image files, in which "
            "its paths begin."
        )
    if own.channels is not None and (named or spec.endswith(".npz")):
        raise ConfigError(
            f"Expected no --channels for data={spec!r}: it is for image files. Arrays have the "
            "channels that they were saved with."
        )
    if spec in DATA_SETS and (own.ids is not None or own.id_pattern is not None):
        raise ConfigError(
            f"Expected no --ids or --id-pattern for {spec!r}, which has ids of its own."
        )


def expect_new_run(folder: Path) -> None:
    """Refuse a folder in which no run can begin.

    A key of noise alone is what is left of a run that was killed before it had a name.
    """
    key = folder / NOISE_KEY
    if (folder / "config.toml").exists():
        raise StorageError(
            f"{folder} holds another run; add --resume to go on with it, or choose another --out."
        )
    inside = list(folder.iterdir()) if folder.is_dir() else []
    if inside and not (inside == [key.parent] and list(key.parent.iterdir()) == [key]):
        raise StorageError(f"{folder} is not empty; choose another --out.")


def expect_outside(out: Path, data: str) -> None:
    """Refuse to write results between the records, where the next run would read them as data."""
    records = Path(data).expanduser()
    if (
        data not in DATA_SETS
        and records.is_dir()
        and out.resolve().is_relative_to(records.resolve())
    ):
        raise ConfigError(f"Expected --out {str(out)!r} outside of the data in {data!r}.")


def new_folder(name: str) -> Path:
    """The folder of a run that nobody has named: `runs/<name>-<date>-<time>-<8 random digits>`.

    The digits keep runs of the same second apart, and nothing is made before a run begins.
    """
    return Path("runs") / f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"


_TABLES = {
    name: frozenset(kind.model_fields)
    for name, field in SynthesizeSettings.model_fields.items()
    if isinstance(kind := field.annotation, type) and issubclass(kind, Settings)
}
_USUAL = SynthesizeSettings.model_fields["method"].default
_NO_MEANING = ("epsilon", "adjacency", "budget")


def synthesize_settings(
    named: Mapping[str, Any], configured: Mapping[str, Any], stored: Mapping[str, Any]
) -> SynthesizeSettings:
    """The settings of a run; an earlier argument wins over a later one."""
    method = str({"method": _USUAL, **stored, **configured, **named}["method"])
    alone, own = _apart(named, _table_of(method))
    if {**configured, **alone}.get("noise") is False:
        _expect_nothing_to_calibrate({**configured, **alone})
    sources = (stored, configured, alone)
    tables = {name: _merged(_table(source, name) for source in sources) for name in _TABLES}
    if own:
        tables[_table_of(method)] |= own
    return build(SynthesizeSettings, {**stored, **configured, **alone, **tables})


def _apart(named: Mapping[str, Any], own: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What was said for the run, and what for the table of its method."""
    allowed = _TABLES.get(own, frozenset())
    for table, names in _TABLES.items():
        for name in named:
            if name in names - allowed:
                raise ConfigError(
                    f"Expected {name}={named[name]} with --method {table.replace('_', '-')} only; "
                    "leave it out."
                )
    alone = {name: value for name, value in named.items() if name not in allowed}
    return alone, {name: value for name, value in named.items() if name in allowed}


def _table_of(method: str) -> str:
    return method.replace("-", "_")


def _table(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    table = values.get(name, {})
    if isinstance(table, Settings):
        return table.model_dump(exclude_unset=True)
    if not isinstance(table, Mapping):
        raise ConfigError(f"Expected {name}={table!r} as a table, [{name}].")
    return dict(table)


def _merged(tables: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {name: value for table in tables for name, value in table.items()}


def _expect_nothing_to_calibrate(named: Mapping[str, Any]) -> None:
    for name in _NO_MEANING:
        if name in named:
            raise ConfigError(
                f"Expected {name}={named[name]} or no noise, not both: without noise there is no "
                "guarantee. Leave one out."
            )
