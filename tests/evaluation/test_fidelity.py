"""FID and its kin, by torch-fidelity."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from fedtranscribe.config import build
from fedtranscribe.config.evaluation import EvaluationSettings
from fedtranscribe.data import NamedData, load
from fedtranscribe.errors import ConfigError, CorruptWeightsError, WeightsNotFoundError
from fedtranscribe.evaluation import fidelity as features
from fedtranscribe.evaluation.fidelity import FeatureSource, feature_source, measure, train_features
from fedtranscribe.results.result import RunSettings

CPU = torch.device("cpu")
SCANS = NamedData("scans.npz", "npz:scans")
_FIGURES = {
    "frechet_inception_distance": "fid",
    "inception_score_mean": "inception_score",
    "inception_score_std": "inception_score_std",
    "precision": "precision",
    "recall": "recall",
}


@pytest.fixture
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """A hundred digits, and as many others with some noise."""
    images = load("digits").test.images
    rng = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 60, images[100:200].shape, generator=rng)
    return images[100:200] // 2 + noise.to(torch.uint8), images[::10]


@pytest.mark.usefixtures("quick_features")
def test_features_of_public_images_are_named_and_measured_right(digits, monkeypatch):
    trained = {}
    train = features.train_features

    def keep(public):
        trained["network"] = train(public)
        return trained["network"]

    monkeypatch.setattr(features, "train_features", keep)
    source = feature_source(EvaluationSettings(), RunSettings(public_data="shapes"), SCANS)
    assert "uci-digits" in source.words
    assert "not comparable with published FID" in source.words
    found = measure(digits[0], digits[1], source, CPU)
    ours, real = (trained["network"](part.float() / 255)[0].double().numpy() for part in digits)
    mean = np.square(ours.mean(0) - real.mean(0)).sum()
    first, second = np.cov(ours, rowvar=False), np.cov(real, rowvar=False)
    half = symmetric_root(first)
    apart = np.trace(first + second - 2 * symmetric_root(half @ second @ half))
    assert found["fid"] == pytest.approx(mean + apart, rel=1e-3)
    assert 1 <= found["inception_score"] <= 10
    assert 0 <= found["precision"] <= 1


@pytest.mark.usefixtures("quick_features")
def test_the_same_images_are_no_distance_apart(digits):
    source = feature_source(EvaluationSettings(), RunSettings(), SCANS)
    found = measure(digits[1], digits[1], source, CPU)
    assert found["fid"] == pytest.approx(0, abs=1e-4)
    assert found["precision"] == found["recall"] == 1


@pytest.mark.usefixtures("quick_features")
def test_colour_and_other_sizes_are_seen_too():
    source = feature_source(EvaluationSettings(), RunSettings(public_data="none"), SCANS)
    images = torch.randint(0, 255, (40, 3, 32, 32)).to(torch.uint8)
    assert measure(images[:20], images[20:], source, CPU)["fid"] > 0


@pytest.mark.usefixtures("quick_features")
def test_too_few_real_images_leave_only_what_needs_none(digits):
    source = feature_source(EvaluationSettings(), RunSettings(), SCANS)
    found = measure(digits[0], digits[1][:3], source, CPU)
    assert found["fid"] is found["precision"] is None
    assert found["inception_score"] >= 1


def test_a_labelled_public_set_of_the_run_is_preferred(tiny_data, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "fedtranscribe.evaluation.fidelity.registered",
        lambda name, root: asked.append(name) or ("network", name),
    )
    feature_source(EvaluationSettings(), RunSettings(public_data=str(tiny_data)), SCANS)
    assert asked == [str(tiny_data)]


@pytest.mark.usefixtures("quick_features")
def test_an_absent_public_set_is_replaced_and_the_result_says_so(tmp_path):
    run = RunSettings(public_data="fashion-mnist", data_root=tmp_path)
    assert "uci-digits" in feature_source(EvaluationSettings(), run, SCANS).words


@pytest.mark.usefixtures("quick_features")
def test_no_feature_network_learns_from_the_private_records(tiny_data, tmp_path, monkeypatch):
    trained = []
    train = features.train_features
    monkeypatch.setattr(features, "train_features", lambda p: trained.append(p.name) or train(p))
    digits = NamedData.of("digits", load("digits"))
    own = NamedData.of(str(tiny_data), load(str(tiny_data)))
    copy = shutil.copy(tiny_data, tmp_path / "public.npz")
    for public, private in (("digits", digits), (str(copy), own), (str(tiny_data), own)):
        with pytest.raises(ConfigError, match="--inception FILE, or --no-fidelity") as error:
            feature_source(EvaluationSettings(), RunSettings(public_data=public), private)
        assert repr(public) in str(error.value)
        assert repr(private.spec) in str(error.value)
    assert not trained
    uci = NamedData.of("uci-digits", load("uci-digits"))
    found = feature_source(EvaluationSettings(), RunSettings(public_data="shapes"), uci)
    assert "trained on digits" in found.words
    assert trained == ["digits"]


def test_training_is_deterministic():
    public = load("uci-digits").train
    first, second = train_features(public, steps=3), train_features(public, steps=3)
    for ours, theirs in zip(first.state_dict().values(), second.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)


def test_absent_and_foreign_inception_weights_are_named(tmp_path):
    absent = EvaluationSettings(inception=tmp_path / "absent.pth")
    with pytest.raises(WeightsNotFoundError, match=r"absent\.pth"):
        feature_source(absent, RunSettings(), SCANS)
    foreign = tmp_path / "foreign.pth"
    foreign.write_bytes(b"not a pickle")
    with pytest.raises(CorruptWeightsError, match=r"foreign\.pth"):
        feature_source(EvaluationSettings(inception=foreign), RunSettings(), SCANS)
    torch.save({"fc.weight": torch.zeros(2)}, foreign)
    with pytest.raises(CorruptWeightsError, match=r"foreign\.pth"):
        feature_source(EvaluationSettings(inception=foreign), RunSettings(), SCANS)


def test_a_path_and_a_download_contradict_each_other():
    with pytest.raises(ConfigError, match="not both"):
        build(EvaluationSettings, {"inception": "x.pth", "download": True})


def test_an_unreachable_download_is_one_line(monkeypatch, digits):
    import torch_fidelity

    def unreachable(**_):
        raise OSError("no network")

    monkeypatch.setattr(torch_fidelity, "calculate_metrics", unreachable)
    source = feature_source(EvaluationSettings(download=True), RunSettings(), SCANS)
    with pytest.raises(WeightsNotFoundError, match=r"no network.*--inception"):
        measure(digits[0], digits[1], source, CPU)


@pytest.mark.long
@pytest.mark.parametrize("channels", [1, 3])
def test_agrees_with_the_command_line_of_torch_fidelity(channels: int, tmp_path: Path):
    """Same images, same randomly initialised Inception weights, saved."""
    weights = random_inception(tmp_path / "inception.pth")
    fakes, reals = patterns(12, channels, seed=0), patterns(10, channels, seed=1) // 2
    write_pngs(fakes, tmp_path / "fakes")
    write_pngs(reals, tmp_path / "reals")
    words = "--cpu --isc --fid --prc --json --silent --no-cache --save-cpu-ram"
    options = {
        "--input1": tmp_path / "fakes",
        "--input2": tmp_path / "reals",
        "--feature-extractor": "inception-v3-compat",
        "--feature-extractor-weights-path": weights,
    }
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("fidelity")),
            *words.split(),
            *(str(part) for pair in options.items() for part in pair),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    theirs = json.loads(done.stdout[done.stdout.index("{") :])

    source = feature_source(EvaluationSettings(inception=weights), RunSettings(), SCANS)
    assert source == FeatureSource(source.extractor, weights, True, source.words)
    assert "not comparable with published FID" in source.words
    ours = measure(fakes, reals, source, CPU)
    assert ours["fid"] > 0.1
    assert ours["inception_score"] > 1.001
    for key, name in _FIGURES.items():
        assert ours[name] == pytest.approx(theirs[key], rel=1e-5, abs=1e-6), name


def symmetric_root(matrix: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.sqrt(values.clip(0))) @ vectors.T


def random_inception(path: Path) -> Path:
    """Weights under which an image still makes a difference after fifty layers."""
    from torch_fidelity import FeatureExtractorInceptionV3

    class Blank(FeatureExtractorInceptionV3):
        def load_state_dict(self, *_, **__):  # nothing to load yet
            return torch.nn.modules.module._IncompatibleKeys([], [])

    torch.save({}, path)
    network = Blank("blank", ["logits_unbiased"], feature_extractor_weights_path=str(path))
    rng = torch.Generator().manual_seed(0)
    for module in network.modules():
        if isinstance(module, torch.nn.Conv2d | torch.nn.Linear):
            fan_in = module.weight[0].numel()
            drawn = torch.randn(module.weight.shape, generator=rng)
            module.weight.data = drawn * (2 / fan_in) ** 0.5
        elif isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 1.0
    # Without statistics of its own the network would answer alike to everything.
    with torch.no_grad():
        network.train()(patterns(8, 3, seed=2))
    torch.save(network.state_dict(), path)
    return path


def patterns(n: int, channels: int, seed: int) -> torch.Tensor:
    """Coarse random tiles: more different from each other than pixel noise."""
    rng = torch.Generator().manual_seed(seed)
    tiles = torch.randint(0, 256, (n, channels, 5, 5), generator=rng).to(torch.uint8)
    return tiles.repeat_interleave(4, 2).repeat_interleave(4, 3)


def write_pngs(images: torch.Tensor, folder: Path) -> None:
    from PIL import Image

    folder.mkdir()
    for number, image in enumerate(images):
        pixels = image.permute(1, 2, 0).squeeze(-1).numpy()
        Image.fromarray(pixels).save(folder / f"{number:03}.png")
