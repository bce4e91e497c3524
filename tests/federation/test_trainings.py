"""A private training at one holder, orchestrated by a server."""

import hashlib
import json
import shutil

import numpy as np
import pytest
import torch

from fedtranscribe.config import FederationSettings, TrainingOptions
from fedtranscribe.data import DataSplit, load
from fedtranscribe.data.registry import PACKAGED
from fedtranscribe.errors import HopelessPlanError, QuorumError
from fedtranscribe.flower.client_app import make_client_app
from fedtranscribe.flower.over_flower import OverFlower
from fedtranscribe.holder.node import reply_to
from fedtranscribe.holder.policy import HolderPolicy
from fedtranscribe.noise.sources import SeededBits, SeededNoise
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.questions import messages as wire
from fedtranscribe.questions import training_messages as trainings
from fedtranscribe.questions.refusals import RefusalCode
from fedtranscribe.results.run_directory import RunDirectory
from fedtranscribe.runs.simulation import open_holder, partitions
from fedtranscribe.runs.single_node import asked_of, train_at_holders
from fedtranscribe.runs.transports import InProcess
from fedtranscribe.trainers.samples import ALL, chosen_labels, open_run
from tests.federation.local_grid import LocalGrid

pytestmark = pytest.mark.usefixtures("coarse_grid")

TINY = {
    "size": "tiny",
    "sampling_steps": 2,
    "pretrain_epochs": 0.004,  # on samples of the private start that is the default
    "dp_promise": {
        "phase1": False,
        "phase2_batch": 4,
        "phase2_epochs": 0.1,
        "copies": 1,
    },
}


@pytest.fixture
def settings(tiny_data) -> FederationSettings:
    return FederationSettings(
        method="dp-promise",
        data=str(tiny_data),
        holders=1,
        shards=1,
        device="cpu",
        retries=1,
        retry_after=0.0,
        slice_seconds=0.001,
        training=TrainingOptions.model_validate(TINY),
    )


@pytest.fixture
def open_node(settings, tmp_path):
    def opener(settings=settings, policy=None, **options):
        options = {"noise": SeededNoise(1), "bits": SeededBits(1)} | options
        (part,) = partitions(settings, load(settings.data).train)
        return open_holder(settings, part, 0, tmp_path / "holder", policy=policy, **options)

    return opener


def ledger_of(tmp_path):
    return Ledger.open_read_only(tmp_path / "holder" / "ledger.sqlite")


def go(settings, transport, run, test=None, judge=None):
    return train_at_holders(
        settings, transport, run, test=test, judge=judge, declared_public=False
    ).to_json()


@pytest.mark.long
def test_a_training_is_booked_once_and_its_network_comes_back(settings, open_node, tmp_path):
    run = RunDirectory.create(tmp_path / "run", settings)
    stages = []
    result = train_at_holders(
        settings,
        InProcess([open_node(noise=None, bits=None)]),
        run,
        test=None,
        report=lambda line: stages.append((line["stage"], line["done"], line["total"])),
    ).to_json()
    assert result["private"] is True
    assert 0.9 * settings.epsilon < result["epsilon"] <= settings.epsilon * (1 + 1e-6)
    with ledger_of(tmp_path) as ledger:
        assert [(r.run, r.rows) for r in ledger.runs()] == [(run.run_id, 1)]
        spent = ledger.total(settings.delta, Unit.RECORD, Adjacency.ZERO_OUT).epsilon
        assert ledger.answer(f"{run.run_id}/training") == result["sha256"].encode()
    assert spent == pytest.approx(result["epsilon"], rel=1e-6)
    network = (run.path / "denoiser.safetensors").read_bytes()
    assert hashlib.sha256(network).hexdigest() == result["sha256"]
    # A step per message, in order; nothing but counts.
    assert [done for _, done, _ in stages][-1] == stages[-1][2]
    parts = {stage: [done for at, done, _ in stages if at == stage] for stage, _, _ in stages}
    assert list(parts) == ["mixture", "pre-training", "phase II"]
    assert all(steps == sorted(steps) for steps in parts.values())
    model, _ = open_run(run.path, torch.device("cpu"))
    images = model.draw(torch.tensor([0, 1, 2]), seed=0)
    assert images.shape == (3, 1, 28, 28)
    told = (run.path / "metrics.json").read_text()
    assert str(tmp_path / "holder") not in told


