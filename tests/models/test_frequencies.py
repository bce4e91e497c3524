import pytest
import torch
from scipy.fft import dctn

from fedtranscribe.models.mixture import (
    MOST_SIDE,
    frequencies,
    frequency_count,
    images_from,
    lowest,
)


def images(channels: int, size: int, n: int = 3) -> torch.Tensor:
    rng = torch.Generator().manual_seed(size)
    return torch.randint(0, 256, (n, channels, size, size), generator=rng).byte()


@pytest.mark.parametrize(("channels", "size"), [(1, 8), (1, 28), (3, 32), (4, 9)])
def test_nothing_is_lost_or_stretched_up_to_32_pixels(channels: int, size: int):
    shown = images(channels, size)
    found = frequencies(shown)
    assert found.shape == (3, frequency_count(channels, size)) == (3, channels * size**2)
    back = images_from(found, channels, size)
    torch.testing.assert_close(back, shown.double() / 255, atol=2e-4, rtol=0)
    norms = (shown.double() / 255).flatten(1).norm(dim=1)
    torch.testing.assert_close(found.norm(dim=1), norms, atol=0, rtol=1e-4)


def test_the_transform_is_scipys():
    shown = images(3, 8)
    expected = dctn(shown.double().numpy() / 255, axes=(1, 2, 3), norm="ortho").reshape(3, -1)
    torch.testing.assert_close(frequencies(shown), torch.from_numpy(expected), atol=2e-4, rtol=0)


def test_large_images_come_back_smooth():
    size = 100
    line = torch.linspace(0, 1, size)
    shown = ((line[:, None] * line)[None, None] * 255).byte()
    found = frequencies(shown)
    assert found.shape == (1, MOST_SIDE**2)
    back = images_from(found, 1, size)
    assert float((back - shown / 255).abs().mean()) < 0.005
    noise = images(1, size, 1)
    assert float((images_from(frequencies(noise), 1, size) - noise / 255).abs().mean()) > 0.2


def test_the_lowest_frequencies_are_bright_before_they_are_coloured():
    where = lowest(3, 32, 3_072)
    assert sorted(where.tolist()) == list(range(3_072))
    assert where[:3].tolist() == [0, 1, 32]
    channels = where // 1_024
    assert float((channels[:60] == 0).double().mean()) > 0.6
    assert {1, 2} <= set(channels[:60].tolist())
