"""Downstream utility: classifiers that learn from synthetic images only, tested on real ones."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedtranscribe.config.evaluation import NETS, SKLEARN, EvaluationSettings
from fedtranscribe.evaluation.classifiers import make
from fedtranscribe.evaluation.nets import predict, train_net
from fedtranscribe.tracking import Progress

Predict = Callable[[Tensor], Tensor]

_STAGE = "downstream classifiers"


def downstream(
    synthetic: tuple[Tensor, Tensor],
    real: tuple[Tensor, Tensor],
    classes: int,
    settings: EvaluationSettings,
    device: torch.device,
    progress: Progress,
) -> dict[str, Any]:
    """Accuracy on real images of each classifier that the settings name.

    Args:
        synthetic: images uint8 [n, ch, s, s] and the student's labels int64 [n], to learn from.
        real: held-out images and labels; looked at once, after everything has been chosen.
        classes: of the task.
        settings: which classifiers, how many samples, seed.
        device: for MLP and CNN.
        progress: shows classifiers and epochs.

    Returns:
        {name: accuracy, …, "mean_sklearn": …, "mean_sklearn_of": how many, "selection": …,
        "untrained": {name: why}}; the accuracy of what could not be trained is None.
    """
    scores: dict[str, Any] = {}
    selection: dict[str, Any] = {}
    untrained: dict[str, str] = {}
    for number, name in enumerate(settings.classifiers):
        progress(_STAGE, number, len(settings.classifiers))
        try:
            answer, facts = fit(name, synthetic, classes, settings, device, progress)
        except ValueError as error:
            scores[name], untrained[name] = None, str(error).splitlines()[0]
            continue
        scores[name] = int((answer(real[0]) == real[1]).sum()) / len(real[1])
        if facts:
            selection[name] = facts
    if settings.classifiers:
        progress(_STAGE, len(settings.classifiers), len(settings.classifiers))
    means = [scores[name] for name in SKLEARN if scores.get(name) is not None]
    return {
        **scores,
        "mean_sklearn": sum(means) / len(means) if means else None,
        "mean_sklearn_of": len(means),
        "selection": selection,
        "untrained": untrained,
    }


def fit(
    name: str,
    synthetic: tuple[Tensor, Tensor],
    classes: int,
    settings: EvaluationSettings,
    device: torch.device,
    progress: Progress,
) -> tuple[Predict, dict[str, Any]]:
    """Train one classifier on synthetic images.

    Returns:
        What it predicts for images, and how its epoch was chosen (empty where nothing is).

    Raises:
        ValueError: it cannot be trained on these; says why.
    """
    images, labels = synthetic
    present = labels.unique()
    if len(present) < 2:
        raise ValueError(
            f"the student gives all {len(labels)} synthetic images the label {int(present[0])}"
        )
    if name in NETS:
        chosen = train_net(
            name,
            images,
            labels,
            classes,
            epochs=settings.epochs,
            patience=settings.patience,
            seed=settings.seed,
            device=device,
            progress=lambda done, total: progress(f"{name}: epochs", done, total),
        )
        facts = {"epoch": chosen.epoch, "synthetic_validation": chosen.validation}
        return lambda shown: predict(chosen.network, shown), facts
    return _fit_foreign(name, images, labels, settings), {}


def _fit_foreign(
    name: str, images: Tensor, labels: Tensor, settings: EvaluationSettings
) -> Predict:
    images, labels = images[: settings.max_train], labels[: settings.max_train]
    # xgboost wants labels without gaps.
    present, dense = np.unique(labels.numpy(), return_inverse=True)
    if len(present) < 2:
        raise ValueError(f"the first {len(labels)} synthetic images have one label")
    model = make(name, settings.seed)
    with warnings.catch_warnings():
        # Linear support vectors rarely converge on pixels, which is not news.
        warnings.simplefilter("ignore")
        model.fit(flat(images), dense)
    return lambda shown: torch.from_numpy(present[np.asarray(model.predict(flat(shown)))]).long()


def flat(images: Tensor) -> np.ndarray:
    """uint8 [n, ch, s, s] -> float32 [n, ch * s * s] in [0, 1]."""
    return images.flatten(1).numpy().astype(np.float32) / 255
