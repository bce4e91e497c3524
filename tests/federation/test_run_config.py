"""Flower's run-config, which has no null, as settings."""

import pytest

from fedtranscribe.errors import ConfigError
from fedtranscribe.flower.apps import settings_from


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[("rows", 0), ("top-k", 0), ("quorum", 0), ("dropouts", -1), ("colluders", -1)],
        *[("image-size", 0), ("bit-depth", 0), ("student", ""), ("data-root", ""), ("classes", "")],
        ("channels", 0),
    ],
)
def test_nothing_is_an_empty_text_or_a_number_out_of_bounds(key: str, value: object) -> None:
    assert getattr(settings_from({key: value}), key.replace("-", "_")) is None


def test_nothing_is_the_same_in_a_table() -> None:
    nothing = {"start": "", "start-share": 0.0, "dp-promise.boundary": 0, "dp-sad.teacher": ""}
    told = settings_from({f"training.{name}": value for name, value in nothing.items()}).training
    assert (told.start, told.start_share) == (None, None)
    assert (told.dp_promise.boundary, told.dp_sad.teacher) == (None, None)
    for bad in ({"training.dp-promise.bounds": 0}, {"training.dp-rose.copies": 0}):
        with pytest.raises(ConfigError, match=r"dp_promise\.bounds|dp_rose"):
            settings_from(bad)


def test_other_values_are_kept_or_refused() -> None:
    assert settings_from({"dropouts": 0, "dpsd.round-rows": 3}).dropouts == 0
    with pytest.raises(ConfigError, match="rows=-1"):
        settings_from({"rows": -1})
    with pytest.raises(ConfigError, match="holders=0"):
        settings_from({"holders": 0})


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("nois", "did you mean noise"),
        ("dpsd.round-row", "did you mean round_rows"),
        ("training.dp-promise.boundry", "did you mean boundary"),
        ("qqqq", "remove it or check its spelling"),
        ("dpsd.rows.more", "dpsd.rows"),
    ],
)
def test_an_unknown_setting_comes_with_a_close_name(key: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        settings_from({key: "x"})
