from pathlib import Path

import pytest
import torch

from fedtranscribe.models import build, load_network, save_network
from fedtranscribe.models.fixed_features import SCATTER, coefficient_count, row_width, unit_rows_of
from fedtranscribe.models.scattering import NormalisedScattering, Scattering


def images(n: int = 3, channels: int = 1, size: int = 28) -> torch.Tensor:
    return torch.rand(n, channels, size, size, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("channels", "size"), [(1, 8), (1, 28), (3, 32), (1, 64), (3, 20)])
def test_any_image_becomes_a_row_of_norm_one(channels: int, size: int):
    network = build(SCATTER, 5, channels, size)
    rows = network.features(images(2, channels, size))
    assert rows.shape == (2, row_width(SCATTER, channels, size))
    assert torch.allclose(rows.norm(dim=1), torch.ones(2), atol=1e-5)
    assert network(images(2, channels, size)).shape == (2, 5)


def test_there_are_81_maps_of_seven_by_seven():
    assert coefficient_count(SCATTER, 1, 28) == 81 * 7 * 7
    # Large images are averaged further.
    assert coefficient_count(SCATTER, 1, 64) == 81 * 8 * 8


def test_wavelets_do_not_see_brightness():
    dark, bright = torch.full((1, 1, 28, 28), 0.2), torch.full((1, 1, 28, 28), 0.9)
    found = Scattering()(torch.cat([dark, bright])).unflatten(1, (81, -1))
    assert float(found[:, 0].mean(1).diff()) == pytest.approx(0.7, abs=1e-4)
    assert float(found[:, 1:].abs().max()) < 1e-4


def test_an_edge_is_seen_by_the_wavelets_across_it():
    picture = torch.zeros(1, 1, 28, 28)
    picture[..., 14:] = 1.0
    first_order = Scattering()(picture).unflatten(1, (81, -1))[0, 1:9].sum(1)
    assert first_order.argmax() == 0, "its wave runs along x"
    assert float(first_order[0]) > 10 * float(first_order[4])


def test_contrast_and_exposure_change_no_row():
    picture = (torch.arange(28) // 4 % 2).float().expand(1, 1, 28, 28) * 0.5
    rows = NormalisedScattering(1)(torch.cat([picture, 0.1 + 1.7 * picture]))
    maps = rows.unflatten(1, (27, -1))
    assert torch.allclose(maps.mean(2), torch.zeros(2, 27), atol=1e-5)
    assert bool((maps.var(2) < 1.01).all())
    # Wavelets that see the bars clearly; the first group has the average, which sees exposure.
    seen = (maps[0].var(1) > 0.95).nonzero()[:, 0]
    assert len(seen) >= 4
    assert torch.allclose(maps[0, seen[1:]], maps[1, seen[1:]], atol=0.05)


def test_rows_without_a_direction_are_zero():
    coefficients = torch.tensor([[0.0, 0.0], [torch.nan, 1.0], [torch.inf, 1.0], [3.0, 4.0]])
    rows = unit_rows_of(coefficients, torch.zeros(2), torch.eye(2))
    assert torch.equal(rows[:3], torch.zeros(3, 3))
    assert torch.allclose(rows[3].norm(), torch.ones(()))


def test_gradients_reach_the_image_even_where_nothing_is_seen():
    blank = torch.zeros(1, 1, 28, 28, requires_grad=True)
    build(SCATTER, 3, 1, 28)(blank).sum().backward()
    assert blank.grad is not None
    assert bool(torch.isfinite(blank.grad).all())


def test_it_is_saved_with_its_map(tmp_path: Path):
    network = build(SCATTER, 3, 1, 28, seed=4)
    save_network(network, tmp_path / "student.safetensors")
    again = load_network(tmp_path / "student.safetensors")
    assert torch.equal(again(images()), network(images()))
    assert [name for name, _ in again.named_parameters()] == ["head.weight", "head.bias"]