@pytest.mark.long
def test_whichever_process_gets_the_next_message_goes_on(settings, open_node, tmp_path):
    """A holder in two processes that take turns trains as one that was never interrupted."""

    class Turns(InProcess):
        def exchange(self, message_type, holders, make):
            self._nodes = {"holder-0": open_node()}
            return super().exchange(message_type, holders, make)

    made = []
    for name, kind in (("one", InProcess), ("two", Turns)):
        run = RunDirectory.create(tmp_path / name, settings, "run-fixed")
        (tmp_path / "holder").exists() and (tmp_path / "holder").rename(tmp_path / "holder-before")
        result = go(settings, kind([open_node()]), run)
        assert result["private"] is False, "the noise is seeded"
        made.append((run.path / "denoiser.safetensors").read_bytes())
    assert made[0] == made[1]


def test_over_flower_and_measured_on_held_out_images(settings, open_node, tmp_path, monkeypatch):
    monkeypatch.setattr("fedtranscribe.runs.pooled._JUDGED", 30)
    node = open_node()
    grid = LocalGrid(make_client_app(lambda context, number: node), {7: {}})
    transport = OverFlower(grid, [(7, 0)], 60, 60)
    run = RunDirectory.create(tmp_path / "run", settings)
    judged = []

    def judge(images, labels, test, device, progress):
        judged.append((images, labels, test.images))
        return 0.25

    held_out = load(settings.data).test
    result = go(settings, transport, run, held_out, judge)
    model, _ = open_run(run.path, torch.device("cpu"))
    labels = chosen_labels(ALL, 30, model.classes, settings.seed)
    ((images, asked, real),) = judged
    assert torch.equal(images, model.draw(labels, settings.seed))
    assert torch.equal(asked, labels)
    assert torch.equal(real, held_out.images)
    assert result["accuracy"] == {}, "on somebody's own images accuracy is private"
    assert run.read_scores() == {"downstream": 0.25}
    assert result["bytes"] > len((run.path / "denoiser.safetensors").read_bytes())


def test_a_silent_holder_ends_the_run_and_resuming_costs_nothing(settings, open_node, tmp_path):
    calls = []

    class Silent(InProcess):
        def exchange(self, message_type, holders, make):
            calls.append(message_type)
            return {} if len(calls) > 2 else super().exchange(message_type, holders, make)

    node, run = open_node(), RunDirectory.create(tmp_path / "run", settings)
    with pytest.raises(QuorumError, match="resume"):
        go(settings, Silent([node]), run)
    again = settings.model_copy(update={"resume": True})
    result = go(again, InProcess([node]), RunDirectory.resume(run.path, again))
    assert result["sha256"]
    with ledger_of(tmp_path) as ledger:
        assert len(ledger.releases()) == 1


@pytest.mark.parametrize(
    ("policy", "error", "words"),
    [
        ({"trainers": ()}, QuorumError, "trainers"),
        ({"trainers": ("dp-sad",)}, QuorumError, "No holder offers"),
        ({"trainers": ("dp-promise",), "epsilon": 1.0}, HopelessPlanError, "budget"),
        ({"trainers": ("dp-promise",), "unit": "holder"}, QuorumError, "No holder offers"),
    ],
)
def test_policy_and_budget_come_first(settings, open_node, tmp_path, policy, error, words):
    node = open_node(policy=HolderPolicy(**{"epsilon": 10.0, **policy}))
    run = RunDirectory.create(tmp_path / "run", settings)
    with pytest.raises(error, match=words):
        go(settings, InProcess([node]), run)
    if (tmp_path / "holder" / "ledger.sqlite").exists():
        with ledger_of(tmp_path) as ledger:
            assert ledger.releases() == []


@pytest.mark.parametrize(
    "asked",
    [
        {"noise": False},
        {"calibrate_by": "published"},
        {"data": "/etc/passwd"},
        {"ledger": "/tmp/other.sqlite"},
        {"epsilon": -1.0},
        {"dp_promise": {"copies": 0}},
        {"adjacency": "add-remove"},
        {"dp_promise": {"boundary": 5000}},
        {"dp_promise": {"phase2_batch": 10_000}},
    ],
)
def test_what_a_server_may_not_choose_books_nothing(settings, open_node, tmp_path, asked):
    node = open_node()
    content = trainings.ask_train(0, "run-a", {**asked_of(settings), **asked}, 1.0)
    told = reply_to(content, wire.TRAIN, lambda number: node, "flower")
    assert told.terms["refusal"] == RefusalCode.MALFORMED.value
    assert not list((tmp_path / "holder").glob("trainings/*/events.jsonl"))


