import json
import subprocess
import sys
from typing import Any

import pytest

from fedtranscribe.cli import run

CALIBRATE = "privacy calibrate dpsd --epsilon 10 --rows 50000 --teachers 250"
HEADLINE = {"epsilon", "delta", "unit", "adjacency", "accountant", "sound", "published"}
COMMANDS = [
    CALIBRATE,
    "privacy calibrate label --epsilon 10 --queries 1000 --classes 10",
    "privacy account dpsd --noise-std 0.894 --rows 50000 --teachers 250",
    "privacy account label --epsilon0 0.1 --classes 10 --queries 1000",
    "privacy account dp-sgd --records 60000 --batch 128 --epochs 100 --sigma 1.9",
    "privacy published dpsd",
    "privacy published label --epsilon0 0.1 --classes 10 --queries 1000",
    "privacy published dp-sad",
    "privacy published dp-promise",
    "privacy forecast dpsd --epsilon 10 --teachers 250",
]


def answer(capsys: pytest.CaptureFixture[str], command: str) -> dict[str, Any]:
    assert run([*command.split(), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_answers_in_one_schema(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = answer(capsys, command)
    assert set(result) >= HEADLINE
    assert result["sound"][result["adjacency"]] == result["epsilon"]
    assert set(result["published"]) >= {"epsilon", "reason"}
    assert len(result["published"]["reason"]) > 20
    assert (result["delta"], result["unit"]) == (1e-5, "record")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_prints_a_table(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command.split()) == 0
    shown = capsys.readouterr().out
    assert "epsilon" in shown
    assert "published: reason" in shown


@pytest.mark.parametrize(
    ("more", "noise_std", "unit"),
    [
        ("", 0.894, "record"),
        ("--unit holder --holders 5", 44.7, "holder"),
        ("--holders 5 --noise secagg --dropouts 0 --colluders 1", 0.9466, "record"),
        ("--holders 5 --noise local", 2.00, "record"),
        ("--unit holder --holders 5 --noise local", 100.0, "holder"),
        ("--answer vote", 0.632, "record"),
    ],
)
def test_calibrate_dpsd(
    more: str, noise_std: float, unit: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = answer(capsys, f"{CALIBRATE} {more}")
    assert result["noise_std"] == pytest.approx(noise_std, rel=1e-3)
    assert result["signal"] == pytest.approx(50_000 / result["noise_std"] ** 2)
    assert result["epsilon"] == pytest.approx(10.0)
    assert (result["unit"], result["adjacency"]) == (unit, "zero-out")
    assert set(result["sound"]) == {"zero-out", "replace", "add-remove"}


def test_calibrate_dpsd_at_one(capsys: pytest.CaptureFixture[str]) -> None:
    command = "privacy calibrate dpsd --epsilon 1 --rows 10000 --teachers 1000"
    assert answer(capsys, command)["noise_std"] == pytest.approx(0.746, rel=1e-3)


@pytest.mark.parametrize("noise", ["central", "secagg", "local"])
def test_account_inverts_calibrate(noise: str, capsys: pytest.CaptureFixture[str]) -> None:
    more = f"--unit holder --holders 5 --noise {noise} --answer vote"
    more += " --dropouts 1 --colluders 2" if noise == "secagg" else ""
    std = answer(capsys, f"{CALIBRATE} {more}")["noise_std"]
    back = f"privacy account dpsd --noise-std {std!r} --rows 50000 --teachers 250 {more}"
    assert answer(capsys, back)["epsilon"] == pytest.approx(10.0, rel=1e-9)


@pytest.mark.parametrize(
    ("holders", "failures", "continuous", "booked"),
    [
        (5, "--dropouts 0 --colluders 1", 10.0, 10.73),
        (5, "--dropouts 1 --colluders 1", 1.0, 1.09),
        (3, "--dropouts 0 --colluders 1", 3.0, 3.25),
    ],
)
def test_masked_sums_cost_what_runs_book(
    holders: int, failures: str, continuous: float, booked: float, capsys
) -> None:
    """One Gaussian of that std would cost less than the shares of discrete noise that are added."""
    more = f"--rows 1000 --teachers {10 * holders} --holders {holders} --answer vote"
    one = answer(capsys, f"privacy calibrate dpsd --epsilon {continuous} {more}")["noise_std"]
    # With t holders' noise not counted on, each adds more, so that the sum's std is this.
    account = f"privacy account dpsd --noise-std {one!r} {more} --noise secagg {failures}"
    result = answer(capsys, account)
    assert result["epsilon"] == pytest.approx(booked, abs=0.01)
    assert answer(capsys, account.replace("secagg", "central").replace(failures, ""))[
        "epsilon"
    ] == pytest.approx(continuous)


def test_failures_are_of_masked_sums(capsys) -> None:
    command = f"{CALIBRATE} --dropouts 1"
    assert run(command.split()) == 2
    assert "--noise secagg alone" in capsys.readouterr().err


@pytest.mark.parametrize(("classes", "expected"), [(10, 6.74), (3, 13.87)])
def test_account_label(classes: int, expected: float, capsys: pytest.CaptureFixture[str]) -> None:
    command = f"privacy account label --epsilon0 0.1 --classes {classes} --queries 1000"
    result = answer(capsys, command)
    assert result["epsilon"] == pytest.approx(expected, rel=0.005)
    assert result["published"]["epsilon"] == 0.1


@pytest.mark.parametrize(
    ("sigma", "adjacency", "expected"),
    [("1.9", "add-remove", 0.977), ("0.6", "add-remove", 9.48), ("1.9", "replace", 1.945)],
)
def test_account_dp_sgd(
    sigma: str, adjacency: str, expected: float, capsys: pytest.CaptureFixture[str]
) -> None:
    command = (
        f"privacy account dp-sgd --records 60000 --batch 128 --epochs 100 --sigma {sigma} "
        f"--adjacency {adjacency}"
    )
    result = answer(capsys, command)
    assert result["epsilon"] == pytest.approx(expected, rel=0.002)
    assert result["adjacency"] == adjacency
    assert set(result["sound"]) == {"zero-out", "replace", "add-remove"}


@pytest.mark.parametrize(("beta", "expected"), [("1e-3", 0.046), ("5e-3", 0.261)])
def test_published_dpsd(beta: str, expected: float, capsys: pytest.CaptureFixture[str]) -> None:
    command = (
        f"privacy published dpsd --sigma 100 --beta {beta} --classes 10 --batch 256 --rounds 200"
    )
    result = answer(capsys, command)
    assert result["published"]["epsilon"] == pytest.approx(expected, abs=5e-4)
    assert result["epsilon"] == pytest.approx(28.8, abs=0.05)
    assert result["readings"]["row-wise"] == result["epsilon"]
    assert result["readings"]["whole-batch"] == pytest.approx(1.06, abs=0.005)
    assert result["whole_batch_entry_over_noise"] == pytest.approx(2e-4, rel=0.02)


def test_what_has_no_guarantee_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    promise = answer(capsys, "privacy published dp-promise")
    assert promise["epsilon"] is None
    assert promise["published"]["epsilon"] == pytest.approx(1.0, abs=0.02)
    assert answer(capsys, "privacy published dp-promise --epochs1 0")["epsilon"] < 1.006
    sad = answer(capsys, "privacy published dp-sad")
    assert sad["epsilon"] == pytest.approx(5e6, rel=0.05)
    assert sad["readings"]["image-space"] is None


@pytest.mark.parametrize(("teachers", "verdict"), [(5, "hopeless"), (50, "poor"), (250, "fine")])
def test_forecast(teachers: int, verdict: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = f"privacy forecast dpsd --epsilon 10 --teachers {teachers}"
    result = answer(capsys, command)
    assert result["verdict"] == verdict
    assert "nats" in result["forecast"]
    with_rows = answer(capsys, f"{command} --rows 50000")
    assert with_rows["signal"] == result["signal"]
    assert with_rows["noise_std"] == pytest.approx((50_000 / result["signal"]) ** 0.5)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_has_an_example_that_runs(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command.split()[:3], "--help"]) == 0
    shown = capsys.readouterr().out
    assert "Example" in shown
    lines = shown.replace("\\\n", " ").splitlines()
    examples = [line.split()[1:] for line in lines if line.startswith("    fedtranscribe ")]
    assert examples
    for example in examples:
        assert run(example) == 0, example
    capsys.readouterr()


def test_privacy_commands_start_without_torch() -> None:
    code = (
        "import sys; from fedtranscribe.cli import run; "
        f"code = run({CALIBRATE.split()!r}); "
        "sys.exit(code or 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
