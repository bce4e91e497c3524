"""What is refused before anything is spent, and what is picked from public facts."""

import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from synthesis_settings import told

from fedtranscribe.config import DpSadOptions, SynthesizeSettings
from fedtranscribe.data import NamedData, load
from fedtranscribe.errors import ConfigError, InvalidDataError, UnsupportedAdjacencyError
from fedtranscribe.trainers.dp_promise import DpPromiseSettings, PhaseOne
from fedtranscribe.trainers.dp_sad import DpSadSettings
from fedtranscribe.trainers.plan import DataFacts, plan_training
from fedtranscribe.trainers.preparation import prepare
from fedtranscribe.trainers.profiles import DpPromiseRecipe, DpSadRecipe
from fedtranscribe.trainers.public_images import public_images

DIGITS = DataFacts("digits", 4000, 10, 1, 28)
MNIST = DataFacts("mnist", 60_000, 10, 1, 28)
CIFAR = DataFacts("cifar10", 50_000, 10, 3, 32)
PLAIN = SynthesizeSettings(noise=False)


def promised(settings: SynthesizeSettings, facts: DataFacts) -> DpPromiseSettings:
    return plan_training(DpPromiseRecipe(), settings, facts, 0).settings


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"boundary": 0}, r"S=0 in 1\.\.1001"),
        ({"boundary": 1002}, r"S=1002 in 1\.\.1001"),
        ({"boundary": 1000}, "Phase I would be empty"),
        ({"boundary": 900, "phase1": False}, "boundary=900 or no Phase I"),
        ({"boundary": 1001, "phase1_epochs": 2}, "phase1_batch=4 or no Phase I"),
        ({"phase1_batch": 49}, "phase1_batch=49 <= 48 records"),
        ({"phase2_batch": 49}, "phase2_batch=49 <= 48 records"),
        ({"boundary": 300, "noisy_images": "cached"}, r"boundary=300 >= \d+: Phase I alone costs"),
        ({"sampling_steps": 1001}, "steps=1001 <= T=1000"),
        ({"device": "nonsense"}, "nonsense"),
    ],
)
def test_bad_settings_are_refused_and_nothing_is_spent(
    tiny_synthesis, tmp_path: Path, changes: dict, words: str
):
    with pytest.raises(ConfigError, match=words):
        prepare(told(tiny_synthesis, **changes))
    assert not list(tmp_path.glob("*.sqlite"))


def test_the_boundary_that_is_named_is_the_smallest_that_fits(tiny_synthesis):
    def refused(boundary: int) -> str:
        with pytest.raises(ConfigError, match="Phase I alone") as error:
            prepare(told(tiny_synthesis, boundary=boundary, noisy_images="cached"))
        return str(error.value)

    smallest = int(refused(300).split(">= ")[1].split(":")[0])
    assert f">= {smallest}:" in refused(smallest - 1)


def test_add_remove_needs_a_run_without_phase_i(tiny_synthesis):
    with pytest.raises(UnsupportedAdjacencyError):
        prepare(told(tiny_synthesis, adjacency="add-remove"))


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"images": np.full((9, 16, 16), np.nan, np.float32)}, "NaN"),
        ({"images": np.full((9, 16, 16), 1.5, np.float32)}, r"within \[0, 1\]"),
        ({"images": np.zeros((9, 16, 20), np.uint8)}, "square"),
        ({"labels": None}, "'labels'"),
    ],
)
def test_unusable_data_are_refused(tiny_synthesis, tmp_path: Path, arrays: dict, words: str):
    good = {"images": np.zeros((9, 16, 16), np.uint8), "labels": np.arange(9) % 3, "classes": 3}
    kept = {name: value for name, value in (good | arrays).items() if value is not None}
    np.savez(tmp_path / "bad.npz", **kept)
    with pytest.raises(InvalidDataError, match=words):
        prepare(told(tiny_synthesis, data=str(tmp_path / "bad.npz")))


def test_a_side_that_the_network_cannot_halve(tiny_synthesis, tmp_path: Path):
    images = np.zeros((9, 18, 18), np.uint8)
    np.savez(tmp_path / "odd.npz", images=images, labels=np.arange(9) % 3, classes=3)
    with pytest.raises(ConfigError, match="multiple of 4"):
        prepare(told(tiny_synthesis, data=str(tmp_path / "odd.npz")))


def test_memory_is_said_beforehand(tiny_synthesis):
    said = prepare(told(tiny_synthesis, physical_batch=None)).memory
    assert re.fullmatch(
        r"memory: 0\.0 GB for images, at most [0-2]\.\d GB for gradients of records \(.*", said
    )


# ---------------------------------------------------------------- profiles


def test_the_quick_profile_on_digits_is_the_run_that_was_measured():
    plan = plan_training(DpPromiseRecipe(), PLAIN, DIGITS, 0)
    quick = plan.settings
    assert (quick.unet, quick.boundary, quick.copies, quick.ema_decay) == ("tiny", 900, 1, 0.999)
    assert (quick.phase1_batch, quick.phase1_epochs, quick.phase1_lr) == (32, 3, 1e-3)
    assert (quick.phase2_batch, quick.phase2_epochs, quick.phase2_lr) == (64, 10, 2e-3)
    assert (quick.sampling.steps, quick.sampling.eta, quick.sampling.guidance) == (25, 1, 0)
    assert quick.phase1 is PhaseOne.SOUND
    assert plan.steps == {"phase I": 375, "phase II": 625}
    assert (plan.release, plan.published, quick.noise_multiplier) == (None, None, 0)


