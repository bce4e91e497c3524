import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedtranscribe.models.scattering import correlate, reflected


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize(("size", "side"), [(9, 3), (8, 5), (11, 1), (5, 9), (3, 17)])
def test_values_and_gradient_are_those_of_a_convolution(size: int, side: int, stride: int) -> None:
    maps, kernels = drawn(2, 3, size, size).requires_grad_(), drawn(4, 1, side, side, seed=1)
    padded = reflected(maps.reshape(6, 1, size, size), side // 2)
    expected = F.conv2d(padded, kernels, stride=stride)
    weights = drawn(*expected.shape, seed=2)
    (slope,) = torch.autograd.grad((expected * weights).sum(), maps)
    found = correlate(maps, kernels, stride)
    assert found.shape == (2, 12, -(-size // stride), -(-size // stride))
    torch.testing.assert_close(found.reshape(expected.shape), expected)
    (got,) = torch.autograd.grad((found.reshape(expected.shape) * weights).sum(), maps)
    torch.testing.assert_close(got, slope)


def test_edges_are_mirrored_as_often_as_it_takes() -> None:
    line = torch.tensor([[1.0, 2.0, 3.0]]).expand(3, 3)[None, None]
    assert reflected(line, 4)[0, 0, 0].tolist() == [1, 2, 3, 2, 1, 2, 3, 2, 1, 2, 3]
