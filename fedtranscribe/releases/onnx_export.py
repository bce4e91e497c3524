"""The student as ONNX, and whether it answers as the student does."""

import importlib
import importlib.util
import warnings
from typing import Any

import numpy as np
import torch

from fedtranscribe.models import Classifier

INPUT, OUTPUT = "images", "logits"
_COUNTS = (1, 3, 50)  # more than any network takes at a time, too


CLOSE = 1e-3
"""Largest difference of two logits, relative to the largest logit, that counts as none."""


def export_onnx(student: Classifier) -> bytes | None:
    """ONNX of float32 [n, ch, s, s] in [0, 1] -> logits [n, classes], any n; None if there is none.

    Compared with the student itself where onnxruntime is installed.
    """
    example = torch.rand(2, student.channels, student.size, student.size)
    try:
        with warnings.catch_warnings(action="ignore"):  # for the exporter's authors
            program = torch.onnx.export(
                student,
                (example,),
                dynamo=True,
                input_names=[INPUT],
                output_names=[OUTPUT],
                dynamic_shapes=({0: "n"},),
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
    return None if agrees(content, student) is False else content


def agrees(content: bytes, student: Classifier) -> bool | None:
    """Whether an ONNX model answers as the student does; None where onnxruntime is not installed.

    Batches of one, several and many random images, so that a fixed batch size is noticed.
    """
    if importlib.util.find_spec("onnxruntime") is None:
        return None
    runtime = importlib.import_module("onnxruntime")
    shape = student.channels, student.size, student.size
    try:
        session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
        return all(_close(session, student, torch.rand(n, *shape)) for n in _COUNTS)
    except Exception:  # onnxruntime has its own kinds, none of which says more than "no"
        return False


def _close(session: Any, student: Classifier, images: torch.Tensor) -> bool:
    with torch.no_grad():
        expected = student(images).numpy()
    (logits,) = session.run([OUTPUT], {INPUT: images.numpy()})
    room = CLOSE * max(1.0, float(np.abs(expected).max()))
    return logits.shape == expected.shape and float(np.abs(logits - expected).max()) <= room


def _strip(message: Any) -> None:
    """Remove words for people and programs from a protobuf message and all inside it."""
    for name in ("doc_string", "metadata_props"):
        if name in message.DESCRIPTOR.fields_by_name:
            message.ClearField(name)
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in [value] if hasattr(value, "DESCRIPTOR") else value:
                _strip(part)


ONNX = "student.onnx"
