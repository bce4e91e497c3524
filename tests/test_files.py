from pathlib import Path

import pytest

from fedtranscribe.errors import StorageError
from fedtranscribe.files import write_atomically


def test_content_is_replaced_and_no_scrap_is_left(tmp_path: Path):
    path = tmp_path / "new" / "file"
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert list(path.parent.iterdir()) == [path]


def test_a_failure_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_in_the_way_of_a_folder_is_named(tmp_path: Path):
    (tmp_path / "way").write_text("in the way")
    with pytest.raises(StorageError, match="way"):
        write_atomically(tmp_path / "way" / "file", b"x")
