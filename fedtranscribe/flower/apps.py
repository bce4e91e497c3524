"""Our Flower apps as folders, and from Flower's run-config to settings."""

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fedtranscribe.config import FederationSettings, build, read_toml
from fedtranscribe.errors import ConfigError
from fedtranscribe.files import parse_toml

Scalar = bool | int | float | str

# A relative path means the caller's folder, which the app's processes need not share.
_PATHS = frozenset(
    name.replace("_", "-")
    for name, field in FederationSettings.model_fields.items()
    if Path in get_args(field.annotation)
)
_WANTED = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


@dataclass(frozen=True)
class App:
    """A Flower app."""

    name: str  # of its folder
    folder: Path  # what `flwr run` is given
    # its run-config, flat, keys as Flower spells them (`data-root`, `dpsd.rows`)
    defaults: dict[str, Scalar]

    def settings(self, pairs: Iterable[str]) -> dict[str, Scalar]:
        """Check `key=value` texts against the app's defaults."""
        chosen: dict[str, Scalar] = {}
        wrong: list[str] = []
        for pair in pairs:
            name, equals, text = pair.partition("=")
            key = self._key(name)
            if not equals:
                wrong.append(f"Expected a setting like key=value, not {pair!r}")
            elif key is None:
                wrong.append(f"Unknown setting {name!r}{_close(name, self.defaults)}")
            elif key in chosen:
                wrong.append(f"{key} is given twice")
            else:
                try:
                    chosen[key] = _typed(text, self.defaults[key])
                except ValueError as error:
                    wrong.append(f"{key}={text}: expected {error}")
                else:
                    chosen[key] = _absolute(key, chosen[key])
        if wrong:
            known = ", ".join(sorted(self.defaults))
            raise ConfigError(f"{'; '.join(wrong)}. Settings of {self.name}: {known}.")
        return chosen

    def profile(self, path: Path, pairs: Iterable[str]) -> list[str]:
        """The `key=value` texts of a settings file, but for those that `pairs` settle."""
        named = {self._key(pair.partition("=")[0]) for pair in pairs} - {None}
        # A TOML value and its JSON are the same text for all that Flower's run-config can hold.
        settings = _flat(read_toml(path)).items()
        return [f"{k}={json.dumps(v)}" for k, v in settings if self._key(k) not in named]

    def _key(self, name: str) -> str | None:
        """The app's spelling of a name: `data_root` is `data-root`."""
        wanted = name.strip().replace("_", "-")
        return next((key for key in self.defaults if key.replace("_", "-") == wanted), None)


def is_packaged(app: App) -> bool:
    """Whether it is one of ours, whose settings are those of `FederationSettings`."""
    return app.folder in {folder.resolve() for folder in known_apps().values()}


def find_app(name: str) -> App:
    """Find an app by the path of its folder or by its name."""
    folder = Path(name).expanduser()
    known = known_apps()
    if not _is_app(folder):
        if name not in known:
            there = ", ".join(sorted(known)) or "none are installed"
            raise ConfigError(
                f"Unknown simulation {name!r}{_close(name, known)}. Expected the folder of a "
                f"Flower app, or one of: {there}."
            )
        folder = known[name]
    folder = folder.resolve()
    declared = read_toml(folder / "pyproject.toml")
    table = declared.get("tool", {}).get("flwr", {}).get("app", {}).get("config", {})
    defaults = _flat(table)
    if "out" not in defaults:
        raise ConfigError(
            f"Expected a setting 'out' in [tool.flwr.app.config] of {folder}: it says where the "
            "run is written. Use `flwr run` for apps of others."
        )
    return App(folder.name, folder, defaults)


def known_apps() -> dict[str, Path]:
    """Name to folder: those packaged in the wheel, or those beside the package in a checkout."""
    package = Path(__file__).resolve().parents[1]
    for home in (package / "simulations", package.parent / "simulations"):
        if home.is_dir():
            return {entry.name: entry for entry in sorted(home.iterdir()) if _is_app(entry)}
    return {}


def _is_app(folder: Path) -> bool:
    return (folder / "pyproject.toml").is_file()


def settings_from(run_config: Mapping[str, Any]) -> FederationSettings:
    """Settings out of Flower's flat run-config, whose keys look like `dpsd.round-rows`."""
    values: dict[str, Any] = {}
    for key, value in run_config.items():
        *tables, name = key.replace("-", "_").split(".")
        if _is_unset(_field(tables, name), value):
            continue
        inner = values
        for table in tables:
            inner = inner.setdefault(table, {})
        inner[name] = value
    return build(FederationSettings, values)


def _field(tables: list[str], name: str) -> FieldInfo | None:
    """What a setting may be; None where there is no such setting."""
    kind: type[BaseModel] = FederationSettings
    for table in tables:
        inner = kind.model_fields.get(table)
        found = None if inner is None else inner.annotation
        if not (isinstance(found, type) and issubclass(found, BaseModel)):
            return None
        kind = found
    return kind.model_fields.get(name)


def _is_unset(field: FieldInfo | None, value: Any) -> bool:
    """Whether a value stands for null, which run-config lacks: "", or 0 or -1 if out of bounds."""
    if field is None or type(None) not in get_args(field.annotation):
        return False
    bounds = [bound for bound in field.metadata if hasattr(bound, "ge") or hasattr(bound, "gt")]
    if isinstance(value, bool | str) or not bounds:
        return value == ""
    return value == (-1 if any(getattr(bound, "ge", None) == 0 for bound in bounds) else 0)


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Scalar]:
    flat: dict[str, Scalar] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _typed(text: str, default: Scalar) -> Scalar:
    """Read a value as TOML would, where a bare word is a text, and `.5` a number."""
    try:
        if isinstance(default, float):
            return float(text)
        value = parse_toml(f"value = {text}")["value"]
    except ValueError:
        value = text
    if isinstance(default, str):
        return value if isinstance(value, str) else text
    if type(value) is not type(default):
        raise ValueError(_WANTED[type(default)])
    return value


def _absolute(key: str, value: Scalar) -> Scalar:
    if key in _PATHS and value != "":
        return str(Path(str(value)).expanduser().absolute())
    return value


def _close(name: str, known: Iterable[str]) -> str:
    matches = difflib.get_close_matches(name.replace("_", "-"), list(known), n=2)
    matches = matches or difflib.get_close_matches(name, list(known), n=2)
    return f" (did you mean {' or '.join(matches)}?)" if matches else ""
