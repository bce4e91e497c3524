"""What a classifier takes for what, and the figures that clinicians read off it."""

import torch
from scipy.stats import mannwhitneyu
from torch import Tensor

from fedtranscribe.models.classifier import Classifier
from fedtranscribe.models.inference import Images, logits_of
from fedtranscribe.result_parts import Confusion


def confusion_of(network: Classifier, images: Images, labels: Tensor) -> Confusion:
    """Hold a classifier's answers against labels.

    Args:
        network: whose answers.
        images: shown to it.
        labels: int64 [n], within its classes.

    Returns:
        Counts by true and named class; of two classes, the second of which is the finding, also the
        area under the ROC curve: how often an image with it has the higher score than one without.
    """
    logits = logits_of(network, images)
    counts = count(labels, logits.argmax(1), network.classes)
    auc = None
    if network.classes == 2 and bool(counts.sum(1).all()):
        score = (logits[:, 1] - logits[:, 0]).double().numpy()
        found, other = score[labels.numpy() == 1], score[labels.numpy() == 0]
        auc = float(mannwhitneyu(found, other).statistic) / (len(found) * len(other))
    return Confusion.of(counts.tolist(), auc)


def count(true: Tensor, named: Tensor, classes: int) -> Tensor:
    """How often each class, int64 [n], is named each class: int64 [true, named]."""
    pairs = true * classes + named
    return torch.bincount(pairs, minlength=classes * classes).view(classes, classes)
