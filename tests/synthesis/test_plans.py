"""`synthesize --plan`: what the same run then books, and nothing left behind."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedtranscribe.cli import run

ALWAYS = ("--size", "tiny", "--sampling-steps", "2", "--physical-batch", "4", "--no-evaluate")
PROMISE = ("--phase2-batch", "4", "--phase2-epochs", "0.25", "--copies", "1")

PHASE1 = ("--boundary", "980", "--phase1-batch", "4", "--phase1-epochs", "0.25")


@pytest.fixture
def planned(small_data: Path, tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]):
    """Plan with options, as JSON; then carry the same command out."""
    monkeypatch.chdir(tmp_path)

    def check(*options: str) -> tuple[dict[str, Any], dict[str, Any]]:
        command = ["synthesize", "--data", str(small_data), *ALWAYS, *options, "--json"]
        before = sorted(tmp_path.rglob("*"))
        assert run([*command, "--plan"]) == 0
        plan = json.loads(capsys.readouterr().out)
        assert sorted(tmp_path.rglob("*")) == before
        assert run([*command, "--out", "run"]) == 0
        return plan, json.loads(capsys.readouterr().out)

    return check


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ((*PROMISE, "--start", "none", "--no-phase1", "--epsilon", "2"), "phase II 3"),
        ((*PROMISE, "--no-phase1", "--no-noise"), "phase II 3"),
        (
            (*PROMISE, *PHASE1, "--start", "none", "--epsilon", "1"),
            "phase I 3, phase II 3",
        ),
        (
            (*PROMISE, "--start", "mixture", "--pretrain-epochs", "0.001", "--epsilon", "2"),
            "mixture 3, pre-training 1, phase II 3",
        ),
        (
            ("--method", "dp-sad", "--batch", "8", "--epochs", "0.25", "--epsilon", "2"),
            "teacher 2, student 2",
        ),
    ],
    ids=str,
)
def test_a_plan_costs_what_the_run_books_and_leaves_nothing(planned, options, steps):
    plan, result = planned(*options)
    lines = plan.pop("plan")
    assert plan == {key: result[key] for key in plan}
    assert f"steps: {steps}" in lines
    assert any(line.startswith("memory: ") for line in lines)
    if "--no-noise" in options:
        assert plan["epsilon"] is None
        assert plan["caveats"]
        assert lines[-1] == "this run has NO guarantee: ε is infinite; no ledger books it"
    else:
        assert result["ledger"]["booked"] == pytest.approx(plan["epsilon"])
        assert lines[-1].startswith(f"this run costs ε = {plan['epsilon']:.4g} (record, zero-out")


def test_plans_of_both_commands_have_the_same_keys(planned, small_data, capsys):
    plan, _ = planned(*PROMISE, "--no-phase1", "--no-noise")
    assert run(["transcribe", "--data", str(small_data), "--force", "--plan", "--json"]) == 0
    assert json.loads(capsys.readouterr().out).keys() <= plan.keys()


@pytest.mark.parametrize(
    ("option", "value"),
    [("--epsilon", "-1"), ("--phase2-batch", "4000"), ("--start-share", "0.5"), ("--device", "x")],
)
def test_a_plan_refuses_what_the_run_refuses(
    small_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, value: str
):
    command = ["synthesize", "--data", str(small_data), "--start", "none", option, value]
    codes, errors = [], []
    for mode in (["--plan"], ["--out", str(tmp_path / "run")]):
        codes.append(run([*command, *mode]))
        errors.append(capsys.readouterr().err.splitlines()[-1])
    assert codes == [2, 2]
    assert errors[0] == errors[1]
    assert errors[0].startswith("error: ")
