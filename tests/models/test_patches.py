"""Features of small patches: what they see, and that they are the same everywhere."""

import hashlib
from pathlib import Path

import pytest
import torch

from fedtranscribe.data.shapes import draw_leaves
from fedtranscribe.errors import ConfigError
from fedtranscribe.models import build, load_network, save_network
from fedtranscribe.models.fixed_features import (
    FIXED,
    PATCHES,
    SCATTER,
    coefficient_count,
    features_for,
    fixed_features,
    row_width,
)
from fedtranscribe.models.patches import BANK, Patches, contrasts


def images(n: int, channels: int = 3, size: int = 32, seed: int = 0) -> torch.Tensor:
    return torch.rand(n, channels, size, size, generator=torch.Generator().manual_seed(seed))


def test_the_bank_is_the_one_that_every_holder_has():
    # Another one would be another question: it needs another name.
    digest = hashlib.sha256(BANK.read_bytes()).hexdigest()
    assert digest == "3f248c19592465f99949ee5e80dc078521c0ecddb30e2f166d9b2493003b4374"


@pytest.mark.parametrize(("channels", "size"), [(3, 8), (3, 32), (3, 33), (1, 28), (3, 70)])
def test_any_image_becomes_a_row_of_norm_one(channels: int, size: int):
    network = build(PATCHES, 5, channels, size)
    rows = network.features(images(2, channels, size))
    assert rows.shape == (2, row_width(PATCHES, channels, size)) == (2, 1_001)
    assert torch.allclose(rows.norm(dim=1), torch.ones(2), atol=1e-5)
    assert coefficient_count(PATCHES, channels, size) == 9 * 2 * 400


def test_colour_is_the_same_in_a_mirror_and_grey_is_not():
    colour, grey = images(3), images(3, 1)
    fixed = Patches(3)
    assert torch.allclose(fixed(colour), fixed(colour.flip(-1)), atol=1e-5)
    assert not torch.allclose(fixed(colour), fixed(colour.flip(-2)), atol=1e-2)
    fixed = Patches(1)
    assert not torch.allclose(fixed(grey), fixed(grey.flip(-1)), atol=1e-2)


def test_neither_brightness_nor_contrast_is_seen():
    picture = images(2)
    softer = 0.3 + 0.5 * picture
    found, other = Patches(3)(picture), Patches(3)(softer)
    # But for faint patches, whose noise is not made larger.
    assert float((found - other).norm() / found.norm()) < 0.15
    patches = contrasts(torch.tensor([[0.2, 0.4, 0.9], [0.5, 0.5, 0.5]]))
    assert torch.allclose(patches.mean(1), torch.zeros(2), atol=1e-6)
    assert torch.equal(patches[1], torch.zeros(3)), "nothing is to be seen"


def test_an_image_is_seen_part_by_part():
    """What changes in one corner changes that part, and the one that mirrors it."""
    picture = torch.full((1, 3, 32, 32), 0.5)
    marked = picture.clone()
    marked[:, :, :5, :5] = images(1)[:, :, :5, :5]
    moved = (Patches(3)(marked) - Patches(3)(picture)).reshape(3, 3, -1).abs().amax(-1)
    assert (moved > 1e-3).tolist() == [[True, False, True], [False] * 3, [False] * 3]


@pytest.mark.parametrize("features", FIXED)
@pytest.mark.parametrize(("channels", "size"), [(1, 28), (3, 32)])
def test_features_of_an_image_do_not_depend_on_where_it_stands(
    features: str, channels: int, size: int
):
    """Under add-remove a record that joins moves all others by one place."""
    fixed, shown = fixed_features(features, channels), images(40, channels, size)
    found = fixed(shown)
    for places in (1, 2, 3, 17):
        assert torch.equal(fixed(shown.roll(places, 0)).roll(-places, 0), found)


def test_gradients_reach_the_image_even_where_nothing_is_seen():
    blank = torch.zeros(1, 3, 32, 32, requires_grad=True)
    build(PATCHES, 3, 3, 32)(blank).sum().backward()
    assert blank.grad is not None
    assert bool(torch.isfinite(blank.grad).all())


def test_it_is_saved_without_its_bank(tmp_path: Path):
    network = build(PATCHES, 3, 3, 32, seed=4)
    save_network(network, tmp_path / "student.safetensors")
    again = load_network(tmp_path / "student.safetensors")
    assert torch.equal(again(images(2)), network(images(2)))
    assert {name for name, _ in again.named_buffers() if "bank" in name} == set()


def test_other_channels_are_refused():
    with pytest.raises(ConfigError, match="1 or 3 channels for patches, got 4"):
        build(PATCHES, 3, 4, 32)


def test_photographs_get_patches_and_strokes_wavelets():
    assert (features_for(None, 1), features_for(None, 3)) == (SCATTER, PATCHES)
    assert features_for("cnn", 2) == SCATTER, "a student that sums cannot set has no say"
    assert features_for(PATCHES, 1) == PATCHES
    assert features_for(SCATTER, 3) == SCATTER


@pytest.mark.parametrize("channels", [1, 3])
def test_dead_leaves_are_images_full_of_edges(channels: int):
    drawn = draw_leaves(6, channels, 32, torch.Generator().manual_seed(0))
    assert (drawn.shape, drawn.dtype) == ((6, channels, 32, 32), torch.uint8)
    again = draw_leaves(6, channels, 32, torch.Generator().manual_seed(0))
    assert torch.equal(drawn, again)
    steps = drawn.float().diff(dim=-1).abs()
    assert float((steps > 30).float().mean()) > 0.05, "edges"
    assert float((steps < 8).float().mean()) > 0.4, "and surfaces between them"
    if channels == 3:
        assert float(drawn.float().std(1).mean()) > 20, "they are coloured"
