"""Nothing that was measured on private held-out records may leave: every byte is searched."""

import json
import os
import sys
import traceback
from pathlib import Path

import fedtranscribe
from fedtranscribe.cli import run as command
from fedtranscribe.data import load
from fedtranscribe.releases import make_release
from fedtranscribe.releases.statement import read_statement
from tests.releases.conftest import OWN

CANARY = 0.73194826

# What is searched for lies among megabytes of random weights, and among other figures: three bytes
# stand there once in a dozen runs by chance, these do not.
LEAST = 8


def as_written(value: float) -> list[str]:
    """A figure as people and programs write it, for one that no run arrives at."""
    return [repr(value), f"{value:.6f}", f"{value:.4f}", f"{100 * value:.2f}", f"{value:.1%}"]


def private_figures(run: Path) -> list[str]:
    """All accuracies that the run measured, in full: a rounded one is like many other figures."""
    scores = json.loads((run / "private" / "accuracy.json").read_text())
    assert {"public_set_alone", "student"} <= set(scores)
    written = [text for value in scores.values() for text in (repr(value), f"{value:.6f}")]
    return [text for text in written if len(text) >= LEAST]


def found_in(folder: Path, words: list[str]) -> dict[str, list[str]]:
    """Which words stand in which file, names of files included."""
    found = {}
    for path in (entry for entry in folder.rglob("*") if entry.is_file()):
        content = (path.read_bytes() + path.name.encode()).lower()
        if hits := [word for word in words if word.lower().encode() in content]:
            found[path.name] = hits
    return found


def places(made) -> list[str]:
    """Of the data, the book, the run, this machine and its Python."""
    private = [made.data, made.ledger, made.run, made.run.parent]
    host = [Path(fedtranscribe.__file__).parent, Path.home() / "x", sys.prefix, sys.base_prefix]
    found = [str(path) for path in [*private, *host] if path is not None]
    found = [*found, made.data.stem, made.run.name, '.py", line ', OWN]
    # The Python of a system may lie in /usr, which is too short to be searched for.
    return [word for word in found if len(word) >= LEAST]


def traceback_of_a_mistake() -> bytes:
    try:
        raise ValueError
    except ValueError:
        return traceback.format_exc().encode()


def test_a_release_of_own_records_tells_nothing_about_them(made_once, own):
    records = load(str(own.data)).train
    ids = [*(records.record_ids or ()), "patient-", records.data_id]
    assert found_in(made_once, [*places(own), *ids, *private_figures(own.run)]) == {}
    said = read_statement(made_once)
    assert said.data == "a private set of the holder"
    assert said.public_data == "shapes"
    (possible,) = said.data_dependent_choices
    assert not possible.stated
    assert "held-out" in possible.choice


def test_the_search_finds_what_it_looks_for(own, tmp_path):
    (tmp_path / "noise.bin").write_bytes(os.urandom(1 << 20) + traceback_of_a_mistake())
    assert '.py", line ' in found_in(tmp_path, places(own))["noise.bin"]
    assert found_in(own.run, [OWN]).keys() >= {"config.toml", "metrics.json"}
    scores = json.loads((own.run / "private" / "accuracy.json").read_text())
    assert "accuracy.json" in found_in(own.run, [repr(scores["student"])])


def test_what_lies_about_in_the_run_is_not_carried_along(run, own):
    """Even where a careless hand has put private figures into public places."""
    result = json.loads((run / "metrics.json").read_text())
    result |= {"accuracy": {"student": CANARY}, "curve": {"rows": [1], "accuracy": [CANARY]}}
    result["settings"]["public_data"] = result["public_data"] = f"/home/x/{OWN}-too.npz"
    (run / "metrics.json").write_text(json.dumps(result))
    for name in ("evaluation.json", "private/accuracy.json", "private/evaluation.json"):
        (run / name).write_text(json.dumps({"student": CANARY, "accuracy": CANARY}))
    (run / "nearest.png").write_bytes(b"patient-3")
    folder = make_release(run).folder
    words = [*as_written(CANARY), "patient-", *places(own), "/home/x"]
    assert found_in(folder, words) == {}
    assert read_statement(folder).public_data == "a set that the holder calls public"


def test_a_path_that_is_gone_makes_nothing_public(run, own):
    """Whether a path exists, here and now, says nothing about whose records they are."""
    result = json.loads((run / "metrics.json").read_text())
    gone = f"data/{OWN}.npz"
    result["data"] = result["settings"]["data"] = gone
    result["accuracy"] = {"student": CANARY}
    (run / "metrics.json").write_text(json.dumps(result))
    folder = make_release(run).folder
    assert found_in(folder, [gone, *places(own), *as_written(CANARY)]) == {}


def test_a_private_archive_under_a_benchmarks_prefix_stays_private(run, own):
    result = json.loads((run / "metrics.json").read_text())
    result["data"] = result["settings"]["data"] = f"medmnist:{OWN}"
    result["accuracy"] = {"student": CANARY}
    (run / "metrics.json").write_text(json.dumps(result))
    assert found_in(make_release(run).folder, [OWN, *as_written(CANARY)]) == {}


def test_a_federation_on_own_records_tells_nothing_about_them(central, tmp_path):
    folder = make_release(central.run, tmp_path / "release").folder
    words = [
        *private_figures(central.run),
        "patient-",
        OWN,
        str(central.run),
        str(central.run.parent),
    ]
    assert found_in(folder, words) == {}


def test_the_terminal_tells_nothing_either(run, own, tmp_path, capsys):
    assert command(["release", str(run), "--out", str(tmp_path / "x"), "--json"]) == 0
    out = capsys.readouterr().out
    assert not [word for word in [*private_figures(own.run), OWN] if word in out]
