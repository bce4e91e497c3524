"""Labels by k-means: of public images, each record by itself."""

from pathlib import Path

import pytest
import torch

from fedtranscribe.config import SynthesizeSettings
from fedtranscribe.config.evaluation import EvaluationSettings
from fedtranscribe.data import load
from fedtranscribe.errors import ConfigError
from fedtranscribe.evaluation.evaluate import evaluate
from fedtranscribe.releases import make_release
from fedtranscribe.runs.finished import FinishedRun
from fedtranscribe.trainers.preparation import prepare
from fedtranscribe.trainers.public_images import Clusters
from fedtranscribe.trainers.synthesize import synthesize


def blobs(n: int, seed: int) -> torch.Tensor:
    """Images [n, 1, 8, 8] of three brightnesses, in turn."""
    rng = torch.Generator().manual_seed(seed)
    level = (torch.arange(n) % 3 - 1.0).view(n, 1, 1, 1) * 0.7
    return (level + 0.05 * torch.randn(n, 1, 8, 8, generator=rng)).clamp(-1, 1)


def test_clusters_find_what_is_there_and_label_each_image_by_itself():
    clusters = Clusters(blobs(90, 0), 3, seed=0)
    images = blobs(30, 1)
    labels = clusters.labels(images)
    assert [len({*labels[kind::3].tolist()}) for kind in range(3)] == [1, 1, 1]
    assert labels.unique().numel() == 3
    # Nobody else's image can move a label: this is what makes it free.
    alone = torch.cat([clusters.labels(image[None]) for image in images])
    assert torch.equal(alone, labels)
    others = torch.cat([images[:5], blobs(50, 2)])
    assert torch.equal(clusters.labels(others)[:5], labels[:5])
    assert torch.equal(Clusters(blobs(90, 0), 3, seed=0).labels(images), labels)


def test_more_clusters_than_public_images():
    with pytest.raises(ConfigError, match="clusters=9 <= 8 public"):
        Clusters(blobs(8, 0), 9, seed=0)


def test_clusters_need_public_images(tiny_synthesis: SynthesizeSettings):
    with pytest.raises(ConfigError, match="pretrain-data"):
        prepare(tiny_synthesis.model_copy(update={"labels": "kmeans", "noise": False}))


@pytest.mark.long
def test_a_run_under_clusters_says_so_and_is_not_tested_on_them(
    tiny_synthesis: SynthesizeSettings, tmp_path: Path
):
    changes = {"labels": "kmeans", "clusters": 4, "noise": False, "pretrain_data": "shapes"}
    settings = tiny_synthesis.model_copy(
        update={**changes, "pretrain_epochs": 0.01, "pretrain_batch": 8}
    )
    prepared = prepare(settings)
    assert prepared.facts.classes == 4
    assert torch.equal(prepared.split.train.images, load(str(settings.data)).train.images)
    other = prepare(settings.model_copy(update={"labels": "own"}))
    assert prepared.binding != other.binding
    result = synthesize(prepared, tmp_path / "run", judge=lambda *_: 1 / 0).to_json()
    assert result["classes"] == 4
    assert "4 k-means clusters" in result["labels"]
    run = FinishedRun.open(tmp_path / "run")
    assert not run.labelled
    assert run.synthesise(8)[1].tolist() == [0, 1, 2, 3] * 2
    quick = EvaluationSettings(classifiers=("lda",), fidelity=False, device="cpu")
    assert "downstream" not in evaluate(run, quick)["private"]
    card = make_release(run.path, stamp_not_private=True).folder / "card.md"
    assert "- Labels: 4 k-means clusters of the public images" in card.read_text(encoding="utf-8")
