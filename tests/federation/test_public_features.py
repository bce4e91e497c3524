"""Public networks in a federation: only holders that allow exactly these weights take part."""

import json

import pytest
import torch

from fedtranscribe.errors import ConfigError, QuorumError, WeightsNotFoundError
from fedtranscribe.models.backbones import Backbone, Backbones, file_digest
from fedtranscribe.models.fixed_features import coefficient_count
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.questions.moments import Moments, MomentsQuery
from fedtranscribe.questions.question import Kind
from fedtranscribe.results.run_directory import STUDENT
from fedtranscribe.runs.federate import ROSTER
from fedtranscribe.runs.student_side import with_features
from fedtranscribe.runs.transports import InProcess
from tests.conftest import NETWORK
from tests.federation.runs import go, ledger_file, start

SIDE = 24


@pytest.fixture
def asked(settings, public_weights):
    chosen = {"student": None, "retries": 0, "mixture_share": 0.0, "descent_rounds": 1}
    chosen |= {"noise": "secagg", "features": NETWORK, "features_weights": str(public_weights)}
    chosen |= {"features_side": SIDE, "features_declared_by": "the operator", "quorum": 2}
    return settings.model_copy(update=chosen)


@pytest.mark.long
def test_masked_sums_on_public_features(asked, split, open_nodes, tmp_path, public_weights):
    settings = with_features(asked, split.train.size)
    result = go(settings, InProcess(open_nodes(asked)), start(tmp_path / "run", settings), split)
    digest = file_digest(public_weights)
    assert result["features"]["sha256"] == digest
    assert result["rows"] == 3
    roster = json.loads((tmp_path / "run" / ROSTER).read_text())
    assert all(facts["features"] == [f"{NETWORK}@{digest}"] for facts in roster.values())
    assert (tmp_path / "run" / STUDENT).stat().st_size > 2_000_000, "its layers are in the file"


@pytest.mark.long
def test_a_holder_without_these_weights_takes_no_part_and_pays_nothing(
    asked, split, open_nodes, tmp_path, caplog
):
    other = tmp_path / "other.pth"
    state = torch.load(asked.features_weights, weights_only=True)
    state["features.0.bias"] += 1
    torch.save(state, other)
    settings = with_features(asked.model_copy(update={"noise": "local"}), split.train.size)
    nodes = open_nodes(settings)
    strange = open_nodes(settings.model_copy(update={"features_weights": str(other)}))
    nodes[1] = strange[1]
    result = go(settings, InProcess(nodes), start(tmp_path / "run", settings), split)
    assert set(result["answered_rounds"]) == {"holder-0", "holder-2"}
    assert "holder-1 does not take part: its policy does not allow features" in caplog.text
    assert not ledger_file(nodes[1]).exists()
    few = settings.model_copy(update={"quorum": 3})
    with pytest.raises(QuorumError, match="Only 2 of 3 holders"):
        go(few, InProcess(nodes), start(tmp_path / "few", few), split)


@pytest.mark.parametrize("changed", [{"start": "none"}, {"unit": "holder"}])
def test_what_leaves_no_room_for_sums_is_named(asked, split, open_nodes, tmp_path, changed):
    settings = with_features(asked, split.train.size).model_copy(
        update={**changed, "noise": "local"}
    )
    nodes = open_nodes(asked)
    with pytest.raises(ConfigError, match=f"features={NETWORK} cannot be combined with"):
        go(settings, InProcess(nodes), start(tmp_path / "run", settings), split)


# ---------------------------------------------------------------- a holder's side


def question(features: str, images) -> MomentsQuery:
    raw = coefficient_count(features, images.channels, images.size)
    mapped = torch.randn(raw, 6, generator=torch.Generator().manual_seed(1))
    return MomentsQuery("q", Kind.MOMENTS, torch.zeros(raw), mapped, features, images.classes)


def test_a_record_has_the_same_row_wherever_it_stands(split, public_weights):
    images = split.train.subset(torch.arange(9))
    moved = split.train.subset(torch.arange(1, 9))
    allowed = Backbones.of({NETWORK: public_weights})
    features = Backbone(NETWORK, SIDE, file_digest(public_weights)).name
    asked = question(features, images)
    sides = [Moments(part, torch.device("cpu"), backbones=allowed).rows for part in (images, moved)]
    rows = [
        torch.cat([block for block, *_ in side.blocks(asked, range(len(part)))])[: len(part)]
        for side, part in zip(sides, (images, moved), strict=True)
    ]
    assert torch.equal(rows[0][1:], rows[1])
    assert rows[0].norm(dim=1).allclose(torch.ones(9))


def test_other_networks_weights_and_files_are_refused_before_the_ledger(
    split, public_weights, tmp_path
):
    mine = tmp_path / "mine.pth"
    mine.write_bytes(public_weights.read_bytes())
    allowed = Backbones.of({NETWORK: mine})
    images, digest = split.train, file_digest(mine)
    for refused in (
        Backbone(NETWORK, SIDE, 64 * "0"),
        Backbone("resnet18", SIDE, digest),
    ):
        holder = Moments(images, torch.device("cpu"), backbones=allowed)
        with pytest.raises(ConfigError, match="as one of scatter, patches, squeezenet1_1@"):
            holder.check(question(refused.name, images))
        shapes = {"centre": (512,), "map": (512, 4)}
        with pytest.raises(ConfigError, match="as one of"):
            holder.expect(shapes, {"features": refused.name, "classes": 0})
    mine.unlink()
    holder = Moments(images, torch.device("cpu"), backbones=allowed)
    with pytest.raises(WeightsNotFoundError):
        holder.check(question(Backbone(NETWORK, SIDE, digest).name, images))


def test_a_holder_that_names_none_allows_none(split, public_weights):
    features = Backbone(NETWORK, SIDE, file_digest(public_weights)).name
    holder = Moments(split.train, torch.device("cpu"))
    with pytest.raises(ConfigError, match="as one of scatter, patches"):
        holder.check(question(features, split.train))


@pytest.mark.long
def test_every_holder_books_the_features_into_the_question(asked, split, open_nodes, tmp_path):
    settings = with_features(asked.model_copy(update={"noise": "local"}), split.train.size)
    nodes = open_nodes(settings)
    go(settings, InProcess(nodes), start(tmp_path / "run", settings), split)
    for node in nodes:
        with Ledger.open_read_only(ledger_file(node)) as ledger:
            assert len(ledger.releases("run-fixed")) == 3
    one = question(Backbone(NETWORK, SIDE, 64 * "0").name, split.train)
    other = question(Backbone(NETWORK, SIDE, 64 * "1").name, split.train)
    assert one.digest() != other.digest()
