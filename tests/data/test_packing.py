from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedtranscribe.cli import run
from fedtranscribe.config import OwnData, TranscribeSettings
from fedtranscribe.data import load
from fedtranscribe.data.array_folders import pack
from fedtranscribe.data.registry import ledger_of
from fedtranscribe.errors import ConfigError, InvalidDataError, SecondLedgerError
from fedtranscribe.results.run_directory import RunDirectory


def picture(path: Path, seed: int, size: tuple[int, int] = (8, 8)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def pictures(folder: Path, *parts: str) -> Path:
    for part in parts or ("",):
        for i in range(24):
            picture(
                folder
                / part
                / ("cat" if i % 3 else "dog")
                / f"p{i // 2 + 12 * (part == 'test')}_{i}.png",
                i,
            )
    return folder


@pytest.mark.parametrize("parts", [(), ("train", "test")])
def test_the_records_stay_what_they_were(tmp_path: Path, parts: tuple[str, ...]):
    source, own = pictures(tmp_path / "pets", *parts), OwnData(id_pattern=r"(p\d+)_")
    pack(source, tmp_path / "packed", own)
    before, after = load(str(source), own=own), load(str(tmp_path / "packed"))
    for one, other in ((before.train, after.train), (before.test, after.test)):
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.labels, other.labels)
        assert list(one.ids) == list(other.ids)
        assert (one.data_id, one.class_names) == (other.data_id, other.class_names)


def test_nothing_is_written_between_the_pictures(tmp_path: Path):
    source = pictures(tmp_path / "pets")
    with pytest.raises(ConfigError, match=r"pets/a/b' outside of the data"):
        pack(source, source / "a" / "b")
    settings = TranscribeSettings(data=str(source))
    with pytest.raises(ConfigError, match=r"pets/run' outside of the data"):
        RunDirectory.create(source / "run", settings)
    assert {path.name for path in source.iterdir()} == {"cat", "dog"}


def test_records_have_one_ledger_packed_or_not(tmp_path: Path):
    source = pictures(tmp_path / "pets")
    ledger = pack(source, tmp_path / "b" / "packed")
    packed = load(str(tmp_path / "b" / "packed")).train
    assert ledger_of(packed, "packed", None).path == ledger
    with pytest.raises(SecondLedgerError, match="says"):
        ledger_of(load(str(source)).train, "pets", None)


def test_a_ledger_that_is_there_goes_on(tmp_path: Path):
    source = pictures(tmp_path / "pets")
    place = ledger_of(load(str(source)).train, "pets", None)
    place.path.write_text("spent")
    assert pack(source, tmp_path / "b" / "packed") == place.path
    packed = load(str(tmp_path / "b" / "packed")).train
    with pytest.raises(SecondLedgerError, match="Name the first one"):
        ledger_of(packed, "packed", None)
    assert ledger_of(packed, "packed", place.path).path == place.path


def test_a_ledger_in_another_place_is_named(tmp_path: Path):
    """As that of a holder's service is; two copies have one ledger with it."""
    source, home = pictures(tmp_path / "pets"), tmp_path / "book"
    home.mkdir()
    ledger = home / "ledger.sqlite"
    first = ["data", "pack", str(source), "--out", str(tmp_path / "packed")]
    assert run([*first, "--ledger", str(ledger)]) == 0
    with pytest.raises(SecondLedgerError, match="Put it back"):
        pack(source, tmp_path / "again")
    assert not (tmp_path / "again").exists()
    assert pack(source, tmp_path / "again", ledger=ledger) == ledger
    for name in ("packed", "again"):
        copy = load(str(tmp_path / name)).train
        assert ledger_of(copy, str(tmp_path / name), ledger).path == ledger


@pytest.mark.parametrize("pattern", [None, r"(p\d+)_", r"([^/]*png)$"])
def test_a_copy_says_how_its_ids_were_made(tmp_path: Path, pattern: str | None):
    """Else a ledger would take the copy's records for others, or others for the copy's."""
    source, own = pictures(tmp_path / "pets"), OwnData(id_pattern=pattern)
    pack(source, tmp_path / "packed", own)
    packed, first = load(str(tmp_path / "packed")).train, load(str(source), own=own).train
    assert packed.ids_by == first.ids_by == (f"id_pattern {pattern}" if pattern else "paths")
    assert packed.subset([0]).ids_by == first.ids_by


def test_pictures_of_several_sizes_leave_nothing(tmp_path: Path):
    source = pictures(tmp_path / "pets")
    picture(source / "dog" / "z.png", 0, (9, 9))
    with pytest.raises(InvalidDataError, match="--image-size"):
        pack(source, tmp_path / "packed")
    assert [path.name for path in tmp_path.iterdir()] == ["pets"]
    pack(source, tmp_path / "packed", OwnData(image_size=8))
    with pytest.raises(ConfigError, match="new folder"):
        pack(source, tmp_path / "packed")


def test_mixed_pictures_are_packed_as_they_are_read(tmp_path: Path):
    source = pictures(tmp_path / "pets")
    (source / "cat" / "a.txt").write_text("?")
    notes: list[str] = []
    with pytest.raises(InvalidDataError, match="--allow-skipped"):
        pack(source, tmp_path / "packed")
    Image.new("RGB", (8, 8), (7, 8, 7)).save(source / "cat" / "0.png")
    with pytest.raises(InvalidDataError, match=r"0\.png' is colour"):
        pack(source, tmp_path / "other", OwnData(allow_skipped=True))
    Image.new("RGB", (8, 8), (7, 7, 7)).save(source / "cat" / "0.png")
    pack(source, tmp_path / "packed", OwnData(allow_skipped=True), say=notes.append)
    assert notes == [f"left out of '{source}': 1 .txt"]
    assert torch.equal(
        load(str(tmp_path / "packed")).train.images,
        load(str(source), own=OwnData(allow_skipped=True)).train.images,
    )


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    source = pictures(tmp_path / "pets")
    assert run(["data", "pack", str(source), "--out", str(tmp_path / "packed"), "--json"]) == 0
    assert '"ledger"' in capsys.readouterr().out
    assert len(load(str(tmp_path / "packed")).train) > 0
    assert run(["data", "pack", str(tmp_path / "no"), "--out", str(tmp_path / "x")]) != 0
