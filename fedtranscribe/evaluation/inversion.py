"""Model inversion: what does a class look like, by the student's own account?

After the generative attack (GMI; Zhang, Jia, Pei, Wang, Li and Song 2020) by which the papers judge
students: search the latent space of a public generator for images that the student is surest of.
Here the generator is the run's own, which is as public as the student; without one, pixels are
searched under a smoothness prior. Whether the result is closer to private records than to held-out
ones is what counts: to look like a class in general is what a good student is for.
"""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedtranscribe.errors import ConfigError
from fedtranscribe.evaluation.audit_bounds import clopper_pearson, one_run_epsilon
from fedtranscribe.evaluation.findings import Claim, Finding, proved
from fedtranscribe.evaluation.membership import Suspects
from fedtranscribe.files import write_atomically
from fedtranscribe.models import Classifier, Generator
from fedtranscribe.models.classifier import probabilities_of

_LATENT_LR, _PIXEL_LR = 0.05, 0.1
_PRIOR, _SMOOTH = 0.05, 0.5
_POOL = 40
_MOST_CLASSES, _GAP = 20, 2


@dataclass(frozen=True, eq=False)
class Inversions:
    """Images that the attack came up with, and those that it started from."""

    images: Tensor  # uint8 [classes * starts, ch, s, s], class by class
    before: Tensor  # the same of the starts: a baseline without any optimisation
    labels: Tensor  # the class that was aimed at, int64 [classes * starts]
    confidence: float  # the student's in that class, mean over images


def invert(
    student: Classifier, generator: Generator | None, *, starts: int, steps: int, seed: int
) -> Inversions:
    """Search for images of every class.

    Each search starts from what the student finds likeliest among some random images, which is
    post-processing of released networks, and so is all of the search.

    Args:
        student: the released one.
        generator: the released one; None searches pixels.
        starts: searches per class.
        steps: of Adam.
        seed: public randomness.
    """
    if starts < 1 or steps < 1:
        raise ConfigError(f"Expected starts={starts} and steps={steps} to be >= 1.")
    device = next(student.parameters()).device
    labels = torch.arange(student.classes).repeat_interleave(starts)
    rng = torch.Generator().manual_seed(seed)
    shape = (
        (generator.latent_dim,)
        if generator is not None
        else (student.channels, student.size, student.size)
    )
    pool = torch.randn(_POOL * starts, *shape, generator=rng).to(device)
    student.eval()
    if generator is not None:
        generator.to(device).eval()
    with torch.no_grad():
        sure = _probabilities(student, _drawn(generator, pool))
    chosen = torch.cat([sure[:, c].topk(starts).indices for c in range(student.classes)])
    code = pool[chosen].clone().requires_grad_(True)
    before = _pictures(generator, code)
    optimiser = torch.optim.Adam([code], lr=_PIXEL_LR if generator is None else _LATENT_LR)
    for _ in range(steps):
        images = _drawn(generator, code)
        logits = student(images)
        if student.multilabel:
            loss = F.softplus(-logits.gather(1, labels[:, None].to(device))).mean()
        else:
            loss = F.cross_entropy(logits, labels.to(device))
        loss = loss + (_roughness(images) if generator is None else _PRIOR * code.square().mean())
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        final = _probabilities(student, _drawn(generator, code)).cpu()
    confidence = float(final.gather(1, labels[:, None]).mean())
    return Inversions(_pictures(generator, code), before, labels, confidence)


