import pytest

from fedtranscribe.errors import StorageError
from fedtranscribe.rounds.round_state import VectorFile

NAMES = ["a", "b", "c"]


def test_vectors_come_back_in_any_order_and_after_a_restart(tmp_path):
    path = tmp_path / "vectors"
    vectors = VectorFile(path, NAMES, 4, ())
    for name in ("c", "a"):
        vectors.put(name, name.encode() * 4)
    vectors.sync()
    again = VectorFile(path, NAMES, 4, ["a", "c"])
    for each in (vectors, again):
        assert dict(each) == {"a": b"aaaa", "c": b"cccc"}
        assert len(each) == 2
        with pytest.raises(KeyError):
            each["b"]
    # What the next round has not stored yet is not there, whatever the file still holds.
    assert not VectorFile(path, NAMES, 4, ())


def test_a_file_that_was_cut_or_is_gone_gives_an_error(tmp_path):
    path = tmp_path / "vectors"
    vectors = VectorFile(path, NAMES, 4, ())
    vectors.put("b", b"bbbb")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StorageError, match="damaged"):
        vectors["b"]
    path.unlink()
    with pytest.raises(StorageError, match="Cannot read"):
        vectors["b"]
    with pytest.raises(StorageError):
        VectorFile(tmp_path / "none" / "vectors", NAMES, 4, ()).put("a", b"aaaa")
