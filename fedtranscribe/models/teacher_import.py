"""Networks that were trained elsewhere, as teachers: what has to be declared, and what is checked.

The answers of M teachers are private because one record reaches one teacher. Where we train them,
`train_teachers` arranges that. Of networks that somebody brings it cannot be seen, so a person
declares it in a file beside them, `networks.toml`; the name goes with the teachers into every
result, statement and card.

Guarantee:
    That of an ensemble on disjoint shards, if what is declared is true. One network alone needs no
    declaration: its rows are bounded whatever it was trained on, and at a sound ε nothing can be
    learned from them.
"""

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from fedtranscribe.config import (
    LONGEST_NAME,
    OwnData,
    Settings,
    TeacherSettings,
    TranscribeSettings,
    build,
    is_name,
    read_toml,
)
from fedtranscribe.config.catalogue import DECLARATION, expect_declaration, expect_network
from fedtranscribe.config.facts import MOST_CHANNELS, MOST_SHARDS, MOST_SIDE
from fedtranscribe.config.run import MOST_CLASSES
from fedtranscribe.data import DataSplit
from fedtranscribe.data.registry import lasting
from fedtranscribe.errors import ConfigError, InvalidDataError, ModelMismatchError, StorageError
from fedtranscribe.files import read_bounded, unwritable
from fedtranscribe.models import Classifier, save
from fedtranscribe.models import build as build_network
from fedtranscribe.models.backbones import file_digest
from fedtranscribe.models.teacher_training import shard_file
from fedtranscribe.models.teachers import Imported, Manifest

TEMPLATE = f"""\
# {DECLARATION}: what you declare of the networks in this folder. Nothing here can be seen from
# the networks themselves, and the guarantee of every answer rests on it. Your name goes into the
# result, privacy.json and model card of every run that asks these networks.
declared_by = "J. Doe, Example Hospital"

# No record trained more than one of the networks. Where several records share an id (the images of
# one patient), all of them trained the same network.
disjoint = true

# What decided which network a record trained. "id": its persistent id alone, such as a hash of the
# patient's number. "index": its row number alone, such as a seeded permutation; then there is no
# figure for adding or removing a record. Shards that were balanced or stratified by label, or made
# in any other way that looks at other records, cannot be imported.
assigned_by = "id"

# Each network depends on its own shard and on public values alone: the same settings and number of
# steps for all, no early stopping or choice of a run by other shards' records, and a start from
# weights that never saw the private records.
own_shard_alone = true

architecture = "resnet18"   # the same for all
classes = 2
channels = 1                # of the records' images
size = 224                  # pixels a side of the records' images
# Of the records; their ledger is bound to it. Leave it out if you pass --data.
data_id = "clinic-scans"

# How many shards there were, if some stayed empty and so have no network here. It must be a number
# that was chosen beforehand.
# shards = 250

[[networks]]
file = "site-0.safetensors" # a state dict, .safetensors or .pt, in torchvision's layout or ours
ids = "site-0.txt"          # optional, one id a line: no id may be in two of the lists

[[networks]]
file = "site-1.pt"
ids = "site-1.txt"
"""

Progress = Callable[[int, int], None]


class _Network(Settings):
    file: str
    ids: str | None = None

    @field_validator("file", "ids")
    @classmethod
    def _inside(cls, name: str | None) -> str | None:
        if name is not None and (Path(name).is_absolute() or ".." in Path(name).parts or not name):
            raise ValueError("expected a path inside the folder of the networks")
        return name


class Declaration(Settings):
    """What somebody declares of a folder of networks; `TEMPLATE` explains every field."""

    declared_by: str = Field(min_length=1, max_length=LONGEST_NAME)
    disjoint: Literal[True]
    assigned_by: Literal["id", "index"]
    own_shard_alone: Literal[True]
    architecture: str
    classes: int = Field(ge=2, le=MOST_CLASSES)
    channels: int = Field(ge=1, le=MOST_CHANNELS)
    size: int = Field(ge=8, le=MOST_SIDE)
    data_id: str | None = None
    shards: Annotated[int | None, Field(ge=1, le=MOST_SHARDS)] = None
    networks: tuple[_Network, ...] = Field(min_length=1, max_length=MOST_SHARDS)

    @field_validator("declared_by", "data_id")
    @classmethod
    def _printable(cls, name: str | None) -> str | None:
        if name is not None and not is_name(name):
            raise ValueError(f"expected 1 to {LONGEST_NAME} printable characters")
        return name


@dataclass(frozen=True)
class ImportedNetworks:
    """Networks that may become teachers: files, and all that a manifest says of them."""

    files: tuple[Path, ...]  # one for each shard that is not empty
    manifest: Manifest  # of the teachers


def read_networks(
    folder: Path, split: DataSplit | None, settings: TranscribeSettings
) -> ImportedNetworks:
    """The networks in a folder, as its declaration describes them; no network is loaded yet."""
    expect_declaration(folder)
    declared = build(Declaration, read_toml(folder / DECLARATION))
    expect_network(declared.architecture)
    shards = declared.shards or len(declared.networks)
    if len(declared.networks) > shards:
        raise ConfigError(
            f"Expected at most shards={shards} networks in {folder / DECLARATION}, got "
            f"{len(declared.networks)}."
        )
    files = tuple(folder / network.file for network in declared.networks)
    _expect_different(files)
    compared = _expect_disjoint(folder, declared, split)
    if split is not None:
        _expect_records(folder, declared, split, compared)
    imported = Imported(
        declared_by=declared.declared_by,
        assigned_by=declared.assigned_by,
        ids_compared=compared,
    )
    data_id = declared.data_id if split is None else split.train.data_id
    if data_id is None:
        raise ConfigError(
            f"Expected data_id in {folder / DECLARATION}, or --data: the ledger is bound to it."
        )
    facts = (declared.classes, declared.channels, declared.size)
    positional = declared.assigned_by == "index" or (split is not None and split.train.positional)
    return ImportedNetworks(
        files,
        _manifest(
            declared.architecture,
            facts,
            shards,
            data_id,
            positional,
            None if split is None else split.train.ids_by,
            imported,
            settings,
        ),
    )


