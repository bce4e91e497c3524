"""What trained networks give: classes, accuracy, confusion and samples."""

import math
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from scipy.stats import mannwhitneyu
from torch import Tensor

from fedtranscribe.data import ImageSet
from fedtranscribe.models.classifier import Classifier
from fedtranscribe.models.diffusion import Synthesizer
from fedtranscribe.models.fixed_features import UnitFeatures
from fedtranscribe.models.generator import Generator
from fedtranscribe.models.mixture import GaussianMixture
from fedtranscribe.results.decisions import Confusion, Findings

_BATCH = 250
_TRIES = 4
# Of a count of images: shares such as 0.95 are no binary fractions.
_SLACK = 1e-9


Images = Tensor | Iterable[Tensor]
"""Images [n, ch, s, s], uint8 or in [0, 1]: all at once, or in blocks of some."""


def accuracy(network: Classifier, images: Images, labels: Tensor) -> float:
    """Share of right answers on images."""
    return int((predict(network, images) == labels).sum()) / labels.numel()


def predict(network: Classifier, images: Images) -> Tensor:
    """Likeliest class of each image, int64 [n]; of several, [n, classes] of 0 and 1."""
    return named_by(network, logits_of(network, images))


def named_by(network: Classifier, logits: Tensor) -> Tensor:
    """What logits [n, classes] say, as `predict` gives it."""
    return (logits > 0).long() if network.multilabel else logits.argmax(-1)


def logits_of(network: Classifier, images: Images) -> Tensor:
    """What the network says of images: [n, classes], on CPU."""
    device = next(network.parameters()).device
    blocks = [images] if isinstance(images, Tensor) else images
    network.eval()
    with torch.no_grad():
        parts = (part for block in blocks for part in block.split(_BATCH))
        return torch.cat([network(_in_unit_range(part.to(device))).cpu() for part in parts])


class RepeatedTest:
    """What a network says of the same images, asked again and again as it learns.

    Rows of a linear student's features are computed once for each map of them, and kept: four
    bytes for each entry of each image's row.
    """

    def __init__(self, network: Classifier, images: ImageSet) -> None:
        self._network = network
        self._images = images
        self._map: tuple[Tensor, ...] = ()  # that the rows are of
        self._rows: list[Tensor] = []

    def accuracy(self) -> float:
        """Share of right answers."""
        labels = self._images.labels
        return int((named_by(self._network, self.logits()) == labels).sum()) / labels.numel()

    def logits(self) -> Tensor:
        """[n, classes], on CPU."""
        network, features = self._network, self._network.backbone
        if not isinstance(features, UnitFeatures):
            return logits_of(network, self._images.blocks())
        device = features.map.device
        network.eval()
        with torch.no_grad():
            if not self._map or not all(map(torch.equal, self._map, features.axes)):
                self._rows = [
                    network.features(_in_unit_range(part.to(device))).cpu()
                    for part in self._images.blocks(_BATCH)
                ]
                self._map = tuple(tensor.clone() for tensor in features.axes)
            return torch.cat([network.head(rows.to(device)).cpu() for rows in self._rows])


def _in_unit_range(images: Tensor) -> Tensor:
    return images.float() / 255 if images.dtype == torch.uint8 else images.float()


def labelled_samples(
    generator: Generator | GaussianMixture | Synthesizer,
    student: Classifier | None,
    n: int,
    seed: int,
    done: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Tensor, Tensor]:
    """Synthetic images uint8 [n, ch, s, s] and their labels: post-processing.

    Labels are int64 [n]; of several, [n, classes] of 0 and 1. The student labels what a network
    makes and what has been sharpened; other images of a mixture have the labels of their
    components; a diffusion model is asked for every class alike, and one without labels gives 0 to
    all.
    """
    if isinstance(generator, GaussianMixture):
        drawn, labels = generator.sample(n, torch.Generator().manual_seed(seed))
        images = as_bytes(drawn)
        if student is None:
            return images, labels
        if student.multilabel:
            return images, label_sets(student, generator, images, labels)
        named = predict(student, images) if generator.sharpener is not None else labels
        return images, torch.where(generator.is_sharpened(labels), named, labels)
    if isinstance(generator, Synthesizer):
        labels = torch.arange(n) % max(1, generator.classes)
        return generator.draw(labels, seed, done), labels
    assert student is not None
    images = sample_images(generator, n, seed)
    return images, predict(student, images)


