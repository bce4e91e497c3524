"""Downstream utility: classifiers that learn from synthetic images only, tested on real ones."""

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedtranscribe.config.evaluation import NETS, SKLEARN, XGBOOST, EvaluationSettings
from fedtranscribe.models import build, fixed_randomness
from fedtranscribe.results.progress import Progress


def make(name: str, seed: int) -> Any:
    """A fresh classifier of `SKLEARN`, or xgboost's, with scikit-learn's interface."""
    if name == XGBOOST:
        from xgboost import XGBClassifier

        return XGBClassifier(n_estimators=50, colsample_bytree=0.1, random_state=seed)
    from sklearn import discriminant_analysis, ensemble, linear_model, naive_bayes, svm, tree
    from sklearn.neural_network import MLPClassifier

    match name:
        case "logistic-regression":
            return linear_model.LogisticRegression(max_iter=5_000, random_state=seed)
        case "random-forest":
            return ensemble.RandomForestClassifier(class_weight="balanced", random_state=seed)
        case "gaussian-nb":
            return naive_bayes.GaussianNB()
        case "bernoulli-nb":
            return naive_bayes.BernoulliNB(binarize=0.5)
        case "linear-svc":
            return svm.LinearSVC(loss="hinge", max_iter=10_000, random_state=seed)
        case "decision-tree":
            return tree.DecisionTreeClassifier(class_weight="balanced", random_state=seed)
        case "lda":
            return discriminant_analysis.LinearDiscriminantAnalysis(solver="eigen", shrinkage=0.5)
        case "adaboost":
            return ensemble.AdaBoostClassifier(n_estimators=100, random_state=seed)
        case "sklearn-mlp":
            return MLPClassifier(random_state=seed)
        case "bagging":
            return ensemble.BaggingClassifier(max_samples=0.1, n_estimators=20, random_state=seed)
        case "gradient-boosting":
            return ensemble.GradientBoostingClassifier(
                subsample=0.1, n_estimators=50, random_state=seed
            )
    raise ValueError(name)


_BATCH = 128
_LR = 3e-4
_VALIDATION = 6
_HIDDEN = (256, 128)
_PREDICT_BATCH = 500

Epochs = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class ChosenNet:
    """A network after training."""

    network: nn.Module  # with the weights of the chosen epoch
    epoch: int  # which one it was, from 1
    validation: float  # its accuracy on synthetic validation images


def build_net(name: str, classes: int, channels: int, size: int, seed: int) -> nn.Module:
    """An MLP with layers of 256 and 128, or our small `cnn`; fresh weights from the seed."""
    if name == "cnn":
        return build("cnn", classes, channels, size, seed=seed)
    with fixed_randomness(seed):
        layers: list[nn.Module] = [nn.Flatten()]
        before = channels * size * size
        for width in _HIDDEN:
            layers += [nn.Linear(before, width), nn.ReLU()]
            before = width
        return nn.Sequential(*layers, nn.Linear(before, classes))


def train_net(
    name: str,
    images: Tensor,
    labels: Tensor,
    classes: int,
    *,
    epochs: int,
    patience: int,
    seed: int,
    device: torch.device,
    progress: Epochs,
) -> ChosenNet:
    """Train on five sixths of the synthetic images, choose the epoch on the rest.

    Args:
        name: mlp or cnn.
        images: synthetic, uint8 [n, ch, s, s].
        labels: the student's, int64 [n]; of several, [n, classes] of 0 and 1.
        classes: of the task.
        epochs: at most so many.
        patience: epochs without a better score on the rest, then it ends.
        seed: of weights, split and batches; public.
        device: where to train.
        progress: called with (epochs done, epochs at most).
    """
    rng = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(images), generator=rng)
    held, trained = order.split([len(order) // _VALIDATION, len(order) - len(order) // _VALIDATION])
    network = build_net(name, classes, images.shape[1], images.shape[2], seed).to(device)
    optimiser = torch.optim.Adam(network.parameters(), lr=_LR)
    best = ChosenNet(network, 0, -1.0)
    for epoch in range(1, epochs + 1):
        _pass(network, optimiser, images, labels, trained, rng)
        several = labels.ndim == 2
        score = _right(predict(network, images[held], several=several), labels[held])
        if score > best.validation:
            best = ChosenNet(copy.deepcopy(network), epoch, score)
        progress(epoch, epochs)
        if epoch - best.epoch >= patience:
            break
    progress(epochs, epochs)
    return best


def predict(network: nn.Module, images: Tensor, *, several: bool = False) -> Tensor:
    """Likeliest class of each uint8 image [n, ch, s, s], int64 [n]; of several, [n, classes]."""
    device = next(network.parameters()).device
    network.eval()
    with torch.no_grad():
        parts = [
            network(part.to(device).float() / 255).cpu() for part in images.split(_PREDICT_BATCH)
        ]
    logits = torch.cat(parts)
    return (logits > 0).long() if several else logits.argmax(-1)


def _right(named: Tensor, labels: Tensor) -> float:
    """Share of right answers; of several labels, of all decisions."""
    return int((named == labels).sum()) / labels.numel()


def _pass(
    network: nn.Module,
    optimiser: torch.optim.Optimizer,
    images: Tensor,
    labels: Tensor,
    rows: Tensor,
    rng: torch.Generator,
) -> None:
    device = next(network.parameters()).device
    network.train()
    for picked in rows[torch.randperm(len(rows), generator=rng)].split(_BATCH):
        logits = network(images[picked].to(device).float() / 255)
        wanted = labels[picked].to(device)
        if labels.ndim == 2:
            loss = F.binary_cross_entropy_with_logits(logits, wanted.float())
        else:
            loss = F.cross_entropy(logits, wanted)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()


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
        synthetic: images uint8 [n, ch, s, s] and the student's labels int64 [n], to learn from;
            of several labels [n, classes] of 0 and 1, which the two networks alone can learn.
        real: held-out images and labels; looked at once, after everything has been chosen.
        classes: of the task.
        settings: which classifiers, how many samples, seed.
        device: for MLP and CNN.
        progress: shows classifiers and epochs.
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
        scores[name] = _right(answer(real[0]), real[1])
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
    """Train one classifier on synthetic images."""
    images, labels = synthetic
    several = labels.ndim == 2
    if several and name not in NETS:
        raise ValueError("it learns one label per image")
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
        return lambda queried: predict(chosen.network, queried, several=several), facts
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
    return lambda queried: torch.from_numpy(
        present[np.asarray(model.predict(flat(queried)))]
    ).long()


def flat(images: Tensor) -> np.ndarray:
    """uint8 [n, ch, s, s] -> float32 [n, ch * s * s] in [0, 1]."""
    return images.flatten(1).numpy().astype(np.float32) / 255