def one_network(path: Path, split: DataSplit, settings: TranscribeSettings) -> ImportedNetworks:
    """One network that was trained on all records, as an ensemble of one."""
    train = split.train
    assert settings.teacher is not None
    facts = (train.classes, train.channels, train.size)
    manifest = _manifest(
        settings.teacher,
        facts,
        1,
        train.data_id,
        train.positional,
        train.ids_by,
        Imported(),
        settings,
    )
    return ImportedNetworks((path,), manifest)


def import_networks(networks: ImportedNetworks, out: Path, progress: Progress) -> None:
    """Make a folder of teachers; it appears whole or not at all.

    Args:
        networks: from `read_networks` or `one_network`.
        out: the folder; absent or empty.
        progress: called with (networks done, networks in all).
    """
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise StorageError(f"{out} is not empty; choose another --out for the teachers.")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    except OSError as error:
        raise unwritable(out, error) from None
    try:
        for done, path in enumerate(networks.files):
            progress(done, len(networks.files))
            save(_load(path, networks.manifest), shard_file(partial, done))
        networks.manifest.save(partial)
        partial.replace(out)
    except OSError as error:
        raise unwritable(out, error) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    progress(len(networks.files), len(networks.files))


# ---------------------------------------------------------------- what is checked


def _expect_different(files: tuple[Path, ...]) -> None:
    """One network under two names would give each of its records two votes."""
    seen: dict[str, Path] = {}
    for path in files:
        digest = file_digest(path)
        if digest in seen:
            raise ConfigError(
                f"Expected different networks, {str(seen[digest])!r} and {str(path)!r} are the "
                "same: each of its records would count twice. List it once."
            )
        seen[digest] = path


def _expect_disjoint(folder: Path, declared: Declaration, split: DataSplit | None) -> bool:
    """Refuse an id in two lists; whether every network came with a list.

    Ids may name patients: messages name files and lines.
    """
    known = None if split is None else {*split.train.ids, *split.test.ids}
    seen: dict[str, str] = {}
    for network in declared.networks:
        if network.ids is None:
            continue
        for number, name in enumerate(_ids(folder / network.ids), 1):
            if seen.setdefault(name, network.file) != network.file:
                raise ConfigError(
                    f"Expected disjoint shards: the id in line {number} of {network.ids!r} is also "
                    f"in the list of {seen[name]!r}, so that a record reached two networks. Such "
                    "networks cannot be imported; train them again on disjoint shards."
                )
            if known is not None and name not in known:
                raise ConfigError(
                    f"Expected ids of the records in {network.ids!r}, line {number} is none of "
                    f"them; see --ids and --id-pattern."
                )
    return all(network.ids is not None for network in declared.networks)


def _ids(path: Path) -> list[str]:
    try:
        lines = read_bounded(path).decode("utf-8-sig").splitlines()
    except OSError as error:
        raise ConfigError(f"Cannot read the ids {path}: {error.strerror}.") from None
    except ValueError as error:
        raise InvalidDataError(f"{path} holds no ids, one a line in UTF-8: {error}.") from None
    return [line.strip() for line in lines if line.strip()]


def _expect_records(folder: Path, declared: Declaration, split: DataSplit, compared: bool) -> None:
    """Compare what is declared with the records."""
    train = split.train
    for name in ("data_id", "classes", "channels", "size"):
        declares, there = getattr(declared, name), getattr(train, name)
        if declares not in (None, there):
            raise ModelMismatchError(
                f"{folder / DECLARATION} declares {name}={declares!r}, the records have {there!r}; "
                "name the records that the networks were trained on, or correct it."
            )
    if declared.assigned_by == "index" and not compared and len({*train.ids}) < len(train):
        raise ConfigError(
            'Expected assigned_by="id", or lists of ids for all networks: several records share an '
            "id, and rows that were assigned one by one bring them to different networks."
        )


# ---------------------------------------------------------------- what is made


def _manifest(
    architecture: str,
    facts: tuple[int, int, int],
    shards: int,
    data_id: str,
    positional: bool,
    ids_made: str | None,
    imported: Imported,
    settings: TranscribeSettings,
) -> Manifest:
    classes, channels, size = facts
    return build(
        Manifest,
        {
            "architecture": architecture,
            "mode": "full",
            "classes": classes,
            "channels": channels,
            "size": size,
            "shards": shards,
            # Without a place, the records are named when the teachers are used.
            "data": lasting(settings.data or data_id),
            "data_root": str(settings.data_root.resolve()) if settings.data_root else None,
            "data_id": data_id,
            "record_ids": "positional" if positional else "persistent",
            "key": "",
            "seed": 0,
            "weights": None,
            "ids_made": ids_made,
            "own_data": settings.own_data if settings.data else OwnData(),
            "settings": TeacherSettings(),
            "imported": imported,
            "complete": True,
        },
    )


def _load(path: Path, manifest: Manifest) -> Classifier:
    m = manifest
    return build_network(m.architecture, m.classes, m.channels, m.size, weights=path).eval()
