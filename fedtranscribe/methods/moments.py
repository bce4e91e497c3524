"""A student and a generator that follow from noisy moments of the holders' records."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedtranscribe.config import DpsdSettings
from fedtranscribe.methods.dpsd import generator_loss
from fedtranscribe.methods.method import (
    Combined,
    Show,
    StateStore,
    TrainingSteps,
    read_answers,
    run_training_steps,
    stored_answers,
)
from fedtranscribe.methods.pretraining import GeneratorPretraining
from fedtranscribe.models import Classifier, Generator, fixed_randomness
from fedtranscribe.models.classifier import probabilities_of
from fedtranscribe.models.fixed_features import BIAS, UnitFeatures
from fedtranscribe.questions.moments import MomentsQuery, MomentSums
from fedtranscribe.questions.question import Kind

_LR = 1e-3
_GENERATOR_BATCH = 64
# Weight of the distance between moments, which is about one at the start.
_MATCHING = 10.0


class MomentsMatching:
    """Trains a generator in place, against a finished student; a `TrainingSteps`.

    The loss is that of DPSD Eq. 8, with the student as the judge, plus the distance between the
    sums by class of what is generated, classed by the student, and those that the holder sent
    (DP-MERF, on features of ours).

    Args:
        generator: maps z [n, latent] to images.
        student: its head is set; only judges.
        moments: the answer to the second question.
        settings: of the method.
        rng: source of z.

    Guarantee:
        None of its own: a function of public values and of a private answer.
    """

    name = "generator"

    def __init__(
        self,
        generator: Generator,
        student: Classifier,
        moments: MomentSums,
        settings: DpsdSettings,
        rng: torch.Generator,
    ) -> None:
        self.steps, self.done = settings.moments_steps, 0
        self._generator, self._student = generator, student
        self._settings, self._rng = settings, rng
        self._device = next(generator.parameters()).device
        assert moments.by_class is not None
        # The constant entry counts the records, class by class.
        shares = moments.by_class[-1].clamp_min(0)
        target = moments.by_class / (shares.sum() * _PER_RECORD).clamp_min(1)
        self._target = target.float().to(self._device)
        self._optimiser = torch.optim.Adam(generator.parameters(), lr=_LR, betas=(0.5, 0.99))

    def step(self) -> float:
        """One step; its loss."""
        self._student.eval().requires_grad_(False)
        z = torch.randn(_GENERATOR_BATCH, self._generator.latent_dim, generator=self._rng)
        images = self._generator.train()(z.to(self._device))
        features = self._student.features(images)
        logits = self._student.head(features)
        classes = probabilities_of(logits, multilabel=self._student.multilabel)
        off = (features.T @ classes / _GENERATOR_BATCH - self._target).square().sum()
        distance = off / self._target.square().sum()
        loss = _MATCHING * distance + generator_loss(self._student, images, self._settings)
        self._optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self._optimiser.step()
        self._student.requires_grad_(True)
        self.done += 1
        return float(loss.detach())

    def state(self) -> dict[str, Any]:
        """See `TrainingSteps`."""
        return {"done": self.done, "optimiser": self._optimiser.state_dict()}

    def load_state(self, state: dict[str, Any]) -> None:
        """See `TrainingSteps`."""
        self.done = state["done"]
        self._optimiser.load_state_dict(state["optimiser"])


_BATCH = 250
# In terms of the largest eigenvalue that noise alone makes.
_PRIVATE_FLOOR = 0.3
_RIDGE, _RIDGE_OF_FEW = 1.5, 2.5
# A class of usual size is clear of that so many times over.
_CLEAR = 4.0
# So many stds of its noise a count of records has to be.
_SEEN = 2.0
# Ridge regression gives differences of about one between classes; as logits they want to be sharper
_SHARPNESS = 10.0
# The constant entry of a row times this is one.
_PER_RECORD = math.sqrt(1 + BIAS**2) / BIAS
_QUESTIONS = ("moments-0", "moments-1")


def public_map(
    fixed: nn.Module, images: Tensor, width: int, seed: int, floor: float
) -> tuple[Tensor, Tensor]:
    """Principal axes of public images, brought closer in scale: centre [d] and map [d, k].

    Both are on the CPU.

    Args:
        fixed: images float [n, ch, s, s] in [0, 1] to features [n, d].
        images: public, uint8 [n, ch, s, s], where `fixed` is.
        width: k.
        seed: of the randomised decomposition.
        floor: variance that every axis is taken to have at least, in terms of the mean over the
            features: with much of it leading axes stay longer than others.
    """
    with torch.no_grad():
        parts = [fixed(part.float() / 255).cpu() for part in images.split(_BATCH)]
    coefficients = torch.cat(parts)
    centre = coefficients.mean(0)
    coefficients -= centre
    with fixed_randomness(seed):
        _, scale, axes = torch.pca_lowrank(coefficients, min(width, *coefficients.shape), False)
    variances = scale.square() / len(coefficients)
    fitted = axes / (variances + floor * coefficients.square().mean()).sqrt()
    # Fewer images than axes leave some of them unused.
    return centre, F.pad(fitted, (0, width - fitted.shape[1]))


class MomentsMethod:
    """Student side: two questions, a head by ridge regression, the generator; see `SumsMethod`.

    Args:
        student: linear on fixed features, on the axes of public images; trained in place.
        generator: maps z [n, latent] to images [n, ch, h, w] in [0, 1]; trained in place. None
            where a mixture stands in for it.
        settings: public hyper-parameters of the generator.
        rng: source of z; it needs no secrecy.
        run: prefix of query ids, unique for the ledger.
        public: images that the generator starts from, uint8 [m, ch, h, w], or None.
        balanced: whether records of rare classes count more for the student.
    """

    def __init__(
        self,
        student: Classifier,
        generator: Generator | None,
        *,
        settings: DpsdSettings,
        rng: torch.Generator,
        run: str,
        public: Tensor | None = None,
        balanced: bool = False,
    ) -> None:
        self.student = student
        self.generator = generator
        self.rng = rng
        self._settings = settings
        self._run = run
        self._public = public
        self._balanced = balanced
        self._learned: list[tuple[MomentsQuery, Combined]] = []

    @property
    def round(self) -> int:
        """How many questions have been answered."""
        return len(self._learned)

    @property
    def first(self) -> tuple[MomentsQuery, Combined]:
        """The first question and its answer, once there is one."""
        return self._learned[0]

    @property
    def last(self) -> tuple[MomentsQuery, Combined]:
        """The last question and its answer, once there is one."""
        return self._learned[-1]

    @property
    def finished(self) -> bool:
        """Whether both questions have been answered."""
        return self.round == len(_QUESTIONS)

    def ask(self) -> MomentsQuery:
        """Which combinations of features do the records show at all? Then: of which class?"""
        name = f"{self._run}/{_QUESTIONS[self.round]}"
        features = features_of(self.student)
        fixed, classes = self.student.architecture, self.student.head.out_features
        if not self._learned:
            of_rows = features.centre.cpu().clone(), features.map.cpu().clone(), fixed
            products = classes = 0
        else:
            query, answer = self._learned[0]
            of_rows, products = (
                (query.centre, _visible_axes(query, answer), fixed),
                features.products,
            )
        several = self.student.multilabel
        return MomentsQuery(name, Kind.MOMENTS, *of_rows, classes, several, products=products)

    def learn(self, query: MomentsQuery, answer: Combined) -> dict[str, float]:
        """Keep the answer; the last one sets the student."""
        self._learned.append((query, answer))
        if self.finished:
            self.fit()
        return {}

    def fit(self, beside: MomentSums | None = None) -> None:
        """Set the student by the last answer, and by moments of other labelled rows beside it.

        Args:
            beside: of rows whose labels are known already, in the last question's features.
        """
        query, answer = self._learned[-1]
        if query.multilabel:
            set_head_of_several(self.student, query, answer)
        else:
            set_head(self.student, query, answer, beside, self.class_weights)

    @property
    def class_weights(self) -> Tensor:
        """What a record of each class counts for the student, float64 [classes] in [0, 1]."""
        query, answer = self._learned[-1]
        if not self._balanced:
            return torch.ones(query.classes, dtype=torch.float64)
        return balancing_weights(query, answer)

    def finish(self, show: Show) -> None:
        """Nothing: the last answer has set the student."""

    def finish_generator(self, show: Show, store: StateStore) -> None:
        """Train the generator on public images, then against the finished student: free.

        A run that was stopped before the last answer has no such student.
        """
        images, settings, generator = self._public, self._settings, self.generator
        if generator is None:
            return

        def on_public() -> TrainingSteps:
            assert images is not None
            return GeneratorPretraining(generator, images, settings.pretrain_steps, self.rng)

        def on_moments() -> TrainingSteps:
            sums = moments_of(*self._learned[-1])
            return MomentsMatching(generator, self.student, sums, settings, self.rng)

        courses = [*([] if images is None else [on_public]), *([on_moments] * self.finished)]
        run_training_steps(courses, generator, self.rng, show, store)

    def state(self) -> dict[str, Any]:
        """Everything `load_state` needs to go on as if nothing had happened; tensors on CPU."""
        return {
            "student": self.student.state_dict(),
            "generator": None if self.generator is None else self.generator.state_dict(),
            "rng": self.rng.get_state(),
            "learned": stored_answers(self._learned),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from `state()` of the same plan."""
        self.student.load_state_dict(state["student"])
        if self.generator is not None:
            self.generator.load_state_dict(state["generator"])
        self.rng.set_state(state["rng"])
        self._learned = read_answers(state["learned"], MomentsQuery)


