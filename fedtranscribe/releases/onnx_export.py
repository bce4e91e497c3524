"""Student and generator as ONNX, and whether a file of theirs answers as they do."""

import importlib
import importlib.util
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedtranscribe.models import Classifier, Generator
from fedtranscribe.models.mixture import GaussianMixture

STUDENT_ONNX, GENERATOR_ONNX = "student.onnx", "generator.onnx"
CLOSE = 1e-3
"""Largest difference of two numbers, relative to the largest one, that counts as none."""
_COUNTS = (1, 3, 50)  # more than any network takes at a time, too


@dataclass(frozen=True, eq=False)
class Exportable:
    """What can be written as ONNX; inputs and outputs have n rows each, for any n."""

    module: nn.Module
    inputs: Callable[[int], dict[str, Tensor]]  # random ones for n images, by name
    outputs: tuple[str, ...]  # names


def student_as_exportable(student: Classifier) -> Exportable:
    """`images` float32 [n, ch, s, s] in [0, 1] -> `logits` [n, classes]."""
    shape = student.channels, student.size, student.size
    return Exportable(student, lambda n: {"images": torch.rand(n, *shape)}, ("logits",))


def generator_as_exportable(generator: Generator | GaussianMixture) -> Exportable:
    """Standard normal numbers -> `images` float32 [n, ch, s, s] in [0, 1].

    A network takes them as `latent` [n, d]. A mixture takes `components` int64 [n], too, and gives
    the class of each as `labels` int64 [n]; its numbers are `steps` [n, k] along the axes and
    `noise`, [n, 8, s, s] for a sharpener, [n, d] for texture.
    """
    if isinstance(generator, Generator):
        latent = generator.latent_dim
        return Exportable(generator, lambda n: {"latent": torch.randn(n, latent)}, ("images",))
    axes, noise = generator.axes.shape[1], generator.noise_shape

    def inputs(n: int) -> dict[str, Tensor]:
        components = torch.randint(len(generator.counts), (n,))
        return {
            "components": components,
            "steps": torch.randn(n, axes),
            "noise": torch.randn(n, *noise),
        }

    return Exportable(_Mixture(generator), inputs, ("images", "labels"))


class _Mixture(nn.Module):
    """A mixture in single precision, of numbers that its caller draws."""

    def __init__(self, mixture: GaussianMixture) -> None:
        super().__init__()
        tensors = {name: t for name, t in vars(mixture).items() if isinstance(t, Tensor)}
        single = {name: t.float() for name, t in tensors.items() if t.is_floating_point()}
        self.mixture = replace(mixture, **single)
        self.sharpener = mixture.sharpener

    def forward(self, components: Tensor, steps: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        images = self.mixture.images_of(components, steps, noise)
        return images, self.mixture.labels[components]


def export_onnx(what: Exportable) -> bytes | None:
    """The content of a file; None if it cannot be expressed, or answers otherwise.

    Compared with the module itself where onnxruntime is installed.
    """
    example = what.inputs(2)
    with torch.no_grad():
        # Constants that functions keep are made now: those of a trace are no numbers.
        what.module.eval()(*example.values())
    try:
        with warnings.catch_warnings(action="ignore"):  # for the exporter's authors
            program = torch.onnx.export(
                what.module,
                tuple(example.values()),
                dynamo=True,
                input_names=list(example),
                output_names=list(what.outputs),
                dynamic_shapes=tuple({0: "n"} for _ in example),
                external_data=False,
                verbose=False,
            )
        assert program is not None  # it is, with dynamo
        model = program.model_proto
        # The exporter writes source paths and lines of this machine into every node.
        _strip(model)
        content = model.SerializeToString()
    except Exception:  # many kinds, for what cannot be expressed and for more than 2 GB
        return None
    return None if agrees(content, what) is False else content


def agrees(content: bytes, what: Exportable) -> bool | None:
    """Whether an ONNX model answers as the module does; None where onnxruntime is not installed.

    Batches of one, several and many random inputs, so that a fixed batch size is noticed.
    """
    if importlib.util.find_spec("onnxruntime") is None:
        return None
    runtime = importlib.import_module("onnxruntime")
    try:
        session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
        return all(_close(session, what, what.inputs(n)) for n in _COUNTS)
    except Exception:  # onnxruntime has its own kinds, none of which says more than "no"
        return False


def _close(session: Any, what: Exportable, inputs: dict[str, Tensor]) -> bool:
    with torch.no_grad():
        found = what.module(*inputs.values())
    expected = [found] if isinstance(found, Tensor) else list(found)
    given = session.run(list(what.outputs), {name: t.numpy() for name, t in inputs.items()})
    return all(_alike(a, b.numpy()) for a, b in zip(given, expected, strict=True))


def _alike(given: Any, expected: Any) -> bool:
    room = CLOSE * max(1.0, float(np.abs(expected).max()))
    return given.shape == expected.shape and float(np.abs(given - expected).max()) <= room


def _strip(message: Any) -> None:
    """Remove words for people and programs from a protobuf message and all inside it."""
    for name in ("doc_string", "metadata_props"):
        if name in message.DESCRIPTOR.fields_by_name:
            message.ClearField(name)
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in [value] if hasattr(value, "DESCRIPTOR") else value:
                _strip(part)
