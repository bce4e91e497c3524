import json
from typing import Any

import pytest

from fedtranscribe.cli import run

PROMISE = (
    "privacy account dp-promise --dimensions 784 --records 60000 --boundary 900 --phase1-batch 32 "
    "--phase1-epochs 3 --phase2-batch 4096 --phase2-epochs 50 --sigma 7"
)
SAD = "privacy account dp-sad --records 60000 --batch 128 --epochs 100"
SMALL = "--dimensions 64 --records 1000 --phase2-batch 100 --phase2-epochs 5"
PHASE1 = "--phase1-batch 20 --phase1-epochs 2"


def answer(capsys: pytest.CaptureFixture[str], command: str) -> dict[str, Any]:
    assert run([*command.split(), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refusal(capsys: pytest.CaptureFixture[str], command: str) -> str:
    assert run(command.split()) == 2
    return capsys.readouterr().err


def test_dp_promise_contract(capsys: pytest.CaptureFixture[str]) -> None:
    result = answer(capsys, PROMISE)
    assert result["sound"] == {
        "zero-out": pytest.approx(1.006, rel=0.005),
        "replace": pytest.approx(2.13, rel=0.005),
    }
    assert result["phase1"] == {
        "zero-out": pytest.approx(0.106, rel=0.005),
        "replace": pytest.approx(0.201, rel=0.005),
    }
    assert result["published"]["epsilon"] == pytest.approx(1.005, rel=0.002)
    assert result["epsilon"] == result["sound"]["zero-out"]
    assert result["steps"] == 5_625 + 733


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("--sigma 1.9", 0.977),
        ("--sigma 0.6", 9.48),
        ("--sigma 2.54 --teacher dp", 1.0),
        ("--sigma 0.66 --teacher dp", 10.0),
    ],
)
def test_dp_sad_contract(more: str, expected: float, capsys: pytest.CaptureFixture[str]) -> None:
    result = answer(capsys, f"{SAD} {more} --adjacency add-remove")
    assert result["epsilon"] == pytest.approx(expected, rel=0.01)
    assert result["epsilon"] == result["sound"]["add-remove"]
    assert set(result["sound"]) == {"add-remove", "zero-out", "replace"}
    assert len(result["published"]["reason"]) > 20
    assert "warning" not in result


def test_diluted_noise_is_said_aloud(capsys: pytest.CaptureFixture[str]) -> None:
    result = answer(capsys, f"{SAD} --sigma 1.9 --adjacency add-remove --dilution 500")
    assert result["epsilon"] > 1e6
    assert "epsilon exceeds 1e6" in result["warning"]
    assert "sensitivity" in result["warning"]
    assert run([*f"{SAD} --sigma 1.9 --dilution 500".split()]) == 0
    assert "exceeds 1e6" in capsys.readouterr().out


def test_three_ways_to_have_no_phase_one(capsys: pytest.CaptureFixture[str]) -> None:
    plans = [
        f"--boundary 1001 {PHASE1}",
        "--boundary 1001",
        f"--boundary 900 --no-phase1 {PHASE1}",
    ]
    results = [
        answer(capsys, f"privacy account dp-promise {SMALL} {plan} --sigma 2") for plan in plans
    ]
    assert results[0] == results[1] == results[2]
    assert results[0]["phase1"] == dict.fromkeys(("zero-out", "replace", "add-remove"), 0.0)
    assert results[0]["sound"] == results[0]["phase2"]


def test_cached_images(capsys: pytest.CaptureFixture[str]) -> None:
    command = f"privacy account dp-promise {SMALL} --boundary 980 --sigma 2 --cached"
    result = answer(capsys, command)
    assert result == answer(capsys, command)
    assert result["phase1"]["replace"] > result["phase1"]["zero-out"] > 0


@pytest.mark.long
@pytest.mark.parametrize("by", ["sound", "published"])
def test_calibrate_then_account(by: str, capsys: pytest.CaptureFixture[str]) -> None:
    plan = f"{SMALL} --boundary 960 {PHASE1}"
    found = answer(capsys, f"privacy calibrate dp-promise {plan} --epsilon 2 --calibrate-by {by}")
    figure = found["epsilon"] if by == "sound" else found["published"]["epsilon"]
    assert 2 * (1 - 1e-3) <= figure <= 2
    again = answer(capsys, f"privacy account dp-promise {plan} --sigma {found['sigma']!r}")
    assert again == found
    sad = "--records 1000 --batch 100 --epochs 5 --adjacency replace"
    found = answer(capsys, f"privacy calibrate dp-sad {sad} --epsilon 2 --calibrate-by {by}")
    figure = found["epsilon"] if by == "sound" else found["published"]["epsilon"]
    assert 2 * (1 - 1e-3) <= figure <= 2
    assert answer(capsys, f"privacy account dp-sad {sad} --sigma {found['sigma']!r}") == found


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (f"account dp-promise {SMALL} --boundary 0 {PHASE1} --sigma 2", "boundary=0 between 1"),
        (f"account dp-promise {SMALL} --boundary 1002 {PHASE1} --sigma 2", "boundary=1002"),
        (f"account dp-promise {SMALL} --boundary 900 --sigma 2", "batch and epochs for Phase I"),
        (
            f"account dp-promise {SMALL} --boundary 900 --phase1-batch 1001 --phase1-epochs 1 "
            f"--sigma 2",
            "phase1_batch=1001 <= 1000 records",
        ),
        (
            f"calibrate dp-promise {SMALL} --boundary 700 {PHASE1} --epsilon 1",
            "Phase I alone costs",
        ),
        ("account dp-sad --records 10 --batch 11 --epochs 1 --sigma 1", "batch=11 <= 10 records"),
        ("account dp-sad --records 10 --batch 5 --epochs 1 --sigma 0", "sigma=0.0 > 0"),
    ],
)
def test_mistakes_are_one_line(
    command: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = refusal(capsys, f"privacy {command}")
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("kind", ["account", "calibrate"])
@pytest.mark.parametrize("method", ["dp-promise", "dp-sad"])
def test_every_help_has_an_example(
    kind: str, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["privacy", kind, method, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"fedtranscribe privacy {kind} {method}" in shown


def test_add_remove_is_refused_where_images_are_released(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run([*PROMISE.split(), "--adjacency", "add-remove"]) == 5
    assert "number of images changes" in capsys.readouterr().err
