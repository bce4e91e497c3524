from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch

from fedtranscribe.errors import (
    ConfigError,
    CorruptWeightsError,
    ModelMismatchError,
    WeightsNotFoundError,
)
from fedtranscribe.models.mixture import GaussianMixture, load_mixture, save_mixture
from fedtranscribe.models.sharpener import Sharpener
from fedtranscribe.models.weights import ENTRY, read_metadata

D, K, C = 64, 4, 3


@pytest.fixture
def made() -> GaussianMixture:
    rng = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=rng, dtype=torch.float64)

    axes = torch.linalg.qr(drawn(D, K)).Q
    labels = torch.tensor([0, 1, 1])
    parts = (torch.tensor([5.0, 0, 20]).double(), labels, drawn(C, K), drawn(C, K, K))
    return GaussianMixture(1, 8, 2, drawn(D), axes, *parts, drawn(D).abs())


def test_what_is_read_draws_what_was_written(made: GaussianMixture, tmp_path: Path):
    path = tmp_path / "generator.safetensors"
    save_mixture(made, path)
    read = load_mixture(path)
    save_mixture(read, tmp_path / "again.safetensors")
    assert path.read_bytes() == (tmp_path / "again.safetensors").read_bytes()
    (images, labels), (others, classes) = (
        mixture.sample(50, torch.Generator().manual_seed(1)) for mixture in (made, read)
    )
    torch.testing.assert_close(images, others, atol=1e-5, rtol=0)
    assert torch.equal(labels, classes)
    assert set(labels.tolist()) == {0, 1}


def sharpened(made: GaussianMixture) -> GaussianMixture:
    """With a sharpener that does something."""
    sharpener = Sharpener(1, 8, 2)
    with torch.no_grad():
        sharpener.last.weight.normal_(generator=torch.Generator().manual_seed(1))
    return replace(made, sharpener=sharpener.eval())


def test_a_sharpener_is_stored_with_its_mixture(made: GaussianMixture, tmp_path: Path):
    path = tmp_path / "generator.safetensors"
    save_mixture(sharpened(made), path)
    read = load_mixture(path)
    save_mixture(read, tmp_path / "again.safetensors")
    assert path.read_bytes() == (tmp_path / "again.safetensors").read_bytes()
    wanted = torch.tensor([0, 1, 1, 0])
    images, others = (
        mixture.draw(wanted, torch.Generator().manual_seed(1))
        for mixture in (sharpened(made), read)
    )
    torch.testing.assert_close(images, others, atol=1e-4, rtol=0)
    blurred = read.blurred.draw(wanted, torch.Generator().manual_seed(1))
    assert float((blurred - images).abs().max()) > 0.1
    save_mixture(read.blurred, path)
    assert load_mixture(path).sharpener is None


def test_a_fresh_sharpener_leaves_images_as_they_are(made: GaussianMixture):
    fresh = replace(made, sharpener=Sharpener(1, 8, 2))
    wanted = torch.tensor([0, 1, 1, 0])
    images, blurred = (
        mixture.draw(wanted, torch.Generator().manual_seed(1)) for mixture in (fresh, made.smooth)
    )
    torch.testing.assert_close(images, blurred.clamp(0.02, 0.98))
    assert not made.smooth.texture.any()


@pytest.mark.parametrize(
    ("name", "tensor", "error", "words"),
    [
        ("last.bias", torch.full((1,), torch.nan), CorruptWeightsError, "NaN or infinity"),
        ("last.bias", torch.zeros(2), ModelMismatchError, "last.bias"),
        ("last.more", torch.zeros(2), CorruptWeightsError, "unknown 'last.more'"),
        ("classes.weight", torch.zeros(3, 32), ModelMismatchError, "classes.weight"),
    ],
)
def test_a_damaged_sharpener_is_refused(
    made: GaussianMixture, tmp_path: Path, name: str, tensor: torch.Tensor, error, words: str
):
    path = tmp_path / "generator.safetensors"
    save_mixture(sharpened(made), path)
    with pytest.raises(error, match=words):
        load_mixture(damaged(path, f"sharpener.{name}", tensor))


def test_a_file_says_whether_it_holds_a_sharpener(made: GaussianMixture, tmp_path: Path):
    path = tmp_path / "generator.safetensors"
    for mixture, old, new in ((sharpened(made), "true", "false"), (made, "false", "true")):
        save_mixture(mixture, path)
        text = read_metadata(path)[ENTRY].replace(f'"sharpened": {old}', f'"sharpened": {new}')
        path.write_bytes(safetensors.torch.save(safetensors.torch.load_file(path), {ENTRY: text}))
        with pytest.raises(CorruptWeightsError, match=r"sharpener|lacks"):
            load_mixture(path)


