"""Progress, lines and errors as Python sees them."""

import logging

import pytest

from fedtranscribe.errors import ConfigError
from fedtranscribe.run import as_keywords, in_python, reported


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("pass --bit-depth 16.", "pass bit_depth 16."),
        ("add --resume, or choose another --out.", "add resume=True, or choose another out."),
        ("--mixture-share 0.3 with --no-generator", "mixture_share 0.3 with with_generator=False"),
        ("--stamp-not-private", "stamp_not_private=True"),
        ("--no-evaluate", "evaluate=False"),
        ("a dash -- and a--b stay, 1--2", "a dash -- and a--b stay, 1--2"),
    ],
)
def test_options_are_keyword_arguments(typed: str, said: str):
    assert as_keywords(typed) == said


def test_an_error_keeps_its_class_and_code():
    @in_python
    def refuse() -> None:
        raise ConfigError("Add --force.")

    with pytest.raises(ConfigError, match=r"^Add force=True\.$") as caught:
        refuse()
    assert caught.value.exit_code == 2


def test_lines_go_to_standard_error_or_to_the_log(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
):
    with reported(True) as (show, say):
        say("new ledger; --budget sets another limit")
        show("rounds", 1, 1)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "budget sets another" in captured.err
    assert "rounds: 1/1" in captured.err
    seen: list[tuple[str, int, int]] = []
    with (
        caplog.at_level(logging.INFO, "fedtranscribe"),
        reported(lambda *stage: seen.append(stage)) as (show, say),
    ):
        say("run folder: 100%d")
        show("rounds", 1, 2)
    with reported(False) as (show, say):
        show("rounds", 2, 2)
    assert seen == [("rounds", 1, 2)]
    assert caplog.messages == ["run folder: 100%d"]
    assert capsys.readouterr().err == ""