def moments_of(query: MomentsQuery, answer: Combined) -> MomentSums:
    """The noisy sums that an answer stands for."""
    return MomentSums.from_vector(answer.values[0], query.entries, query.classes or None)


def _visible_axes(query: MomentsQuery, answer: Combined) -> Tensor:
    """The map of the second question: each axis scaled by what the first answer showed."""
    return _scaled_axes(query, answer, query.entries - 1, 0.5)


def leading_axes(query: MomentsQuery, answer: Combined, count: int) -> Tensor:
    """A map [d, count] to the axes on which records differ most, by the first answer.

    They stay longer than others, but less so than they are: half whitened.
    """
    return _scaled_axes(query, answer, min(count, query.entries - 1), 0.25)


def _scaled_axes(query: MomentsQuery, answer: Combined, count: int, power: float) -> Tensor:
    """Axes on which records differ most come first: rows hold products of these."""
    second = moments_of(query, answer).second[:-1, :-1]
    values, axes = (found.flip(-1) for found in torch.linalg.eigh(second))
    floor = _PRIVATE_FLOOR * _noise_edge(answer.noise, len(second))
    scaled = axes[:, :count] / (values[:count].clamp_min(0) + floor).pow(power)
    fitted = query.map.double() @ scaled
    return (fitted / fitted.norm() * math.sqrt(count)).float()