def test_a_component_without_records_is_never_drawn(made: GaussianMixture):
    far = made.means.clone()
    far[1] = 1e6
    images, _ = replace(made, means=far).sample(200, torch.Generator().manual_seed(1))
    untouched, _ = made.sample(200, torch.Generator().manual_seed(1))
    assert torch.equal(images, untouched)


def damaged(path: Path, name: str, tensor: torch.Tensor, **header: str) -> Path:
    state = safetensors.torch.load_file(path)
    state[name] = tensor
    text = read_metadata(path)[ENTRY]
    for old, new in header.items():
        text = text.replace(f'"{old}": 2', f'"{old}": {new}')
    path.write_bytes(safetensors.torch.save(state, {ENTRY: text}))
    return path


@pytest.mark.parametrize(
    ("name", "tensor", "error", "words"),
    [
        ("counts", torch.tensor([1.0, -1, 0]), CorruptWeightsError, "counts of records"),
        ("counts", torch.zeros(C), CorruptWeightsError, "counts of records"),
        ("counts", torch.full((C,), torch.nan), CorruptWeightsError, "NaN or infinity"),
        ("labels", torch.tensor([0, 1, 2]), CorruptWeightsError, "beyond its 2 classes"),
        ("labels", torch.tensor([0.0, 1, 1]), CorruptWeightsError, "int64"),
        ("labels", torch.tensor([False, True, True]), CorruptWeightsError, "labels as torch.bool"),
        (
            "means",
            torch.full((C, K), 1e300, dtype=torch.float64),
            CorruptWeightsError,
            "means as torch.float64",
        ),
        ("axes", torch.ones(D, K), CorruptWeightsError, "not orthonormal"),
        ("axes", torch.ones(D, K + 1), ModelMismatchError, "axes"),
        ("more", torch.ones(1), CorruptWeightsError, "unknown 'more'"),
    ],
)
def test_damaged_files_are_refused(
    made: GaussianMixture, tmp_path: Path, name: str, tensor, error, words: str
):
    path = tmp_path / "generator.safetensors"
    save_mixture(made, path)
    with pytest.raises(error, match=words):
        load_mixture(damaged(path, name, tensor))


def test_a_header_may_claim_no_more_than_the_file_holds(made: GaussianMixture, tmp_path: Path):
    path = tmp_path / "generator.safetensors"
    with pytest.raises(WeightsNotFoundError):
        load_mixture(path)
    save_mixture(made, path)
    path = damaged(path, "texture", torch.ones(D), classes="1")
    with pytest.raises(CorruptWeightsError, match="classes"):
        load_mixture(path)
    save_mixture(made, path)
    text = read_metadata(path)[ENTRY].replace('"components": 3', '"components": 99999')
    path.write_bytes(safetensors.torch.save(safetensors.torch.load_file(path), {ENTRY: text}))
    with pytest.raises(ModelMismatchError):
        load_mixture(path)


def test_large_images_are_drawn_a_few_at_a_time(made: GaussianMixture, monkeypatch):
    monkeypatch.setattr("fedtranscribe.models.mixture._TOGETHER", 100)
    few, _ = made.sample(7, torch.Generator().manual_seed(1))
    assert few.shape == (7, 1, 8, 8)


def test_no_images_cannot_be_drawn(made: GaussianMixture):
    with pytest.raises(ConfigError, match="Expected n=0 >= 1"):
        made.sample(0, torch.Generator())


def test_images_have_one_channel_or_three(made: GaussianMixture, tmp_path: Path):
    path = tmp_path / "generator.safetensors"
    save_mixture(replace(made, channels=4_096), path)
    with pytest.raises(CorruptWeightsError, match="channels"):
        load_mixture(path)


def test_images_of_the_classes_that_were_asked_for(made: GaussianMixture):
    """Class 1 has two components, one of which has no records."""
    apart = replace(made, means=torch.tensor([[9.0, 0, 0, 0], [0, 9, 0, 0], [0, 0, 9, 0]]).double())
    wanted = torch.tensor([1, 0, 1, 1])
    images = apart.draw(wanted, torch.Generator().manual_seed(1))
    assert images.shape == (4, 1, 8, 8)
    again = apart.draw(wanted, torch.Generator().manual_seed(1))
    assert torch.equal(images, again)
    only = replace(apart, roots=torch.zeros(C, K, K).double(), texture=torch.zeros(D).double())
    flat = only.draw(wanted, torch.Generator().manual_seed(1))
    assert torch.equal(flat[0], flat[2])
    assert not torch.equal(flat[0], flat[1])
    nobody = replace(made, counts=torch.tensor([0.0, 1, 1]).double())
    with pytest.raises(ConfigError, match="of class 0 it has none"):
        nobody.draw(wanted, torch.Generator())
