"""How a finished synthesis is judged: a classifier that learns from its samples alone."""

import torch
from torch import Tensor

from fedtranscribe.config import build
from fedtranscribe.config.evaluation import EvaluationSettings
from fedtranscribe.data import ImageSet
from fedtranscribe.evaluation.downstream import downstream
from fedtranscribe.synthesis.run import Judge
from fedtranscribe.tracking import Progress


def cnn_judge(seed: int) -> Judge:
    """The small CNN of the field's evaluations, chosen on synthetic images only.

    Args:
        seed: of its training; public.
    """
    wanted = build(EvaluationSettings, {"classifiers": "cnn", "seed": seed})

    def judge(
        images: Tensor, labels: Tensor, test: ImageSet, device: torch.device, progress: Progress
    ) -> float | None:
        real = test.images, test.labels
        return downstream((images, labels), real, test.classes, wanted, device, progress)["cnn"]

    return judge
