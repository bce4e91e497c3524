"""A student on a public network's features: one run through ledger, audit, release and resume."""

import json
from pathlib import Path

import pytest
import torch

from fedtranscribe.config import FederationSettings, TranscribeSettings
from fedtranscribe.errors import ConfigError, FedtranscribeError, ModelMismatchError, PrivacyError
from fedtranscribe.holder.answering import Holder
from fedtranscribe.models.backbones import Backbone, file_digest
from fedtranscribe.releases import make_release, verify
from fedtranscribe.releases.loading import load
from fedtranscribe.releases.statement import CARD, STATEMENT, read_statement
from fedtranscribe.results.result import METRICS
from fedtranscribe.runs.preparation import prepare
from fedtranscribe.runs.student_side import with_features
from fedtranscribe.runs.transcription import transcribe
from tests.conftest import NETWORK

SIDE, WHO = 24, "J. Doe, Example *Hospital*"


@pytest.fixture
def settings(tiny_data: Path, public_weights: Path) -> TranscribeSettings:
    return TranscribeSettings(
        data=str(tiny_data),
        epsilon=50,
        budget=51,
        descent_rounds=2,
        with_generator=False,
        features=NETWORK,
        features_weights=str(public_weights),
        features_side=SIDE,
        features_declared_by=WHO,
    )


@pytest.mark.long
def test_who_vouches_for_which_weights_is_in_plan_result_release_and_card(
    settings, public_weights, tmp_path, recwarn
):
    said: list[str] = []
    prepared = prepare(settings)
    result = transcribe(prepared, tmp_path / "run", say=said.append).result
    digest = file_digest(public_weights)
    assert result.features is not None
    assert result.features.model_dump() == {
        "network": NETWORK,
        "side": SIDE,
        "sha256": digest,
        "declared_by": WHO,
    }
    assert any(f"features of {NETWORK} at {SIDE} pixels" in line for line in said)
    assert prepared.settings.student == Backbone(NETWORK, SIDE, digest).name
    folder = make_release(tmp_path / "run").folder
    used = read_statement(folder).public_weights
    assert used is not None
    assert (used.sha256, used.declared_by) == (digest, WHO)
    card = (folder / CARD).read_text()
    assert digest in card
    assert r"J\. Doe, Example \*Hospital\* declares that these weights never saw" in card
    assert verify(folder).ok
    released = load(folder)
    labels = released.predict(torch.zeros(3, 1, 28, 28, dtype=torch.uint8))
    assert labels.shape == (3,)


@pytest.mark.usefixtures("without_onnx")
def test_without_public_weights_nobody_vouches(settings, tmp_path):
    plain = {"features": None, "features_weights": None, "features_side": None}
    plain |= {"features_declared_by": None, "descent_rounds": 0}
    transcribe(prepare(settings.model_copy(update=plain)), tmp_path / "run")
    folder = make_release(tmp_path / "run").folder
    assert read_statement(folder).public_weights is None
    assert "never saw" not in (folder / CARD).read_text()


@pytest.mark.long
@pytest.mark.usefixtures("without_onnx")
@pytest.mark.parametrize("forged", [None, "another"])
def test_nobody_leaves_out_or_changes_on_whose_word_a_guarantee_rests(settings, tmp_path, forged):
    transcribe(prepare(settings), tmp_path / "run")
    folder = make_release(tmp_path / "run").folder
    for path, key in (
        (folder / STATEMENT, "public_weights"),
        (tmp_path / "run" / METRICS, "features"),
    ):
        told = json.loads(path.read_text())
        told[key] = None if forged is None else told[key] | {"sha256": 64 * "0"}
        path.write_text(json.dumps(told))
    networks = next(check for check in verify(folder).checks if check.name == "networks")
    assert not networks.ok
    assert "vouches for" in networks.words
    with pytest.raises(PrivacyError, match="vouches for"):
        load(folder)
    with pytest.raises(PrivacyError, match="nothing can be released"):
        make_release(tmp_path / "run", tmp_path / "again")


def test_teachers_have_no_public_features(settings, public_weights, tmp_path):
    name = Backbone(NETWORK, SIDE, file_digest(public_weights)).name
    plain = {"features": None, "features_weights": None, "features_side": None}
    plain |= {"features_declared_by": None, "descent_rounds": None, "with_generator": True}
    asked = settings.model_copy(update={**plain, "teacher": name, "shards": 3, "rows": 40})
    with pytest.raises(ConfigError, match="a network that teachers learn"):
        prepare(asked)