def test_junk_and_unfinished_trainings(settings, open_node):
    node = open_node()
    for kind, content, code in (
        (wire.TRAIN, trainings.ask_model(0, "run-a"), RefusalCode.MALFORMED),
        (wire.TRAIN, trainings.ask_train(0, "", {}, 1.0), RefusalCode.MALFORMED),
        (wire.TRAIN, trainings.ask_train(0, "r", {}, -1.0), RefusalCode.MALFORMED),
        (wire.TRAIN, trainings.ask_train(0, "r", {}, 1.0), RefusalCode.POLICY),
        (wire.MODEL, trainings.ask_model(0, "../../etc"), RefusalCode.CONFLICT),
    ):
        told = reply_to(content, kind, lambda number: node, "flower")
        assert told.terms["refusal"] == code.value, json.dumps(kind)


def test_a_network_that_is_not_the_one_described_is_refused(settings, open_node, tmp_path):
    from fedtranscribe.errors import ProtocolError

    node, real = open_node(), None
    real = node.trained

    def forged(run):
        trained = real(run)
        return type(trained)(trained.network + b"x", trained.facts, trained.release)

    node.trained = forged
    run = RunDirectory.create(tmp_path / "run", settings)
    with pytest.raises(ProtocolError, match="not the one"):
        go(settings, InProcess([node]), run)
    assert not (run.path / "denoiser.safetensors").exists()


@pytest.mark.long
def test_a_server_cannot_call_files_of_the_holder_public(settings, open_node, tmp_path):
    """What pre-training sees is not protected: a file named as public would leave unbooked."""
    other = tmp_path / "other-patients.npz"
    images = np.random.default_rng(0).integers(0, 255, (30, 28, 28), dtype=np.uint8)
    np.savez(other, images=images, labels=np.arange(30) % 3, classes=3)

    def ask(public: str) -> dict:
        # A run's name is bound to what was asked under it.
        wanted = {**asked_of(settings), "pretrain_data": public, "pretrain_epochs": 0.1}
        content = trainings.ask_train(0, f"run-{public}", wanted, 1.0)
        told = reply_to(content, wire.TRAIN, lambda number: node, "flower")
        return told.terms

    node = open_node()
    for public in (str(other), f"medmnist:{other.with_suffix('')}"):
        assert ask(public)["refusal"] == RefusalCode.MALFORMED.value
    assert not list((tmp_path / "holder").glob("trainings/*/events.jsonl"))
    assert "refusal" not in ask("shapes")


@pytest.mark.long
def test_a_holder_compares_public_images_with_its_own_by_data_id_alone(
    settings, open_node, tmp_path, monkeypatch
):
    """By their images it would answer a server whether a set is what it holds."""
    whole = load("digits")
    few = DataSplit(whole.train.subset(range(200)), whole.test.subset(range(20)))
    monkeypatch.setitem(PACKAGED, "digits", lambda: few)

    def ask(data_id: str) -> dict:
        """A training that starts from the digits, at a holder that has these very images."""
        path = tmp_path / f"{data_id}.npz"
        kept = {"images": few.train.images.numpy(), "labels": few.train.labels.numpy()}
        held_out = {"test_images": few.test.images.numpy(), "test_labels": few.test.labels.numpy()}
        np.savez(path, **kept, **held_out, classes=10, data_id=np.array(data_id))
        shutil.rmtree(tmp_path / "holder", ignore_errors=True)
        held = settings.model_copy(update={"data": str(path)})
        node = open_node(held)
        wanted = {**asked_of(held), "pretrain_data": "digits", "pretrain_epochs": 0.01}
        content = trainings.ask_train(0, "run-1", wanted, 1.0)
        told = reply_to(content, wire.TRAIN, lambda number: node, "flower")
        return told.terms

    for data_id in ("digits", "mnist"):
        assert ask(data_id)["refusal"] == RefusalCode.MALFORMED.value
        assert not list((tmp_path / "holder").glob("trainings/*"))
    assert "refusal" not in ask("ward-7")


def test_the_server_is_not_told_the_data_id(settings, open_node, tmp_path):
    run = RunDirectory.create(tmp_path / "run", settings)
    result = go(settings, InProcess([open_node()]), run)
    assert result["data_id"] is None
    (own,) = (tmp_path / "holder" / "trainings").glob("*/metrics.json")
    assert json.loads(own.read_text())["data_id"] == "npz:tiny holder-0"
