"""Images from a finished run: labels, files, other samplers."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fedtranscribe.config import SynthesizeSettings
from fedtranscribe.data import DrawnFrom, load
from fedtranscribe.errors import ConfigError, StorageError, WeightsNotFoundError
from fedtranscribe.models.diffusion import Synthesizer
from fedtranscribe.results.parts import Diffusion
from fedtranscribe.trainers.preparation import prepare
from fedtranscribe.trainers.samples import chosen_labels, expect_writable, open_run, write_samples
from fedtranscribe.trainers.synthesize import synthesize

CPU = torch.device("cpu")


@pytest.fixture
def run(tiny_synthesis: SynthesizeSettings, tmp_path: Path) -> Path:
    """A finished run without noise, which needs no calibration."""
    settings = tiny_synthesis.model_copy(update={"noise": False})
    synthesize(prepare(settings), tmp_path / "run")
    return tmp_path / "run"


def test_labels_that_a_user_means():
    assert chosen_labels("all", 5, 3, 0).tolist() == [0, 1, 2, 0, 1]
    assert chosen_labels("2,0", 3, 3, 0).tolist() == [2, 0, 2]
    drawn = chosen_labels("uniform", 3000, 3, 0)
    assert torch.bincount(drawn).min() > 900
    assert not torch.equal(drawn, chosen_labels("uniform", 3000, 3, 1))
    assert chosen_labels("all", 2, 0, 0).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("words", "num", "classes", "named"),
    [
        ("3", 1, 3, "'3'"),
        ("-1", 1, 3, "'-1'"),
        ("cat", 1, 3, r"0\.\.2"),
        ("", 1, 3, "all, uniform"),
        ("all", 0, 3, "num=0 >= 1"),
        ("1", 1, 0, "learned no labels"),
    ],
)
def test_labels_that_make_no_sense(words: str, num: int, classes: int, named: str):
    with pytest.raises(ConfigError, match=named):
        chosen_labels(words, num, classes, 0)


def test_the_same_seed_draws_the_same_images(run: Path):
    model, result = open_run(run, CPU)
    assert isinstance(model, Synthesizer)
    assert (model.classes, model.sampling.steps) == (3, result.diffusion.sampling["steps"])
    labels = chosen_labels("all", 3, 3, 0)
    first = model.draw(labels, seed=0)
    assert (first.dtype, tuple(first.shape)) == (torch.uint8, (3, 1, 16, 16))
    assert torch.equal(first, model.draw(labels, seed=0))
    assert not torch.equal(first, model.draw(labels, seed=1))
    assert not torch.equal(first, model.with_sampling(steps=3, guidance=None).draw(labels, seed=0))
    with pytest.raises(ConfigError, match="steps=1001 <= T=1000"):
        model.with_sampling(steps=1001, guidance=None)
    with pytest.raises(ConfigError, match="guidance=-1"):
        model.with_sampling(steps=None, guidance=-1.0)


def test_an_archive_can_be_read_as_data(tmp_path: Path):
    images = torch.randint(0, 256, (10, 3, 8, 8), dtype=torch.uint8)
    labels = torch.arange(10) % 2
    write_samples(images, labels, tmp_path / "samples.npz", 3, ("cat", "dog", "emu"))
    with np.load(tmp_path / "samples.npz") as arrays:
        assert arrays["images"].dtype == np.uint8
        assert arrays["labels"].dtype == np.int64
        assert np.array_equal(arrays["images"], images.numpy())
    split = load(str(tmp_path / "samples.npz"))
    assert len(split.train) + len(split.test) == 10
    assert split.train.class_names == ("cat", "dog", "emu")
    assert split.train.drawn_from is None
    for drawn in (DrawnFrom("run-1", "npz:scans"), DrawnFrom("run-1", None)):
        write_samples(images, labels, tmp_path / "drawn.npz", 3, drawn_from=drawn)
        assert load(str(tmp_path / "drawn.npz")).test.drawn_from == drawn
    write_samples(images, None, tmp_path / "without.npz", 0)
    with np.load(tmp_path / "without.npz") as arrays:
        assert arrays.files == ["images"]


@pytest.mark.parametrize("channels", [1, 3])
def test_a_folder_has_pictures_by_label(tmp_path: Path, channels: int):
    from PIL import Image

    images = torch.randint(0, 256, (11, channels, 8, 8), dtype=torch.uint8)
    write_samples(images, torch.arange(11) % 2, tmp_path / "out", 3)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["0", "1", "2"]
    assert load(str(tmp_path / "out")).train.classes == 3
    assert len(list((tmp_path / "out" / "0").glob("*.png"))) == 6
    with Image.open(tmp_path / "out" / "1" / "03.png") as picture:
        shown = np.asarray(picture).reshape(8, 8, channels)
    assert np.array_equal(shown, images[3].permute(1, 2, 0).numpy())
    write_samples(images, None, tmp_path / "flat", 0)
    assert len(list((tmp_path / "flat").glob("*.png"))) == 11


def test_folders_of_many_classes_sort_as_numbers(tmp_path: Path):
    labels = torch.arange(22) % 11
    write_samples(torch.zeros(22, 1, 8, 8, dtype=torch.uint8), labels, tmp_path / "out", 11)
    names = [f"{label:02}" for label in range(11)]
    assert load(str(tmp_path / "out")).train.class_names == tuple(names)


def test_places_that_samples_cannot_go(tmp_path: Path):
    (tmp_path / "there.npz").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.txt").write_text("mine")
    for taken in ("there.npz", "folder"):
        with pytest.raises(StorageError, match="exists already"):
            expect_writable(tmp_path / taken)
    with pytest.raises(StorageError, match=r"there\.npz"):
        expect_writable(tmp_path / "there.npz" / "x.npz")
    with pytest.raises(ConfigError, match=r"\.npz"):
        expect_writable(tmp_path / "samples.csv")
    expect_writable(tmp_path / "new" / "samples.npz")


def test_runs_that_have_no_model(tmp_path: Path, run: Path):
    with pytest.raises(StorageError, match="No run"):
        open_run(tmp_path / "absent", CPU)
    (run / "denoiser.safetensors").unlink()
    with pytest.raises(WeightsNotFoundError):
        open_run(run, CPU)
    result = json.loads((run / "metrics.json").read_text())
    others = {key: value for key, value in result.items() if key not in Diffusion.model_fields}
    (run / "metrics.json").write_text(json.dumps(others))
    with pytest.raises(StorageError, match="no diffusion model"):
        open_run(run, CPU)
    (run / "metrics.json").unlink()
    with pytest.raises(StorageError, match="not finished"):
        open_run(run, CPU)


def test_an_unconditional_network_asks_for_no_label(
    tiny_synthesis: SynthesizeSettings, tmp_path: Path
):
    settings = tiny_synthesis.model_copy(update={"noise": False, "conditional": False})
    result = synthesize(prepare(settings), tmp_path / "run", judge=lambda *_: 1 / 0).to_json()
    assert result["accuracy"] == {}
    model, _ = open_run(tmp_path / "run", CPU)
    assert model.classes == 0
    assert len(model.draw(chosen_labels("all", 2, 0, 0), seed=0)) == 2