@pytest.mark.long
def test_a_resumed_run_pays_once_and_wants_the_same_weights(
    settings, public_weights, tmp_path, monkeypatch
):
    mine = tmp_path / "mine.pth"
    mine.write_bytes(public_weights.read_bytes())
    settings = settings.model_copy(update={"features_weights": str(mine)})
    asked: list[str] = []
    whole = Holder.answer

    def crashing(self, query, plan):
        if len(asked) == 2:
            raise KeyboardInterrupt
        asked.append(query.id)
        return whole(self, query, plan)

    prepared = prepare(settings)
    with monkeypatch.context() as patched:
        patched.setattr(Holder, "answer", crashing)
        with pytest.raises(KeyboardInterrupt):
            transcribe(prepared, tmp_path / "run")
    again = prepared.settings  # as `--resume` reads them from the run's folder
    state = torch.load(mine, weights_only=True)
    state["features.0.bias"] += 1
    torch.save(state, mine)
    with pytest.raises(ConfigError, match="The run began with the student squeezenet1_1/24@"):
        prepare(again)
    elsewhere = again.model_copy(update={"features_weights": str(public_weights)})
    result = transcribe(prepare(elsewhere), tmp_path / "run", resume=True).result
    assert result.guarantee.epsilon == pytest.approx(50, rel=1e-6)
    assert result.ledger is not None
    assert result.ledger.booked == pytest.approx(50, rel=1e-3)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"features_weights": None}, "--features-weights with --features squeezenet1_1"),
        ({"features_declared_by": None}, "--features-declared-by with --features"),
        ({"features": None}, "--features with --features-weights"),
        ({"features": "resnet19"}, "did you mean resnet18"),
        ({"features": "resnet18"}, "holds another network"),
        ({"features": "patches"}, "--student patches"),
        ({"features_weights": "nowhere.pth"}, "No weights file 'nowhere.pth'"),
        ({"features_side": 5}, "features-side=5 within 8..512"),
        ({"student": "scatter"}, "no --student scatter with --features"),
        ({"unit": "holder"}, "no --features squeezenet1_1 with --unit holder"),
        ({"teacher": "cnn-small"}, "no --features squeezenet1_1 where teachers alone are asked"),
        ({"student": "x/32@" + 64 * "0"}, "no --student x/32@|another student|began with"),
    ],
)
def test_mistakes_are_named_before_anything_is_written(settings, tmp_path, changed, named):
    with pytest.raises(FedtranscribeError, match=named):
        prepare(settings.model_copy(update=changed))
    assert not list(tmp_path.glob("*.ledger.sqlite"))


def test_teachers_may_be_asked_after_sums_on_public_features(settings):
    prepared = prepare(
        settings.model_copy(
            update={"teacher": "cnn-small", "start": "moments", "shards": 20, "rows": 40}
            | {"descent_rounds": None, "with_generator": True}
        )
    )
    assert Backbone.parse(prepared.settings.student)
    assert any(NETWORK in line for line in prepared.words)


def test_a_students_name_alone_brings_no_weights(settings, public_weights):
    name = Backbone(NETWORK, SIDE, file_digest(public_weights)).name
    bare = TranscribeSettings(data=settings.data, student=name)
    with pytest.raises(ConfigError, match="--features and --features-weights with the student"):
        prepare(bare)


def test_a_deployment_says_the_side(public_weights):
    asked = FederationSettings(
        features=NETWORK, features_weights=str(public_weights), features_declared_by=WHO
    )
    with pytest.raises(ConfigError, match="features-side with features in a deployment"):
        with_features(asked, None)
    with_side = asked.model_copy(update={"features_side": SIDE})
    assert Backbone.parse(with_features(with_side, None).student)
    with pytest.raises(ConfigError, match="method=feddpsd with features=squeezenet1_1"):
        with_features(with_side.model_copy(update={"method": "fedavg"}), None)


def test_weights_that_change_under_a_run_stop_it_uncharged(settings, public_weights, tmp_path):
    mine = tmp_path / "mine.pth"
    mine.write_bytes(public_weights.read_bytes())
    prepared = prepare(settings.model_copy(update={"features_weights": str(mine)}))
    mine.write_bytes(b"")
    with pytest.raises(ModelMismatchError, match="give the file that the run began with"):
        transcribe(prepared, tmp_path / "run")
