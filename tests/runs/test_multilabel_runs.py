"""Runs on images that may have several labels, from the records to a release."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedtranscribe
from fedtranscribe.config import FederationSettings, SynthesizeSettings, TranscribeSettings, build
from fedtranscribe.config.evaluation import AuditSettings, EvaluationSettings
from fedtranscribe.data import DataSplit, load
from fedtranscribe.errors import ConfigError
from fedtranscribe.evaluation.audit import audit
from fedtranscribe.evaluation.canaries import CanaryKind, plant
from fedtranscribe.evaluation.evaluate import evaluate
from fedtranscribe.evaluation.report import write_report
from fedtranscribe.models.mixture import GaussianMixture
from fedtranscribe.releases import make_release, verify
from fedtranscribe.runs.finished import FinishedRun, Sampler
from fedtranscribe.runs.preparation import prepare
from fedtranscribe.runs.transcription import transcribe
from fedtranscribe.runs.transports import InProcess
from fedtranscribe.trainers.preparation import prepare as prepare_training
from tests.conftest import TINY_DPSD
from tests.federation.conftest import no_figures, open_nodes  # noqa: F401
from tests.federation.runs import go, start

pytestmark = pytest.mark.usefixtures("without_onnx")
NAMES = ("row", "column", "diagonal")
N, SIZE = 400, 16


def write(path: Path) -> Path:
    """Bars that lie across each other, in noise."""
    rng = np.random.default_rng(0)
    labels = (rng.random((N, 3)) < (0.5, 0.3, 0.15)).astype(np.int64)
    images = rng.integers(0, 60, (N, SIZE, SIZE))
    for image, (row, column, diagonal) in zip(images, labels, strict=True):
        if row:
            image[rng.integers(4, 8)] = 220
        if column:
            image[:, rng.integers(8, 12)] = 220
        if diagonal:
            image[np.arange(SIZE), np.arange(SIZE)] = 220
    named = {"labels": labels, "ids": np.arange(N), "class_names": np.array(NAMES)}
    np.savez(path, images=images.astype(np.uint8), **named)
    return path


def settings(data: Path, **more: Any) -> TranscribeSettings:
    chosen = {"data": str(data), "task": "multilabel", "epsilon": 50, "budget": 51, **more}
    return build(TranscribeSettings, {"dpsd": TINY_DPSD, **chosen})


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("data") / "bars.npz")


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "run"
    ledger = folder.parent / "ledger.sqlite"
    scored = transcribe(prepare(settings(data, ledger=ledger)), folder)
    assert scored.findings is not None
    assert scored.findings.mean_auc is not None
    assert scored.findings.mean_auc > 0.95
    assert scored.accuracy["student"] > scored.findings.majority + 0.05
    return folder


def test_a_run_keeps_findings_to_itself(run: Path):
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics.get("findings") is metrics.get("confusion") is None
    kept = json.loads((run / "private" / "confusion.json").read_text())
    assert sum(kept["positives"]) > 0
    assert len(kept["auc"]) == 3


def test_the_plan_says_how_labels_count(data: Path):
    words = prepare(settings(data)).plan.words
    assert "all labels of an image together count as one does" in words


def test_a_release_names_classes_by_thresholds_of_their_own(run: Path, data: Path):
    test = load(str(data), own=FinishedRun.open(run).own_data).test
    folder = make_release(run).folder
    assert verify(folder).ok
    plain = fedtranscribe.load(folder)
    assert plain.student is not None
    assert plain.student.multilabel
    likely = plain.probabilities(test.images)
    assert likely.shape == (len(test), 3)
    assert torch.equal(plain.predict(test.images), (likely > 0.5).long())
    assert float((plain.predict(test.images) == test.labels).double().mean()) > 0.8
    named = plain.predict(test.images, names=True)
    found = [tuple(NAMES[i] for i in row.nonzero().flatten()) for row in plain.predict(test.images)]
    assert named == found
    wanted = (0.2, 0.5, 0.9)
    out = run.parent / "with-thresholds"
    made = make_release(run, out, threshold=wanted, chosen_on="others").folder
    assert verify(made).ok
    release = fedtranscribe.load(made)
    assert release.threshold == pytest.approx(wanted)
    assert torch.equal(release.predict(test.images), (likely >= torch.tensor(wanted)).long())
    card = (made / "card.md").read_text(encoding="utf-8")
    assert "names classes, in order, from probabilities of 0.2, 0.5, 0.9 on" in card
    assert "of which an image may have several or none" in card
    for wrong in (0.5, (0.1, 0.2)):
        with pytest.raises(ConfigError, match="the student takes 3 thresholds"):
            make_release(run, run.parent / "wrong", threshold=wrong, chosen_on="others")


def test_evaluation_audit_and_report(run: Path):
    opened = FinishedRun.open(run)
    wanted = build(
        EvaluationSettings,
        {"classifiers": "cnn,lda", "samples": 100, "epochs": 1, "at": "sensitivity=0.9"},
    )
    student = evaluate(opened, wanted.model_copy(update={"fidelity": False}))["private"]["student"]
    assert len(student["operating_point"]) == 3
    assert all(point["sensitivity"] >= 0.9 for point in student["operating_point"])
    assert student["findings"]["mean_auc"] > 0.95
    kept = json.loads((run / "private" / "evaluation.json").read_text())
    assert kept["downstream"]["untrained"] == {"lda": "it learns one label per image"}
    assert 0 <= kept["downstream"]["cnn"] <= 1
    asked = build(AuditSettings, {"attacks": "loss,generator,inversion", "inversion_steps": 1})
    found = {finding.attack for finding in audit(opened, asked).findings}
    assert found == {"loss", "generator", "inversion"}
    page = write_report(run).read_text(encoding="utf-8")
    assert "diagonal" in page
    with pytest.raises(ConfigError, match="one label per image for canaries"):
        plant(opened.data().train, 4, kind=CanaryKind.PATTERN, seed=0)


def test_samples_have_all_their_labels(run: Path, tmp_path: Path):
    opened = FinishedRun.open(run)
    assert isinstance(opened.generator, GaussianMixture)
    assert opened.generator.classes == 4  # none of them, and a Gaussian for each
    images, labels = opened.synthesise(50)
    assert images.shape == (50, 1, SIZE, SIZE)
    assert labels.shape == (50, 3)
    assert set(labels.flatten().tolist()) == {0, 1}
    drawn = Sampler(run, "2", 5, 0, torch.device("cpu")).draw(lambda done, total: None)
    assert drawn.labels is not None
    assert drawn.labels[:, 2].tolist() == [1] * 5
    every = Sampler(run, "all", 4, 0, torch.device("cpu")).draw(lambda done, total: None)
    assert every.labels is not None
    assert [row.nonzero().flatten().tolist()[:1] for row in every.labels] == [[], [0], [1], [2]]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"teacher": "cnn-small", "source": "teachers"}, "teachers, who vote for one class"),
        ({"teacher": "cnn-small", "start": "moments"}, "teachers, who vote for one class"),
        ({"balanced": True}, "each class has its own threshold"),
        ({"ask": "anything"}, "a question of another package"),
    ],
)
def test_what_takes_one_label_is_refused(data: Path, more, message: str):
    with pytest.raises(ConfigError, match=message):
        prepare(settings(data, **more))


def test_diffusion_is_refused(data: Path):
    asked = build(SynthesizeSettings, {"data": str(data), "task": "multilabel"})
    with pytest.raises(ConfigError, match="one label per image for method=dp-promise"):
        prepare_training(asked)


@pytest.fixture
def federated(data: Path) -> FederationSettings:
    return build(
        FederationSettings,
        {
            **{"data": str(data), "task": "multilabel", "holders": 3, "alpha": 10.0},
            **{"epsilon": 50, "retry_after": 0.0, "retries": 0, "force": True, "dpsd": TINY_DPSD},
        },
    )


@pytest.fixture
def split(federated: FederationSettings) -> DataSplit:
    return load(federated.data, own=federated.own_data)


@pytest.mark.parametrize("noise", ["local", "central", "secagg"])
def test_three_holders_answer_as_one_does(
    federated: FederationSettings,
    open_nodes,  # noqa: F811
    tmp_path: Path,
    noise: str,
    split: DataSplit,
):
    asked = federated.model_copy(update={"noise": noise})
    nodes = open_nodes(asked)
    result = go(asked, InProcess(nodes), start(tmp_path / "run", asked), split)
    assert result["findings"]["mean_auc"] > (0.8 if noise == "local" else 0.9)
    assert result["epsilon"] <= 50 * (1 + 1e-6)
    roster = json.loads((tmp_path / "run" / "roster.json").read_text())
    assert all(facts["multilabel"] for facts in roster.values())
    student = FinishedRun.open(tmp_path / "run").student
    assert student is not None
    assert student.multilabel


def test_a_holder_with_single_labels_is_left_out(
    federated: FederationSettings,
    open_nodes,  # noqa: F811
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
):
    asked = federated.model_copy(update={"noise": "local", "quorum": 2})
    nodes = open_nodes(asked)
    seen = nodes[2]._facts()
    nodes[2]._facts = lambda: replace(seen, multilabel=False)
    go(asked, InProcess(nodes), start(tmp_path / "run", asked))
    roster = json.loads((tmp_path / "run" / "roster.json").read_text())
    assert [*roster] == ["holder-0", "holder-1"]
    assert "several labels" in caplog.text
