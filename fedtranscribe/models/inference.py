"""What trained networks give: classes, accuracy, confusion and samples."""

import math
from collections.abc import Callable, Iterable

import torch
from scipy.stats import mannwhitneyu
from torch import Tensor

from fedtranscribe.models.classifier import Classifier
from fedtranscribe.models.diffusion import Synthesizer
from fedtranscribe.models.generator import Generator
from fedtranscribe.models.mixture import GaussianMixture
from fedtranscribe.results.parts import Confusion

_BATCH = 250
_TRIES = 4
# Of a count of images: shares such as 0.95 are no binary fractions.
_SLACK = 1e-9


Images = Tensor | Iterable[Tensor]
"""Images [n, ch, s, s], uint8 or in [0, 1]: all at once, or in blocks of some."""


def accuracy(network: Classifier, images: Images, labels: Tensor) -> float:
    """Share of right answers on images."""
    return int((predict(network, images) == labels).sum()) / len(labels)


def predict(network: Classifier, images: Images) -> Tensor:
    """Likeliest class of each image: int64 [n]."""
    return logits_of(network, images).argmax(-1)


def logits_of(network: Classifier, images: Images) -> Tensor:
    """What the network says of images: [n, classes], on CPU."""
    device = next(network.parameters()).device
    blocks = [images] if isinstance(images, Tensor) else images
    network.eval()
    with torch.no_grad():
        parts = (part for block in blocks for part in block.split(_BATCH))
        return torch.cat([network(_in_unit_range(part.to(device))).cpu() for part in parts])


def _in_unit_range(images: Tensor) -> Tensor:
    return images.float() / 255 if images.dtype == torch.uint8 else images.float()


def labelled_samples(
    generator: Generator | GaussianMixture | Synthesizer,
    student: Classifier | None,
    n: int,
    seed: int,
    done: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Tensor, Tensor]:
    """Synthetic images uint8 [n, ch, s, s] and their labels int64 [n]: post-processing.

    The student labels what a network makes and what has been sharpened; other images of a mixture
    have the labels of their components; a diffusion model is asked for every class alike, and one
    without labels gives 0 to all.
    """
    if isinstance(generator, GaussianMixture):
        drawn, labels = generator.sample(n, torch.Generator().manual_seed(seed))
        images = as_bytes(drawn)
        if student is None:
            return images, labels
        named = predict(student, images) if generator.sharpener is not None else labels
        return images, torch.where(generator.is_sharpened(labels), named, labels)
    if isinstance(generator, Synthesizer):
        labels = torch.arange(n) % max(1, generator.classes)
        return generator.draw(labels, seed, done), labels
    assert student is not None
    images = sample_images(generator, n, seed)
    return images, predict(student, images)


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
    if student is None or not bool(judged.any()):
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


def confusion_of(
    network: Classifier, images: Images, labels: Tensor, *, ordinal: bool = False
) -> Confusion:
    """Hold a classifier's answers against labels.

    Args:
        network: whose answers.
        images: shown to it.
        labels: int64 [n], within its classes.
        ordinal: whether classes are grades, in their order.
    """
    logits = logits_of(network, images)
    counts = count(labels, logits.argmax(1), network.classes)
    auc = None
    if network.classes == 2 and bool(counts.sum(1).all()):
        score = (logits[:, 1] - logits[:, 0]).double().numpy()
        found, other = score[labels.numpy() == 1], score[labels.numpy() == 0]
        auc = float(mannwhitneyu(found, other).statistic) / (len(found) * len(other))
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