def balancing_weights(query: MomentsQuery, answer: Combined) -> Tensor:
    """Weights of classes by how rare they are, float64 [classes] in (0, 1]; the rarest has one.

    They fall with the square root of a class's count: if all classes counted alike, the noise of
    the rarest would be that of all. The constant entry of a row counts the records of its class in
    noisy sums. Classes whose count may be noise are no measure for the others.
    """
    by_class = moments_of(query, answer).by_class
    assert by_class is not None
    counts = by_class[-1] * _PER_RECORD
    edge = max(1.0, _SEEN * answer.noise * _PER_RECORD)
    seen = counts[counts > edge]
    rarest = float(seen.min()) if len(seen) else edge
    return (rarest / counts.clamp_min(rarest)).clamp_max(1.0).sqrt()


def set_head(
    student: Classifier,
    query: MomentsQuery,
    answer: Combined,
    beside: MomentSums | None,
    weights: Tensor,
) -> None:
    """Ridge regression of the labels on the features, from their noisy moments alone.

    The ridge exceeds the largest eigenvalue that the noise may have, so that the noisy second
    moments are safely inverted at every ε.

    Args:
        student: linear on fixed features; its map and head are set in place.
        query: the second question.
        answer: to it.
        beside: moments of more rows, without noise, that are fitted as well.
        weights: of records by class, float64 [classes].
    """
    sums = moments_of(query, answer)
    second, by_class = sums.second, sums.by_class
    assert by_class is not None
    if beside is not None and beside.by_class is not None:
        second, by_class = second + beside.second, by_class + beside.by_class
    by_class = by_class * weights
    targets = by_class - by_class.mean(1, keepdim=True)
    share = weighted_share(query, answer, weights)
    solved = torch.linalg.solve(share * second + _ridge(query, answer), targets)
    features = features_of(student)
    with torch.no_grad():
        features.set_axes(query.centre, query.map)
        student.head.weight.copy_(_SHARPNESS * solved.T)
        student.head.bias.zero_()


