"""Tests of the API keep their ledgers to themselves: data in memory leave a marker in the home."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Home and working directory of one test."""
    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.delenv("FEDTRANSCRIBE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(place))
    monkeypatch.chdir(place)
    return place
