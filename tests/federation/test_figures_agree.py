"""Calculator, plan and ledger print one figure, for every kind of answer and placement of noise."""

import json

import pytest

from fedtranscribe.cli import run
from fedtranscribe.privacy.accountant import epsilon
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.runs.federate import show_plan
from fedtranscribe.runs.transports import InProcess
from tests.federation.runs import go, ledger_file, start

ROWS = {
    ("vote", mode, unit) for mode in ("local", "central", "secagg") for unit in ("record", "holder")
} | {("data", mode, "record") for mode in ("local", "central", "secagg")}


def calculated(capsys, result, answer, mode, unit):
    noise = f"--noise-std {result['noise_std']!r} --noise {mode} --unit {unit} --answer {answer}"
    if mode == "secagg":
        noise += " --dropouts 0 --colluders 1"
    federation = "--rows 30 --teachers 6 --holders 3 --classes 3"
    capsys.readouterr()
    assert run(f"privacy account dpsd {noise} {federation} --json".split()) == 0
    return json.loads(capsys.readouterr().out)


def booked(result, nodes):
    """ε of what each holder's ledger has booked, as one plan; that is the least it can cost."""
    unit, figures = Unit(result["unit"]), []
    for node in nodes:
        with Ledger.open_read_only(ledger_file(node)) as ledger:
            releases = ledger.releases("run-fixed")
            total = ledger.total(result["delta"], unit, Adjacency.ZERO_OUT).epsilon
        events = [release.event(unit, Adjacency.ZERO_OUT) for release in releases]
        figures.append(epsilon(events, result["delta"]))
        # The filter, which admits answers one by one, charges labels more.
        assert total >= figures[-1] * (1 - 1e-9)
        assert total == pytest.approx(10, rel=1e-6)
    return figures


@pytest.mark.parametrize(("privacy", "mode", "unit"), sorted(ROWS))
def test_rows_of_teachers(privacy, mode, unit, settings, open_nodes, tmp_path, capsys):
    settings = settings.model_copy(update={"privacy": privacy, "noise": mode, "unit": unit})
    nodes = open_nodes(settings)
    planned = show_plan(settings, InProcess(nodes).capabilities(), expected=3)
    result = go(settings, InProcess(nodes), start(tmp_path / "run", settings))
    answer = "vote" if privacy == "vote" else "gradient"
    figure = calculated(capsys, result, answer, mode, unit)
    assert figure["epsilon"] == pytest.approx(result["epsilon"], rel=1e-9)
    assert planned.epsilon == pytest.approx(result["epsilon"], rel=1e-9)
    assert planned.epsilon == pytest.approx(10, rel=1e-6)
    assert booked(result, nodes) == pytest.approx([result["epsilon"]] * 3, rel=1e-6)


def test_labels(settings, open_nodes, tmp_path, capsys):
    settings = settings.model_copy(update={"privacy": "label", "noise": "local", "shards": 1})
    nodes = open_nodes(settings)
    planned = show_plan(settings, InProcess(nodes).capabilities(), expected=3)
    result = go(settings, InProcess(nodes), start(tmp_path / "run", settings))
    strength = json.loads((tmp_path / "run" / "events.jsonl").read_text().splitlines()[0])
    epsilon0 = strength["release"]["costs"]["record"]["zero-out"]["epsilon0"]
    capsys.readouterr()
    command = f"privacy account label --epsilon0 {epsilon0!r} --classes 3 --queries 30 --json"
    assert run(command.split()) == 0
    figure = json.loads(capsys.readouterr().out)
    assert figure["epsilon"] == pytest.approx(result["epsilon"], rel=1e-9)
    assert planned.epsilon == pytest.approx(result["epsilon"], rel=1e-9)
    assert booked(result, nodes) == pytest.approx([result["epsilon"]] * 3, rel=1e-6)


@pytest.mark.parametrize("mode", ["local", "central", "secagg"])
def test_sums_over_records(mode, settings, open_nodes, tmp_path):
    """Moments, gradients of descent and a mixture; `transcribe --plan` is their calculator."""
    changes = {"student": None, "privacy": "vote", "noise": mode, "descent_rounds": 1}
    changes |= {"mixture_share": 0.3}  # although so few records make no pictures
    settings = settings.model_copy(update=changes)
    nodes = open_nodes(settings)
    planned = show_plan(settings, InProcess(nodes).capabilities(), expected=3)
    result = go(settings, InProcess(nodes), start(tmp_path / "run", settings))
    assert planned.epsilon == pytest.approx(result["epsilon"], rel=1e-9)
    assert booked(result, nodes) == pytest.approx([result["epsilon"]] * 3, rel=1e-6)
    lines = (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    names = {json.loads(line)["release"]["mechanism"].partition("-")[2] for line in lines}
    assert names == {"moments", "loss-gradients", "block-products", "band-energies"}
