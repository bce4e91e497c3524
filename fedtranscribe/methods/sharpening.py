"""A sharpener for a mixture's images, from noisy second moments of features, class by class.

    ClassMomentsMethod ──holders──> Σ u uᵀ + noise, for each class, u the row of an image's features
    Sharpening: images of the mixture ──U-Net──> images whose rows have these second moments

What pixels do not show in few noisy numbers, features do: strokes, seams and edges. The U-Net is
trained on the mixture's own images alone.

Guarantee:
    None of their own: functions of public randomness and of private answers.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedtranscribe.methods.method import Combined, read_answers, stored_answers
from fedtranscribe.methods.moments import MomentsMethod, features_of, leading_axes
from fedtranscribe.models import Classifier
from fedtranscribe.models.fixed_features import unit_rows_of
from fedtranscribe.models.mixture import GaussianMixture, images_from
from fedtranscribe.models.sharpener import Sharpener
from fedtranscribe.questions.class_moments import ClassMomentsQuery
from fedtranscribe.questions.mixture import block_matrices
from fedtranscribe.questions.question import Kind

AXES = 150
"""Of a row whose second moments are asked class by class."""
WORTH_SHARPENING = 10.0
"""So many times as strong as the largest eigenvalue of its noise a class has to be."""
_LR, _WARM_UP = 6e-3, 10
# Images of a class in a step, and classes at most.
_EACH, _CLASSES = 20, 10
# Of a core and of memory, for a pixel of a step: measured at 28 to 128 pixels a side.
_SECONDS, _BYTES = 5e-6, 3_000
# Squared spread of a mixture on its axes, per pixel, at least: noise may hide all of it.
_LEAST_SPREAD = 0.01
# Weights of staying in place and of the student's loss; the distance of second moments has one.
_STAYING, _STUDENT = 0.2, 0.05


class ClassMomentsMethod:
    """One question, on the axes that the student's moments have shown.

    Args:
        moments: have been answered.
        classes: blocks of the sums: classes, or where there may be several labels, groups.
        run: prefix of query ids, unique for the ledger.
    """

    def __init__(self, moments: MomentsMethod, classes: int, run: str) -> None:
        self._moments = moments
        self._classes = classes
        self._run = run
        self._learned: list[tuple[ClassMomentsQuery, Combined]] = []

    @property
    def round(self) -> int:
        """How many questions have been answered."""
        return len(self._learned)

    @property
    def finished(self) -> bool:
        """Whether it has been."""
        return self.round == 1

    @property
    def learned(self) -> tuple[ClassMomentsQuery, Combined]:
        """The question and its answer, once there is one."""
        return self._learned[0]

    def ask(self) -> ClassMomentsQuery:
        """Second moments of each class, on the axes on which records differ most."""
        first, answer = self._moments.first
        mapping, name = leading_axes(first, answer, AXES), f"{self._run}/class-moments"
        return ClassMomentsQuery(
            name, Kind.CLASS_MOMENTS, first.centre, mapping, first.features, self._classes
        )

    def learn(self, query: ClassMomentsQuery, answer: Combined) -> dict[str, float]:
        """Keep the answer."""
        self._learned.append((query, answer))
        return {}

    def state(self) -> list[dict[str, Any]]:
        """Everything that `load_state` needs."""
        return stored_answers(self._learned)

    def load_state(self, state: list[dict[str, Any]]) -> None:
        """Continue from `state()` of the same plan."""
        self._learned = read_answers(state, ClassMomentsQuery)


class Sharpening:
    """Trains a sharpener in place; a `TrainingSteps`.

    For each class the loss is the squared distance of two second moments, those of the rows of
    sharpened images and those that holders sent, without the bias that so few images give:
    mean over pairs of (u_i · u_j)² − 2 mean u_iᵀ M u_i + ‖M‖². Two terms are added. Rows have norm
    one and know nothing of brightness, but the mixture does: on its axes images stay where they
    are, in terms of how far they spread there. And the student names their classes.

    Args:
        sharpener: to be trained.
        mixture: whose images it sharpens.
        student: finished; only judges.
        query: about class moments.
        answer: to it.
        steps: to take.
        rng: public randomness.
    """

    name = "sharpening"

    def __init__(
        self,
        sharpener: Sharpener,
        mixture: GaussianMixture,
        student: Classifier,
        query: ClassMomentsQuery,
        answer: Combined,
        steps: int,
        rng: torch.Generator,
    ) -> None:
        self.steps, self.done = steps, 0
        self._sharpener, self._mixture, self._student = sharpener, mixture.smooth, student
        self._query, self._rng = query, rng
        self._axes = images_from(mixture.axes.T, mixture.channels, mixture.size).float()
        spread = mixture.roots.square().sum((1, 2)) @ mixture.counts / mixture.counts.sum()
        pixels = mixture.channels * mixture.size**2
        self._spread = max(float(spread), _LEAST_SPREAD * pixels)
        counts, self._targets, self._sizes = targets_of(query, answer)
        # A class that noise hides would be given the features of the noise.
        edge = WORTH_SHARPENING * answer.noise * math.sqrt(2 * query.entries)
        known = torch.bincount(mixture.labels, mixture.counts, query.classes) > 0
        known &= counts > edge
        sharpener.known.copy_(known)
        self._known = known.nonzero().flatten()
        if not len(self._known):
            self.steps = 0
        self._optimiser = torch.optim.Adam(sharpener.parameters(), _LR, betas=(0.9, 0.99))

    def step(self) -> float:
        """One step; its loss."""
        for group in self._optimiser.param_groups:
            group["lr"] = _LR * _rate(self.done, self.steps)
        device = next(self._sharpener.parameters()).device
        order = torch.randperm(len(self._known), generator=self._rng)[:_CLASSES]
        classes = self._known[order]
        labels = classes.repeat_interleave(_EACH)
        smooth = self._mixture.draw(labels, self._rng).to(device)
        noise = torch.randn(len(labels), *self._sharpener.noise_shape, generator=self._rng)
        images = self._sharpener(smooth, labels.to(device), noise.to(device))
        moved = torch.einsum("nchw,kchw->nk", images - smooth, self._axes.to(device))
        loss = _STAYING * moved.square().sum(1).mean() / self._spread
        loss = loss + self._loss(images, classes, labels)
        self._optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self._optimiser.step()
        self.done += 1
        return float(loss.detach())

    def _loss(self, images: Tensor, classes: Tensor, labels: Tensor) -> Tensor:
        features, head = features_of(self._student), self._student.head
        raw, device = features.fixed(images), images.device
        centre, mapping = self._query.centre.to(device), self._query.map.to(device)
        rows = unit_rows_of(raw, centre, mapping).unflatten(0, (len(classes), _EACH))
        targets, sizes = self._targets[classes].to(device), self._sizes[classes].to(device)
        alike = (rows @ rows.transpose(1, 2)).square()
        pairs = (alike.sum((1, 2)) - alike.diagonal(dim1=1, dim2=2).sum(1)) / (_EACH * (_EACH - 1))
        common = torch.einsum("cik,ckl,cil->ci", rows, targets, rows).mean(1)
        distance = (pairs - 2 * common + sizes).sum() / sizes.sum()
        judged = features.rows(raw)
        logits = F.linear(judged, head.weight.detach(), head.bias.detach())
        if self._student.multilabel:
            return distance + _STUDENT * _named_otherwise(logits, labels.to(device))
        return distance + _STUDENT * F.cross_entropy(logits, labels.to(device))

    def state(self) -> dict[str, Any]:
        """See `TrainingSteps`."""
        return {"done": self.done, "optimiser": self._optimiser.state_dict()}

    def load_state(self, state: dict[str, Any]) -> None:
        """See `TrainingSteps`."""
        self.done = state["done"]
        self._optimiser.load_state_dict(state["optimiser"])


def _named_otherwise(logits: Tensor, groups: Tensor) -> Tensor:
    """How unlikely a student of several labels finds what images were drawn for.

    Args:
        logits: [n, classes].
        groups: int64 [n], no label, or 1 + the class.
    """
    absent = F.softplus(logits).mean(1)
    present = F.softplus(-logits.gather(1, (groups - 1).clamp_min(0)[:, None])).squeeze(1)
    return torch.where(groups == 0, absent, present).mean()


def cost_of(classes: int, channels: int, size: int, steps: int) -> str:
    """What training a sharpener takes, in words."""
    pixels = min(classes, _CLASSES) * _EACH * size**2 * (2 + channels) / 3
    minutes, memory = steps * pixels * _SECONDS / 60, pixels * _BYTES / 1e9
    return f"about {max(1.0, minutes):.0f} minutes of one core and {max(0.1, memory):.1f} GB"


def targets_of(query: ClassMomentsQuery, answer: Combined) -> tuple[Tensor, Tensor, Tensor]:
    """About how many records each class has [c], its mean u uᵀ [c, k, k], and ‖·‖² without noise.

    Every row has norm one, so that traces count records.
    """
    k = query.entries
    sums = block_matrices(answer.values[0], k, query.classes)
    counts = sums.diagonal(dim1=1, dim2=2).sum(1)
    means = sums / counts.clamp_min(1)[:, None, None]
    # A diagonal entry has variance τ², one beside it half of that, and there are two of each.
    noise = (answer.noise / counts.clamp_min(1)).square() * k * (k + 1) / 2
    sizes = (means.square().sum((1, 2)) - noise).clamp_min(1 / k)
    return counts, means.float(), sizes.float()


def _rate(done: int, steps: int) -> float:
    """Of the learning rate: rises for a few steps, then falls along a cosine."""
    return min(1.0, (done + 1) / _WARM_UP) * (1 + math.cos(math.pi * done / steps)) / 2
