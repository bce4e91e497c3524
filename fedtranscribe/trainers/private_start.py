"""A private start: a share of the budget buys a mixture, whose samples the network begins with.

    records ──sums + noise──> mixture ──samples, labelled──> pre-training of the method
    records ────────────────────────────private training───> what it trains on them

Training by noisy gradients learns slowly what pictures look like at all. Noisy sums over records
show that at once (`methods.mixture`), and samples of what they show can be trained on for as long
as one likes. So a share of μ² buys a mixture, and the training spends the rest.

Guarantee:
    Shares, cuts and noise follow from public facts and settings; all are fixed before the first
    question, and so is everything about the training. `release` is what the questions give away,
    each a Gaussian; a run books the mixture's questions and the method's training as one event
    (`together`). Samples are post-processing of the answers, so the method may take them for public
    images.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedtranscribe.config import SynthesizeSettings
from fedtranscribe.data import ImageSet
from fedtranscribe.errors import ConfigError
from fedtranscribe.methods.method import Combined
from fedtranscribe.methods.mixture import (
    MixtureMethod,
    QuestionShape,
    fits,
    picked_cuts,
    question_shapes,
)
from fedtranscribe.models.diffusion import to_signed
from fedtranscribe.models.inference import as_bytes
from fedtranscribe.models.unet import Denoiser
from fedtranscribe.noise.bounds import Bound
from fedtranscribe.noise.gaussian import LocalNoise
from fedtranscribe.privacy.calibrate import ROUNDING
from fedtranscribe.privacy.closed_forms import gaussian_mu
from fedtranscribe.privacy.forecasts import in_short
from fedtranscribe.privacy.release_plan import MechanismRelease, together
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.questions.mixture import Mixture, bound_of, mixture_bound
from fedtranscribe.results.progress import Progress, silent
from fedtranscribe.trainers.plan import DataFacts, TrainingPlan
from fedtranscribe.trainers.stages import Trainer, TrainingInputs

MIXTURE = "mixture"

# Of μ², by how much budget all records have together, records · μ: the less that is, the less can
# a training by noisy gradients add to what the mixture shows.
_SHARES = ((50_000.0, 0.5), (10_000.0, 0.7), (0.0, 0.9))
_SAMPLES = 20_000
# Below, a class hardly shows in its sums.
_WORTH_A_START = 3.0


@dataclass(frozen=True)
class MixtureStart:
    """What a private start asks; public."""

    share: float  # of the run's μ²
    cuts: int  # 2^cuts Gaussians per class
    noise: tuple[float, ...]  # std on each question's sums, in order
    samples: int  # images that are drawn from the mixture, for the network to begin with
    release: MechanismRelease  # what the questions give away
    words: str  # the same, for people

    def to_json(self) -> dict[str, Any]:
        """Everything that decides the outcome."""
        return {
            "share": self.share,
            "components": 2**self.cuts,
            "noise": list(self.noise),
            "samples": self.samples,
        }

    def before(self, plan: TrainingPlan) -> TrainingPlan:
        """The mixture, and after it a training that was planned with its release."""
        assert plan.release is not None
        assert plan.published is not None
        reason = f"{plan.published.reason} The private start is not in it."
        return replace(
            plan,
            published=replace(plan.published, reason=reason),
            steps={MIXTURE: len(self.noise), **plan.steps},
            release=_together(self.release, plan.release),
            words=(self.words, *plan.words),
            start=self.to_json(),
        )


def mixture_start(settings: SynthesizeSettings, facts: DataFacts) -> MixtureStart | None:
    """The private start that was asked for, or the usual one where it helps; None for none."""
    start = None if settings.start == "none" else _possible(settings, facts)
    if start is None and settings.start_share is not None:
        raise ConfigError(
            f"Expected start_share={settings.start_share} with start=mixture only; leave it out, "
            "or give --start mixture."
        )
    return start


def _possible(settings: SynthesizeSettings, facts: DataFacts) -> MixtureStart | None:
    usual, against = settings.start is None, _against(settings, facts)
    if usual and (against or settings.profile == "paper"):
        return None
    if against:
        raise ConfigError(f"Expected start=none: {against}.")
    planned = _planned(settings, facts)
    stands = _stands(facts, planned.noise[1], question_shapes(*_shape(facts), 0)[1])
    return None if usual and stands < _WORTH_A_START else planned


def _against(settings: SynthesizeSettings, facts: DataFacts) -> str | None:
    """Why there can be no mixture; None if there can."""
    if not settings.noise:
        return "a run without noise has no budget to share"
    if settings.calibrate_by == "published":
        return "only the sound figure covers the cost of a mixture"
    if settings.labels == "kmeans":
        return "clusters come from public images, and a mixture takes their place"
    if settings.pretrain_data not in (None, "none"):
        return f"the network begins with the public images of {settings.pretrain_data!r}"
    if not fits(*_shape(facts)):
        return f"{facts.classes:,} classes are too many for a mixture; its sums would be too long"
    if facts.positional_ids and settings.adjacency == "add-remove":
        return "without persistent ids its sums have no guarantee under add-remove"
    return None


def _planned(settings: SynthesizeSettings, facts: DataFacts) -> MixtureStart:
    adjacency = Adjacency(settings.adjacency)
    whole = gaussian_mu(settings.epsilon, settings.delta)
    usual = next(share for least, share in _SHARES if facts.records * whole >= least)
    share = usual if settings.start_share is None else settings.start_share
    mu = math.sqrt(share) * whole

    def bound(shape: QuestionShape) -> Bound:
        return mixture_bound(shape.width, shape.blocks)

    def noise(shape: QuestionShape) -> float:
        moved = bound(shape).moves[Unit.RECORD][adjacency]
        return moved * (1 + ROUNDING) / (mu * math.sqrt(shape.share))

    def stands(shape: QuestionShape) -> float:
        return _stands(facts, noise(shape), shape)

    cuts = picked_cuts(*_shape(facts), stands)
    shapes = question_shapes(*_shape(facts), cuts)
    stds = tuple(noise(shape) for shape in shapes)
    releases = [
        LocalNoise(bound(shape), std).release(1, positional_ids=facts.positional_ids)
        for shape, std in zip(shapes, stds, strict=True)
    ]
    words = (
        f"private start: {share:.0%} of the budget (μ²) goes to a mixture of {2**cuts} "
        f"{'Gaussian' if cuts == 0 else 'Gaussians'} per class, each "
        f"{in_short(stands(shapes[-2]))} times as strong as its noise; the network begins with "
        f"{_SAMPLES:,} samples of it"
    )
    return MixtureStart(share, cuts, stds, _SAMPLES, together("mixture", releases), words)


def _shape(facts: DataFacts) -> tuple[int, int, int]:
    return facts.channels, facts.size, facts.classes


def _stands(facts: DataFacts, noise: float, shape: QuestionShape) -> float:
    """Records of a block of usual size, in terms of the largest eigenvalue of noise alone."""
    assert shape.blocks is not None
    return facts.records / shape.blocks / (noise * math.sqrt(2 * shape.width))


def _together(start: MechanismRelease, training: MechanismRelease) -> MechanismRelease:
    return together(f"{MIXTURE}, {training.mechanism}", [start, training])


# ---------------------------------------------------------------- training


class TrainerWithStart:
    """Asks for a mixture, a question per step, then trains on samples of it and on the records.

    `training` is the method's own trainer, made by `make`: on grey images until there are samples,
    so that it checks the PRIVATE records first.
    """

    def __init__(
        self,
        start: MixtureStart,
        plan: TrainingPlan,
        records: ImageSet,
        inputs: TrainingInputs,
        seed: int,
        make: Callable[[TrainingInputs], Trainer],
    ) -> None:
        self._start, self._plan, self._inputs = start, plan, inputs
        self._seed, self._make = seed, make
        self._statistic = Mixture(records)
        shape = records.channels, records.size, records.classes
        self._mixture = MixtureMethod(*shape, start.cuts, "start")
        grey = torch.zeros(1, records.channels, records.size, records.size)
        labels = torch.zeros(start.samples, dtype=torch.int64)
        self.training = self._trainer(grey.expand(start.samples, -1, -1, -1), labels)

    @property
    def finished(self) -> bool:
        """Whether mixture and training are through."""
        return self._mixture.finished and self.training.finished

    @property
    def release(self) -> MechanismRelease | None:
        """What both give away."""
        assert self.training.release is not None
        return _together(self._start.release, self.training.release)

    @property
    def network(self) -> Denoiser:
        """The method's."""
        return self.training.network

    def caveats(self) -> tuple[str, ...]:
        """Why the run is NOT private; empty if it is."""
        return self.training.caveats()

    def train(self, steps: int | None = None, progress: Progress = silent) -> bool:
        """Go on by so many questions and steps; whether training is finished."""
        while not self._mixture.finished and (steps is None or steps > 0):
            self._ask()
            steps = None if steps is None else steps - 1
            progress(MIXTURE, self._mixture.round, len(self._start.noise))
        if self._mixture.finished and (steps is None or steps > 0):
            self.training.train(steps, progress)
        return self.finished

    def state(self) -> dict[str, Any]:
        """Everything `load_state` needs."""
        training = self.training.state() if self._mixture.finished else {"physical_batch": {}}
        return {"start": self._plan.start, MIXTURE: self._mixture.state(), **training}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from `state()` of the same plan, or raise ConfigError."""
        if state.get("start") != self._plan.start or MIXTURE not in state:
            raise ConfigError(
                f"The checkpoint was made with start={state.get('start')}, this run has "
                f"{self._plan.start}; give the same settings, or start a new run."
            )
        self._mixture.load_state(state[MIXTURE])
        if self._mixture.finished:
            self._sample()
            self.training.load_state(state)

    def _ask(self) -> None:
        """One question about the records, and what its noisy answer says."""
        query, std = self._mixture.ask(), self._start.noise[self._mixture.round]
        noise = self._inputs.noise.for_query(query.id)
        answer = LocalNoise(bound_of(query), std).privatise(self._statistic.values(query), noise)
        self._mixture.learn(query, Combined(query.id, answer, std))
        if self._mixture.finished:
            self._sample()

    def _sample(self) -> None:
        """The method's trainer, made anew with samples; the same ones whenever it goes on."""
        rng = torch.Generator().manual_seed(self._seed)
        images, labels = self._mixture.mixture.sample(self._start.samples, rng)
        self.training = self._trainer(to_signed(as_bytes(images)), labels)

    def _trainer(self, images: Tensor, labels: Tensor) -> Trainer:
        public_labels = labels if self._plan.classes else None
        return self._make(replace(self._inputs, public=images, public_labels=public_labels))
