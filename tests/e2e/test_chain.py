"""transcribe → evaluate → compare → release → verify → load and predict in a fresh process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(900)

FEDTRANSCRIBE = str(Path(sys.executable).with_name("fedtranscribe"))
SETTINGS = """
[dpsd]
sharpen_steps = 20
round_rows = 250
student_steps = 20
finish_steps = 100
pretrain_steps = 100
moments_steps = 10
[teachers]
steps = 60
"""
USE = """
import json, sys
import fedtranscribe
from fedtranscribe.data import load
release = fedtranscribe.load(sys.argv[1])
test = load("digits").test
right = (release.predict(test.images) == test.labels).float().mean().item()
images, labels = release.sample(20, seed=1)
print(json.dumps({"accuracy": right, "samples": list(images.shape), "labels": len(labels),
                  "epsilon": release.privacy.epsilon}))
"""


def run(*arguments: str | Path) -> str:
    done = subprocess.run(
        [FEDTRANSCRIBE, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


TEACHERS = ("--shards", "100", "--rows", "1000", "--student", "cnn", "--force")


@pytest.mark.parametrize(
    ("source", "least"),
    [
        pytest.param(TEACHERS, 0.2, id="votes", marks=pytest.mark.long),
        pytest.param((), 0.94, id="moments", marks=pytest.mark.ways),
    ],
)
def test_the_whole_chain_on_the_packaged_digits(tmp_path, source, least):
    config, out = tmp_path / "settings.toml", tmp_path / "run"
    config.write_text(SETTINGS)
    told = json.loads(
        run(
            *("transcribe", "--data", "digits", *source, "--config", config, "--out", out),
            *("--ledger", tmp_path / "ledger.sqlite", "--json"),
        )
    )
    assert told["accuracy"]["student"] >= least
    measured = json.loads(
        run("evaluate", out, "--samples", "1000", "--classifiers", "gaussian-nb,mlp", "--json")
    )
    assert measured["student"]["accuracy"] == pytest.approx(told["accuracy"]["student"])
    assert measured["downstream"].keys() >= {"gaussian-nb", "mlp"}
    assert measured["fidelity"]["fid"] > 0
    assert "not Inception" in measured["fidelity"]["features"]
    run("compare", out, "--out", tmp_path / "compared")
    assert (tmp_path / "compared" / "curve.png").exists()
    run("release", out)
    assert "ok" in run("release", "verify", out / "release", "--json")
    used = subprocess.run(
        [sys.executable, "-W", "error", "-c", USE, str(out / "release")],
        capture_output=True,
        text=True,
        check=True,
    )
    seen = json.loads(used.stdout)
    assert seen["accuracy"] == pytest.approx(told["accuracy"]["student"], abs=1e-3)
    assert seen["samples"] == [20, 1, 28, 28]
    assert seen["labels"] == 20
    assert seen["epsilon"] == pytest.approx(told["epsilon"])
    # Nothing of what stays with the holder went along.
    names = {path.name for path in (out / "release").rglob("*")}
    assert names == {
        *("card.md", "privacy.json"),
        *("student.onnx", "student.safetensors"),
        *("generator.onnx", "generator.safetensors"),
    }