def set_head_of_several(student: Classifier, query: MomentsQuery, answer: Combined) -> None:
    """Ridge regression of each label by itself, as the logit of having it.

    Args:
        student: linear on fixed features; its map and head are set in place.
        query: the second question.
        answer: to it.
    """
    sums, shares = moments_of(query, answer), label_shares(query, answer)
    second, by_class = sums.second, sums.by_class
    assert by_class is not None
    targets = by_class - _PER_RECORD * second[:, -1:] * shares
    solved = torch.linalg.solve(second + _ridge(query, answer), targets)
    # A change of probability by p (1 − p) is one of the logit by one.
    head = solved / (shares * (1 - shares))
    head[-1] += torch.logit(shares) * _PER_RECORD
    features = features_of(student)
    with torch.no_grad():
        features.set_axes(query.centre, query.map)
        student.head.weight.copy_(head.T)
        student.head.bias.zero_()


def label_shares(query: MomentsQuery, answer: Combined) -> Tensor:
    """Which share of records has each label, float64 [classes]; never less than noise may hide."""
    by_class = moments_of(query, answer).by_class
    assert by_class is not None
    records = max(1.0, records_in(query, answer))
    least = min(0.5, max(1.0, _SEEN * answer.noise * _PER_RECORD) / records)
    return (by_class[-1] * _PER_RECORD / records).clamp(least, 1 - least)


def weighted_share(query: MomentsQuery, answer: Combined, weights: Tensor) -> float:
    """Which share of all records is left where those of each class count so much; up to one."""
    by_class = moments_of(query, answer).by_class
    assert by_class is not None
    counts = by_class[-1].clamp_min(0)
    return float((counts * weights).sum() / counts.sum()) if counts.any() else 1.0


def damped(query: MomentsQuery, answer: Combined, share: float) -> Tensor:
    """Σ u uᵀ of a share of records with its ridge, float64 [k, k], positive definite."""
    return share * moments_of(query, answer).second + _ridge(query, answer)


def records_in(query: MomentsQuery, answer: Combined) -> float:
    """About how many records were summed up: every row has norm one, so the trace counts them."""
    return float(moments_of(query, answer).second.trace())


def _ridge(query: MomentsQuery, answer: Combined) -> Tensor:
    edge = _noise_edge(answer.noise, query.entries)
    stands = records_in(query, answer) / max(1, query.classes) / max(edge, 1e-12)
    factor = _RIDGE if stands >= _CLEAR else _RIDGE_OF_FEW
    return factor * edge * torch.eye(query.entries, dtype=torch.float64)


def _noise_edge(noise_std: float, width: int) -> float:
    """About the largest eigenvalue of the noise: 2·(τ/√2)·√k, by the semicircle law."""
    return noise_std * math.sqrt(2 * width)


def features_of(student: Classifier) -> UnitFeatures:
    """A student's fixed features."""
    if not isinstance(student.backbone, UnitFeatures):
        raise ValueError(f"Expected a student of fixed features, got {student.architecture!r}.")
    return student.backbone