def by_inversion(found: Inversions, suspects: Suspects, claim: Claim, confidence: float) -> Finding:
    """How close inversions come to private records, against held-out ones and against the starts.

    The nearest record of each inversion is taken for a member: a guess that is right with even
    odds if the student knows nothing of single records, which gives a lower bound on ε.
    """
    made, start = _flat(found.images), _flat(found.before)
    real, used = _flat(suspects.images), torch.from_numpy(suspects.used)
    nearest = torch.cdist(made, real)
    guessed = nearest.argmin(1).unique()
    right, guesses = int(used[guessed].sum()), len(guessed)
    lower = one_run_epsilon(len(used), guesses, right, claim.delta, confidence)
    means = _class_means(real[used], suspects.labels[used], suspects.classes)
    aimed = means[found.labels]
    known = ~aimed.isnan().any(1)
    figures: dict[str, Any] = {
        "images": len(made),
        "confidence_in_class": found.confidence,
        "rmse_to_class_mean": _rmse(made[known], aimed[known]),
        "rmse_to_class_mean_of_starts": _rmse(start[known], aimed[known]),
        "rmse_to_nearest_member": _near(nearest[:, used], made.shape[1]),
        "rmse_to_nearest_held_out": _near(nearest[:, ~used], made.shape[1]),
        "guesses": guesses,
        "right": right,
        "nearest_is_member": right / guesses,
        "nearest_is_member_interval": clopper_pearson(right, guesses, confidence),
    }
    words = (
        f"{len(made)} images that the student classifies with confidence are on average "
        f"{figures['rmse_to_class_mean']:.3f} away from the mean of their class "
        f"({figures['rmse_to_class_mean_of_starts']:.3f} before the search). In {right} of "
        f"{guesses} cases the nearest record is a private one (half is luck), {proved(lower)}."
    )
    return Finding("inversion", claim, lower, confidence, words, figures)


def draw_columns(images: Tensor, starts: int, path: Path) -> None:
    """Inversions as a small PNG, a column per class, pixel for pixel.

    Args:
        images: uint8 [classes * starts, ch, s, s], class by class; the first twenty are shown.
        starts: images per class.
        path: to write.
    """
    from matplotlib.image import imsave

    columns = images.unflatten(0, (-1, starts))[:_MOST_CLASSES]
    padded = F.pad(columns, (0, _GAP, 0, _GAP), value=255)
    # [class, start, ch, y, x] -> [start y, class x, ch]
    grid = padded.permute(1, 3, 0, 4, 2).flatten(2, 3).flatten(0, 1)[:-_GAP, :-_GAP].numpy()
    buffer = io.BytesIO()
    grey = grid.shape[-1] == 1
    imsave(buffer, grid[..., 0] if grey else grid, cmap="gray", vmin=0, vmax=255, format="png")
    write_atomically(path, buffer.getvalue())


def _drawn(generator: Generator | None, code: Tensor) -> Tensor:
    return torch.sigmoid(code) if generator is None else generator(code)


def _pictures(generator: Generator | None, code: Tensor) -> Tensor:
    with torch.no_grad():
        return (_drawn(generator, code).clamp(0, 1) * 255).round().to(torch.uint8).cpu()


def _roughness(images: Tensor) -> Tensor:
    across = (images[..., 1:] - images[..., :-1]).abs().mean()
    return _SMOOTH * (across + (images[..., 1:, :] - images[..., :-1, :]).abs().mean())


def _flat(images: Tensor) -> Tensor:
    return images.flatten(1).float() / 255


def _probabilities(student: Classifier, images: Tensor) -> Tensor:
    return probabilities_of(student(images), multilabel=student.multilabel)


def _class_means(real: Tensor, labels: Tensor, classes: int) -> Tensor:
    """[classes, d]; NaN for a class without records."""
    has = F.one_hot(labels, classes) if labels.ndim == 1 else labels
    return torch.stack([real[has[:, label] == 1].mean(0) for label in range(classes)])


def _rmse(first: Tensor, second: Tensor) -> float:
    """Root mean square difference of pixels in [0, 1], mean over pairs; 0 for none."""
    if len(first) == 0:
        return 0.0
    return float((first - second).square().mean(1).sqrt().mean())


def _near(distances: Tensor, pixels: int) -> float:
    """Root mean square difference from the nearest record; 0 where there is none."""
    if distances.shape[1] == 0:
        return 0.0
    return float(distances.amin(1).mean() / np.sqrt(pixels))
