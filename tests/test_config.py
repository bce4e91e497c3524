from pathlib import Path

import pytest

from fedtranscribe.config import DpsdSettings, TranscribeSettings, build, read_toml
from fedtranscribe.errors import ConfigError


def test_nested_settings_are_built_and_checked():
    built = build(TranscribeSettings, {"epsilon": 3, "dpsd": {"redraw": 0.5}})
    assert built.epsilon == 3.0
    assert built.dpsd.redraw == 0.5
    with pytest.raises(ConfigError, match=r"dpsd.redraw=1.5"):
        build(TranscribeSettings, {"dpsd": {"redraw": 1.5}})


def test_unknown_names_are_errors():
    with pytest.raises(ConfigError, match=r"Unknown setting dpsd.redrawn"):
        build(TranscribeSettings, {"dpsd": {"redrawn": 1.0}})


def test_settings_cannot_be_changed_afterwards():
    with pytest.raises(ValueError, match="frozen"):
        DpsdSettings().rows = 5  # pyright: ignore[reportAttributeAccessIssue]


def test_broken_toml_is_one_error(tmp_path: Path):
    path = tmp_path / "settings.toml"
    path.write_text("epsilon = = 3")
    with pytest.raises(ConfigError, match="not valid TOML"):
        read_toml(path)
    with pytest.raises(ConfigError, match="Cannot read"):
        read_toml(tmp_path / "absent.toml")
