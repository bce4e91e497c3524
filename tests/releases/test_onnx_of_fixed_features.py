"""Students of fixed features, which take batches in parts, answer batches of any size as ONNX."""

import numpy as np
import pytest
import torch

from fedtranscribe.models import build
from fedtranscribe.releases.onnx_export import INPUT, export_onnx

runtime = pytest.importorskip("onnxruntime")


@pytest.mark.long
@pytest.mark.parametrize(("features", "channels", "size"), [("scatter", 1, 12), ("patches", 3, 16)])
def test_a_batch_of_any_size_gets_as_many_answers(features, channels, size):
    student = build(features, 4, channels, size).eval()
    content = export_onnx(student)
    assert content is not None
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    images = torch.rand(97, channels, size, size)
    (given,) = session.run(None, {INPUT: images.numpy()})
    with torch.no_grad():
        np.testing.assert_allclose(given, student(images).numpy(), atol=1e-4)
