"""Settings of a synthesis out of what was said in several places.

Each method has its own table, [dp_promise] or [dp_sad]. Options and keyword arguments may leave it
out: they go to the table of the method that trains.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from fedtranscribe.config.base import Settings, build
from fedtranscribe.config.training import SynthesizeSettings
from fedtranscribe.errors import ConfigError

_TABLES = {
    name: frozenset(kind.model_fields)
    for name, field in SynthesizeSettings.model_fields.items()
    if isinstance(kind := field.annotation, type) and issubclass(kind, Settings)
}
_USUAL = SynthesizeSettings.model_fields["method"].default
_NO_MEANING = ("epsilon", "adjacency", "budget")


def synthesize_settings(
    said: Mapping[str, Any], given: Mapping[str, Any], started: Mapping[str, Any]
) -> SynthesizeSettings:
    """The settings of a run; an earlier argument wins over a later one.

    Args:
        said: options of the command line, or keyword arguments. Those of a method's table may stand
            without it.
        given: a settings file.
        started: the settings of the run that is resumed.

    Raises:
        ConfigError: a wrong name or value, a setting of another method, or ε without noise.
    """
    method = str({"method": _USUAL, **started, **given, **said}["method"])
    alone, own = _apart(said, _table_of(method))
    if {**given, **alone}.get("noise") is False:
        _expect_nothing_to_calibrate({**given, **alone})
    sources = (started, given, alone)
    tables = {name: _merged(_table(source, name) for source in sources) for name in _TABLES}
    if own:
        tables[_table_of(method)] |= own
    return build(SynthesizeSettings, {**started, **given, **alone, **tables})


def _apart(said: Mapping[str, Any], own: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What was said for the run, and what for the table of its method.

    Raises:
        ConfigError: a setting belongs to another method.
    """
    allowed = _TABLES.get(own, frozenset())
    for table, names in _TABLES.items():
        for name in said:
            if name in names - allowed:
                raise ConfigError(
                    f"Expected {name}={said[name]} with --method {table.replace('_', '-')} only; "
                    "leave it out."
                )
    alone = {name: value for name, value in said.items() if name not in allowed}
    return alone, {name: value for name, value in said.items() if name in allowed}


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


def _expect_nothing_to_calibrate(said: Mapping[str, Any]) -> None:
    for name in _NO_MEANING:
        if name in said:
            raise ConfigError(
                f"Expected {name}={said[name]} or no noise, not both: without noise there is no "
                "guarantee. Leave one out."
            )
