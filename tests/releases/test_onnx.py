"""What is written as ONNX answers as the networks do, for batches of any size."""

import numpy as np
import pytest
import torch

from fedtranscribe.models import build
from fedtranscribe.models.mixture import GaussianMixture, frequency_count
from fedtranscribe.models.sharpener import Sharpener
from fedtranscribe.releases.onnx_export import (
    agrees,
    export_onnx,
    generator_as_exportable,
    student_as_exportable,
)

runtime = pytest.importorskip("onnxruntime")


@pytest.mark.long
@pytest.mark.parametrize(("features", "channels", "size"), [("scatter", 1, 12), ("patches", 3, 16)])
def test_a_batch_of_any_size_gets_as_many_answers(features, channels, size):
    student = build(features, 4, channels, size).eval()
    content = export_onnx(student_as_exportable(student))
    assert content is not None
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    images = torch.rand(97, channels, size, size)
    (given,) = session.run(None, {"images": images.numpy()})
    with torch.no_grad():
        np.testing.assert_allclose(given, student(images).numpy(), atol=1e-4)


def drawn(channels: int, sharpened: bool) -> GaussianMixture:
    """A mixture of two classes, six Gaussians each, that nobody learned."""
    size, k, c = 16, 5, 12
    d = frequency_count(channels, size)
    rng = torch.Generator().manual_seed(0)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    sharpener = Sharpener(channels, size, 2) if sharpened else None
    if sharpener is not None:
        torch.nn.init.normal_(sharpener.last.weight, std=0.3)
        sharpener.eval()
    return GaussianMixture(
        channels,
        size,
        2,
        centre=numbers(d).abs() / 10,
        axes=torch.linalg.qr(numbers(d, k)).Q,
        counts=torch.ones(c, dtype=torch.float64),
        labels=torch.arange(2).repeat_interleave(c // 2),
        means=numbers(c, k),
        roots=numbers(c, k, k) / 10,
        texture=numbers(d).abs() / 20,
        sharpener=sharpener,
    )


@pytest.mark.parametrize(
    ("channels", "sharpened"), [(1, True), pytest.param(3, False, marks=pytest.mark.long)]
)
def test_a_mixture_makes_the_same_images_of_the_same_numbers(channels, sharpened):
    """One case by default: nothing else compares the arithmetic in single precision."""
    mixture = drawn(channels, sharpened)
    exportable = generator_as_exportable(mixture)
    content = export_onnx(exportable)
    assert content is not None
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    inputs = exportable.inputs(7)
    images, labels = session.run(None, {name: given.numpy() for name, given in inputs.items()})
    with torch.no_grad():
        expected = mixture.images_of(
            inputs["components"], inputs["steps"].double(), inputs["noise"]
        ).numpy()
    np.testing.assert_allclose(images, expected, atol=1e-4)
    assert labels.tolist() == mixture.labels[inputs["components"]].tolist()
    other = generator_as_exportable(drawn(channels, not sharpened))
    assert agrees(content, other) is False