def test_the_paper_profile_follows_the_shape_of_the_images():
    paper = PLAIN.model_copy(update={"profile": "paper"})
    mnist, cifar = promised(paper, MNIST), promised(paper, CIFAR)
    assert (mnist.unet, mnist.phase2_batch, mnist.copies, mnist.clip) == ("small", 4096, 32, 1e-2)
    assert (cifar.unet, cifar.boundary, cifar.copies) == ("large", 925, 4)
    method = DpPromiseRecipe()
    assert plan_training(method, paper, MNIST, 0).classes == 10
    assert plan_training(method, paper, CIFAR, 0).classes == 0
    assert method.public_data(paper, MNIST) == "fashion-mnist"
    assert method.public_data(PLAIN, MNIST) is None


def test_a_batch_that_nobody_asked_for_gives_way_to_small_data():
    few = replace(DIGITS, records=20)
    assert promised(PLAIN, few).phase2_batch == 20
    with pytest.raises(ConfigError, match="phase2_batch=21 <= 20"):
        promised(told(PLAIN, phase2_batch=21), few)


def test_options_reach_the_method():
    settings = told(
        PLAIN,
        **{"size": "small", "pretrain_epochs": 7, "guidance": 0.5, "sampling_steps": 9},
        **{"phase2_lr": 0.1, "noisy_images": "cached", "phase1": False, "label_drop": 0.2},
    )
    resolved = promised(settings, DIGITS)
    assert (resolved.unet, resolved.pretrain_epochs, resolved.boundary) == ("small", 7, 1001)
    assert (resolved.sampling.steps, resolved.sampling.guidance) == (9, 0.5)
    assert (resolved.phase2_lr, resolved.noisy_images, resolved.label_drop) == (0.1, "cached", 0.2)
    assert promised(PLAIN.model_copy(update={"conditional": False}), DIGITS)


def test_dp_sad_has_its_own_options():
    options = DpSadOptions(teacher="dp", time_steps=200, teacher_guidance=0.5, batch=100)
    settings = PLAIN.model_copy(update={"method": "dp-sad", "dp_sad": options})
    method = DpSadRecipe()
    plan = plan_training(method, settings, DIGITS, 0)
    resolved: DpSadSettings = plan.settings
    assert (resolved.teacher, resolved.guidance, resolved.batch) == ("dp", 0.5, 100)
    assert plan.settings.schedule.steps == 200
    assert plan.steps == {"teacher": 320, "student": 320}
    assert method.public_data(settings, DIGITS) is None
    public = PLAIN.model_copy(update={"dp_sad": DpSadOptions(teacher="public")})
    assert method.public_data(PLAIN, DIGITS) is None  # the quick profile's teacher is private
    assert method.public_data(public, DIGITS) == "shapes"
    with pytest.raises(ConfigError, match="--pretrain-data"):
        plan_training(method, public, DIGITS, 0)
    more = settings.model_copy(update={"dp_sad": DpSadOptions(teacher="dp", batch=4001)})
    with pytest.raises(ConfigError, match="batch=4001 <= 4000"):
        plan_training(method, more, DIGITS, 0)


# ---------------------------------------------------------------- public images


def test_public_images_take_the_shape_of_the_private_ones(tmp_path: Path):
    colour = np.random.default_rng(0).integers(0, 255, (6, 20, 20, 3), dtype=np.uint8)
    np.savez(tmp_path / "colour.npz", images=colour, labels=np.arange(6) % 3, classes=3)
    facts = DataFacts("mine", 10, 3, 1, 16)
    mine = NamedData("mine.npz", "npz:mine")
    found = public_images(str(tmp_path / "colour.npz"), PLAIN, facts, mine)
    train = load(str(tmp_path / "colour.npz")).train
    assert tuple(found.images.shape) == (len(train), 1, 16, 16)
    assert float(found.images.abs().max()) <= 1
    assert found.labels is not None
    assert torch.equal(found.labels, train.labels)
    wide = replace(facts, channels=3, classes=4)
    again = public_images("shapes", PLAIN, wide, mine)
    assert tuple(again.images.shape[1:]) == (3, 16, 16)
    assert again.labels is None


@pytest.mark.parametrize(("name", "private"), [("uci-digits", "uci-digits"), ("digits", "mnist")])
def test_the_private_images_are_not_public(name: str, private: str):
    with pytest.raises(ConfigError, match="to name public images"):
        public_images(name, PLAIN, DIGITS, NamedData(private, private))


@pytest.mark.parametrize("method", ["dp-promise", "dp-sad"])
def test_a_copy_of_the_records_is_refused_before_anything_is_planned(
    tiny_synthesis, tmp_path: Path, monkeypatch, method: str
):
    copy = shutil.copy(tiny_synthesis.data, tmp_path / "public.npz")
    monkeypatch.setattr("fedtranscribe.trainers.preparation.plan_training", None)
    for spelled, words in {
        str(copy): "exactly those of",
        os.path.relpath(tiny_synthesis.data): "the file or folder of",
    }.items():
        settings = told(tiny_synthesis, method=method, pretrain_data=spelled)
        with pytest.raises(ConfigError, match=words) as error:
            prepare(settings)
        assert repr(spelled) in str(error.value)
        assert repr(tiny_synthesis.data) in str(error.value)
    assert not list(tmp_path.rglob("*.sqlite*"))


def test_a_holder_that_a_server_asks_compares_ids_alone(tiny_synthesis, tmp_path: Path):
    copy = shutil.copy(tiny_synthesis.data, tmp_path / "public.npz")
    split = load(tiny_synthesis.data)
    at_holder = told(tiny_synthesis, data="the records", pretrain_data=str(copy))
    assert prepare(at_holder, split, asked_by_server=True).public is not None
    again = told(at_holder, pretrain_data=tiny_synthesis.data)
    with pytest.raises(ConfigError, match="data_id 'npz:small'"):
        prepare(again, split, asked_by_server=True)
