"""Every holder trains a network of its own; the server pools their samples."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedtranscribe.config import FederationSettings, TrainingOptions
from fedtranscribe.data import load
from fedtranscribe.errors import ProtocolError, QuorumError, StorageError
from fedtranscribe.holder.node import Node
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.results.parts import StatedGuarantee
from fedtranscribe.results.run_directory import RunDirectory
from fedtranscribe.runs.finished import FinishedRun
from fedtranscribe.runs.pooled import largest
from fedtranscribe.runs.simulation import open_holder, partitions
from fedtranscribe.runs.single_node import train_at_holders
from fedtranscribe.runs.transports import InProcess
from tests.federation.test_trainings import TINY

pytestmark = pytest.mark.usefixtures("coarse_grid")

HOLDERS = 2


@pytest.fixture
def settings(tiny_data) -> FederationSettings:
    return FederationSettings(
        method="dp-promise",
        data=str(tiny_data),
        epsilon=1.0,  # which the accountant finds quickly
        holders=HOLDERS,
        alpha=100.0,
        shards=1,
        trainer="all",
        device="cpu",
        retries=1,
        retry_after=0.0,
        slice_seconds=0.001,
        training=TrainingOptions.model_validate({**TINY, "start": "none"}),
    )


@pytest.fixture
def nodes(settings, tmp_path) -> list[Node]:
    parts = partitions(settings, load(settings.data).train)
    return [
        open_holder(settings, part, number, tmp_path / f"own-{number}")
        for number, part in enumerate(parts)
    ]


@pytest.fixture(autouse=True)
def few_samples(monkeypatch):
    monkeypatch.setattr("fedtranscribe.runs.pooled._JUDGED", 30)


def go(settings: FederationSettings, transport: InProcess, path: Path):
    start = RunDirectory.resume if settings.resume else RunDirectory.create
    test = load(settings.data).test
    run = start(path, settings)
    return train_at_holders(
        settings, transport, run, test=test, judge=lambda *_: 0.25, declared_public=False
    )


@pytest.mark.long
def test_each_network_is_booked_at_its_holder_and_samples_are_pooled(settings, nodes, tmp_path):
    result = go(settings, InProcess(nodes), tmp_path / "run")
    owns = [
        FinishedRun.open(tmp_path / "run" / "holders" / str(number)) for number in range(HOLDERS)
    ]
    stated = [own.result.guarantee for own in owns]
    epsilons = [each.epsilon for each in stated if each.epsilon is not None]
    assert result.guarantee.epsilon == max(epsilons)
    assert 0.99 * settings.epsilon < max(epsilons) <= settings.epsilon
    assert result.guarantee.private
    assert (result.rows, result.diffusion) == (HOLDERS, None)
    for number, own in enumerate(owns):
        assert own.result.federation is not None
        assert own.result.federation.holder == f"holder-{number}"
        assert own.result.diffusion is not None
        with Ledger.open_read_only(tmp_path / f"own-{number}" / "ledger.sqlite") as ledger:
            spent = ledger.total(settings.delta, Unit.RECORD, Adjacency.ZERO_OUT).epsilon
            answer = ledger.answer(f"{result.run}/training")
        assert spent == pytest.approx(own.result.guarantee.epsilon, rel=1e-6)
        assert answer == own.result.diffusion.sha256.encode()
    with np.load(tmp_path / "run" / "samples.npz") as archive:
        assert archive["images"].shape == (30, 1, 28, 28)
        assert set(archive["labels"].tolist()) == {0, 1, 2}
        assert str(archive["drawn_from"]) == result.run
    assert RunDirectory(tmp_path / "run", settings, "").read_scores() == {"downstream": 0.25}
    lines = (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["holder"] for line in lines] == ["holder-0", "holder-1"]


def test_the_whole_folder_names_the_folders_of_its_networks(settings, nodes, tmp_path):
    go(settings, InProcess(nodes), tmp_path / "run")
    with pytest.raises(StorageError, match=r"network of each holder.*holders.*samples\.npz"):
        FinishedRun.open(tmp_path / "run")


def test_holders_that_fell_silent_are_asked_for_what_is_left(settings, nodes, tmp_path):
    asked: list[list[str]] = []

    class Half(InProcess):
        """The second holder falls silent after its first message."""

        def exchange(self, message_type, holders, make):
            asked.append(list(holders))
            told = super().exchange(message_type, holders, make)
            return {h: v for h, v in told.items() if h == "holder-0" or len(asked) == 1}

    with pytest.raises(QuorumError, match="Holder holder-1 does not answer; resume"):
        go(settings, Half(nodes), tmp_path / "run")
    assert asked[0] == ["holder-0", "holder-1"]
    again = settings.model_copy(update={"resume": True})
    result = go(again, InProcess(nodes), tmp_path / "run")
    assert result.rows == HOLDERS
    for number in range(HOLDERS):
        with Ledger.open_read_only(tmp_path / f"own-{number}" / "ledger.sqlite") as ledger:
            assert len(ledger.releases()) == 1


def test_all_holders_have_to_be_there(settings, nodes, tmp_path):
    with pytest.raises(QuorumError, match="Expected 2 holders that offer dp-promise, got 1"):
        go(settings, InProcess(nodes[:1]), tmp_path / "run")


def test_networks_of_other_images_are_refused_before_a_file_is_written(settings, nodes, tmp_path):
    real = nodes[1].trained

    def other(run: str):
        trained = real(run)
        told = trained.facts.diffusion.model_copy(update={"classes": 7})
        facts = trained.facts.model_copy(update={"diffusion": told})
        return type(trained)(trained.network, facts, trained.release)

    nodes[1].trained = other  # type: ignore[method-assign]
    with pytest.raises(ProtocolError, match="holder-1: 1x28x28, 7 classes"):
        go(settings, InProcess(nodes), tmp_path / "run")
    assert not (tmp_path / "run" / "holders").exists()


def claiming(node: Node, facts=None, **changes) -> None:
    """Let a holder say something else of its finished training."""
    real = node.trained

    def other(run: str):
        trained = real(run)
        parts = {
            part: getattr(trained.facts, part).model_copy(update=told)
            for part, told in changes.items()
        }
        return replace(trained, facts=trained.facts.model_copy(update={**parts, **(facts or {})}))

    node.trained = other  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"guarantee": {"epsilon": 0.0}},
            r"holder-1 says .* cost ε = 0\.0; what it booked costs 0\.99",
        ),
        ({"guarantee": {"epsilon": -5.0}}, "cost ε = -5.0"),
        ({"guarantee": {"epsilon": math.nan}}, "cost ε = "),
        ({"guarantee": {"epsilon": None}}, "cost ε = None"),
        ({"guarantee": {"delta": 0.5}}, "delta=0.5, .* not what it was asked for"),
        ({"guarantee": {"adjacency": Adjacency.REPLACE}}, "adjacency=replace"),
        ({"guarantee": {"unit": Unit.HOLDER}}, "unit=holder"),
        ({"facts": {"method": "dp-sad"}}, "method=dp-sad"),
        ({"diffusion": {"records": 0}}, "says that it has 0 records"),
        ({"diffusion": {"records": -999_999}}, "-999999 records"),
        ({"diffusion": {"records": 10**300}}, "1000000.* records"),
    ],
)
def test_what_a_holder_claims_is_checked_before_a_file_is_written(
    settings, nodes, tmp_path, changes, words
):
    claiming(nodes[1], **changes)
    with pytest.raises(ProtocolError, match=words):
        go(settings, InProcess(nodes), tmp_path / "run")
    assert not (tmp_path / "run" / "holders").exists()


def test_a_network_of_other_images_than_all_holders_say_is_refused(settings, nodes, tmp_path):
    for node in nodes:
        claiming(node, diffusion={"channels": 3})
    with pytest.raises(ProtocolError, match="3x28x28, 3 classes, and sent one of 1x28x28"):
        go(settings, InProcess(nodes), tmp_path / "run")
    assert not (tmp_path / "run" / "holders" / "0" / "denoiser.safetensors").exists()


def test_the_order_of_replies_does_not_matter(settings, nodes, tmp_path):
    class Reversed(InProcess):
        def exchange(self, message_type, holders, make):
            return dict(reversed(super().exchange(message_type, holders, make).items()))

    run = RunDirectory.create(tmp_path / "run", settings)
    made = []
    for kind in (InProcess, Reversed):
        test = load(settings.data).test
        train_at_holders(
            settings, kind(nodes), run, test=test, judge=lambda *_: 0.25, declared_public=False
        )
        with np.load(tmp_path / "run" / "samples.npz") as archive:
            made.append((archive["images"].tobytes(), archive["labels"].tobytes()))
        first = FinishedRun.open(tmp_path / "run" / "holders" / "0").result.federation
        assert first is not None
        assert first.holder == "holder-0"
        # Killed while the folder was made: it is made anew.
        (tmp_path / "run" / "holders" / "1" / "config.toml").rename(
            tmp_path / "run" / "holders" / "1" / ".config.toml.cut"
        )
    assert made[0] == made[1]


def test_a_run_that_goes_on_asks_nobody_else(settings, nodes, tmp_path):
    with pytest.raises(QuorumError, match="does not answer; resume"):
        go(settings, _Once(nodes), tmp_path / "run")
    other = open_holder(
        settings,
        partitions(settings, load(settings.data).train)[0],
        2,
        tmp_path / "own-2",
    )
    again = settings.model_copy(update={"resume": True})
    with pytest.raises(QuorumError, match="Holder holder-0 began to train in this run"):
        go(again, InProcess([nodes[1], other]), tmp_path / "run")
    assert not (tmp_path / "own-2" / "ledger.sqlite").exists()
    (tmp_path / "run" / "trainers.json").write_text("{")
    with pytest.raises(StorageError, match=r"trainers\.json is damaged"):
        go(again, InProcess(nodes), tmp_path / "run")


class _Once(InProcess):
    """Everybody falls silent after the first message."""

    asked = False

    def exchange(self, message_type, holders, make):
        told = {} if self.asked else super().exchange(message_type, holders, make)
        self.asked = True
        return told


def stated(**changes) -> StatedGuarantee:
    usual = {
        "epsilon": 1.0,
        "delta": 1e-5,
        "unit": "record",
        "adjacency": "zero-out",
        "accountant": "pld",
        "sound": {"zero-out": 1.0, "replace": 2.0},
        "private": True,
        "stamp": None,
        "caveats": (),
    }
    return StatedGuarantee.model_validate({**usual, **changes})


def test_the_largest_of_several_guarantees():
    some = [stated(), stated(epsilon=3.0, accountant="rdp", sound={"zero-out": 3.0})]
    told = largest(some)
    assert (told.epsilon, told.accountant, told.private) == (3.0, "rdp", True)
    assert told.sound == {Adjacency.ZERO_OUT: 3.0}
    open_ended = {"epsilon": None, "sound": {"zero-out": None}, "private": False, "stamp": "NOT"}
    told = largest([*some, stated(**open_ended, caveats=("a seed",))])
    assert (told.epsilon, told.sound, told.private) == (None, {Adjacency.ZERO_OUT: None}, False)
    assert (told.stamp, told.caveats) == ("NOT", ("a seed",))
    with pytest.raises(ProtocolError, match="one unit, adjacency and delta"):
        largest([stated(), stated(delta=1e-6)])