def label_sets(
    student: Classifier, mixture: GaussianMixture, images: Tensor, groups: Tensor
) -> Tensor:
    """Several labels of a mixture's images, int64 [n, classes] of 0 and 1.

    The one that an image was drawn for; and where it is sharpened, those that the student names.

    Args:
        student: names them.
        mixture: that the images come from.
        images: uint8 [n, ch, s, s].
        groups: int64 [n], what each was drawn for: no label, or 1 + its class.
    """
    own = F.one_hot(groups, student.groups)[:, 1:]
    sharpened = mixture.is_sharpened(groups)
    if not bool(sharpened.any()):
        return own
    # Of what was drawn to have none, the student may name what it sees.
    return torch.where(sharpened[:, None], own | predict(student, images), own)


def draw_classes(
    mixture: GaussianMixture, student: Classifier | None, labels: Tensor, rng: torch.Generator
) -> Tensor:
    """An image of each class that is asked for, uint8 [n, ch, s, s].

    A sharpened one that the student names otherwise is drawn anew, a few times at most.

    Args:
        mixture: draws them.
        student: names them; None takes them as they come.
        labels: int64 [n].
        rng: public randomness.
    """
    images = as_bytes(mixture.draw(labels, rng))
    judged = mixture.is_sharpened(labels)
    if student is None or student.multilabel or not bool(judged.any()):
        return images
    for _ in range(_TRIES):
        otherwise = judged & (predict(student, images) != labels)
        if not bool(otherwise.any()):
            break
        images[otherwise] = as_bytes(mixture.draw(labels[otherwise], rng))
    return images


def sample_images(generator: Generator, n: int, seed: int) -> Tensor:
    """Synthetic images uint8 [n, ch, s, s] from a public seed."""
    device = next(generator.parameters()).device
    rng = torch.Generator().manual_seed(seed)
    generator.eval()
    latent = torch.randn(n, generator.latent_dim, generator=rng)
    with torch.no_grad():
        parts = [
            as_bytes(generator(part.to(device)).clamp(0, 1)).cpu() for part in latent.split(_BATCH)
        ]
    return torch.cat(parts)


def as_bytes(images: Tensor) -> Tensor:
    """Images in [0, 1] as uint8."""
    return (images * 255).round().to(torch.uint8)


def findings_of(logits: Tensor, labels: Tensor) -> Findings:
    """Hold a classifier's answers against several labels per image, each class for itself.

    Args:
        logits: its answers, [n, classes].
        labels: int64 [n, classes] of 0 and 1.
    """
    named = (logits > 0).long()
    return Findings.of(
        images=len(labels),
        positives=labels.sum(0).tolist(),
        found=(labels & named).sum(0).tolist(),
        named=named.sum(0).tolist(),
        auc=[_auc(logits[:, i], labels[:, i]) for i in range(labels.shape[1])],
    )


def _auc(scores: Tensor, labels: Tensor) -> float | None:
    """How often an image with the label has the higher score; None without images of either kind.

    Ties count half.
    """
    found, other = (scores.double()[labels == which].numpy() for which in (1, 0))
    if not len(found) or not len(other):
        return None
    return float(mannwhitneyu(found, other).statistic) / (len(found) * len(other))


def confusion_of(logits: Tensor, labels: Tensor, *, ordinal: bool = False) -> Confusion:
    """Hold a classifier's answers against labels.

    Args:
        logits: its answers, [n, classes].
        labels: int64 [n], within its classes.
        ordinal: whether classes are grades, in their order.
    """
    classes = logits.shape[1]
    counts = count(labels, logits.argmax(1), classes)
    auc = _auc(logits[:, 1] - logits[:, 0], labels) if classes == 2 else None
    return Confusion.of(counts.tolist(), auc, ordinal=ordinal)


def operating_point(
    probabilities: Tensor, labels: Tensor, wanted: str, least: float
) -> tuple[float, float, float]:
    """The threshold with the wanted share right on one class, and as much as possible on the other.

    An image is taken for the second class where its probability is the threshold or more.

    Args:
        probabilities: float [n], of the second class.
        labels: int64 [n], 0 or 1, both of which occur.
        wanted: sensitivity, on the second class, or specificity, on the first.
        least: that share.

    Returns:
        Threshold, sensitivity and specificity.
    """
    found, other = probabilities[labels == 1], probabilities[labels == 0]
    of = found.sort(descending=True).values if wanted == "sensitivity" else other.sort().values
    threshold = of[math.ceil(least * len(of) - _SLACK) - 1]
    if wanted == "specificity":
        threshold = torch.nextafter(threshold, torch.full_like(threshold, torch.inf))
    sensitivity = float((found >= threshold).double().mean())
    return float(threshold), sensitivity, float((other < threshold).double().mean())


def count(true: Tensor, named: Tensor, classes: int) -> Tensor:
    """How often each class, int64 [n], is named each class: int64 [true, named]."""
    pairs = true * classes + named
    return torch.bincount(pairs, minlength=classes * classes).view(classes, classes)
