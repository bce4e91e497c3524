"""A training that begins with a private start: mixture first, then the method on its samples.

    records ──sums + noise──> mixture ──samples, labelled──> pre-training of the method
    records ────────────────────────────DP-SGD, Phase I────> what it trains on them

`StartedMethod` is a method like any other: the host does not know that there are two parts.

Guarantee:
    That of its plan's release, the mixture's questions and the method's training as one event
    (`together`), booked before the first question. Noise of every question, number of samples and
    everything about the training are fixed by then. Samples are post-processing of the answers, so
    the method may take them for public images.
"""

from dataclasses import replace
from typing import Any

import torch

from fedtranscribe.config import SynthesizeSettings
from fedtranscribe.errors import ConfigError
from fedtranscribe.mechanisms import LocalNoise
from fedtranscribe.methods.method import Combined
from fedtranscribe.methods.mixture import MixtureMethod
from fedtranscribe.methods.staged import Progress, silent
from fedtranscribe.models.diffusion import to_signed
from fedtranscribe.models.inference import as_bytes
from fedtranscribe.models.unet import Denoiser
from fedtranscribe.privacy.release_plan import Release, together
from fedtranscribe.statistics.mixture import Mixture, bound_of
from fedtranscribe.synthesis.method import Facts, Material, Method, MethodPlan, Trainer
from fedtranscribe.synthesis.mixture_start import MixtureStart

MIXTURE = "mixture"


class StartedMethod:
    """A method that begins with samples of a mixture.

    Args:
        method: what trains on them, and then on the records.
        start: what the mixture asks.
    """

    def __init__(self, method: Method, start: MixtureStart) -> None:
        self._method, self._start = method, start

    def public_data(self, settings: SynthesizeSettings, facts: Facts) -> str | None:
        """None: the samples take its place."""
        return None

    def plan(
        self,
        settings: SynthesizeSettings,
        facts: Facts,
        public_records: int,
        start: Release | None = None,
    ) -> MethodPlan:
        """The method's own plan for what the mixture leaves of ε, and the mixture before it.

        Raises:
            ConfigError, UnsupportedAdjacencyError: as the method's.
        """
        begin = self._start
        plan = self._method.plan(settings, facts, begin.samples, begin.release)
        assert plan.release is not None
        assert plan.published is not None
        reason = f"{plan.published.reason} The private start is not in it."
        return replace(
            plan,
            published=replace(plan.published, reason=reason),
            steps={MIXTURE: len(begin.noise), **plan.steps},
            release=together(f"{MIXTURE}, {plan.release.mechanism}", [begin.release, plan.release]),
            words=(begin.words, *plan.words),
            start=begin.to_json(),
        )

    def trainer(self, plan: MethodPlan, facts: Facts, material: Material) -> "StartedTrainer":
        """Makes the method's trainer once without samples, so that it checks the data.

        Raises:
            ConfigError: as the method's.
        """
        return StartedTrainer(self._method, self._start, plan, facts, material)

    def network(self, trainer: Trainer) -> Denoiser:
        """The method's."""
        assert isinstance(trainer, StartedTrainer)
        return self._method.network(trainer.training)


class StartedTrainer:
    """Asks for a mixture, a question per step, then trains on samples of it and on the records.

    Args:
        method: what trains.
        start: what the mixture asks.
        plan: of both.
        facts: what is public about the records.
        material: what the method's trainer is made from, but for the samples.

    Attributes:
        training: the method's own trainer; on grey images until there are samples.
    """

    def __init__(
        self,
        method: Method,
        start: MixtureStart,
        plan: MethodPlan,
        facts: Facts,
        material: Material,
    ) -> None:
        self._method, self._start = method, start
        self._plan, self._facts, self._material = plan, facts, material
        self._statistic = Mixture(material.records)
        shape = facts.channels, facts.size
        self._mixture = MixtureMethod(*shape, facts.classes, start.cuts, "start")
        grey = torch.zeros(1, shape[0], shape[1], shape[1])
        labels = torch.zeros(start.samples, dtype=torch.int64)
        self.training = self._trainer(grey.expand(start.samples, -1, -1, -1), labels)

    @property
    def finished(self) -> bool:
        """See `Trainer`."""
        return self._mixture.finished and self.training.finished

    @property
    def release(self) -> Release | None:
        """See `Trainer`."""
        training = self.training.release
        assert training is not None
        name = f"{MIXTURE}, {training.mechanism}"
        return together(name, [self._start.release, training])

    def caveats(self) -> tuple[str, ...]:
        """See `Trainer`."""
        return self.training.caveats()

    def train(self, steps: int | None = None, progress: Progress = silent) -> bool:
        """See `Trainer`."""
        while not self._mixture.finished and (steps is None or steps > 0):
            self._ask()
            steps = None if steps is None else steps - 1
            progress(MIXTURE, self._mixture.round, len(self._start.noise))
        if self._mixture.finished and (steps is None or steps > 0):
            self.training.train(steps, progress)
        return self.finished

    def state(self) -> dict[str, Any]:
        """See `Trainer`."""
        training = self.training.state() if self._mixture.finished else {"physical_batch": {}}
        return {"start": self._plan.start, MIXTURE: self._mixture.state(), **training}

    def load_state(self, state: dict[str, Any]) -> None:
        """See `Trainer`."""
        if state.get("start") != self._plan.start or MIXTURE not in state:
            raise ConfigError(
                f"The checkpoint was made with start={state.get('start')}, this run has "
                f"{self._plan.start}; give the same settings, or start a new run."
            )
        self._mixture.load_state(state[MIXTURE])
        if self._mixture.finished:
            self._sample()
            self.training.load_state(state)

    # ---------------------------------------------------------------- small parts

    def _ask(self) -> None:
        """One question about the records, and what its noisy answer says."""
        query, std = self._mixture.ask(), self._start.noise[self._mixture.round]
        noise = self._material.noise.for_query(query.id)
        answer = LocalNoise(bound_of(query), std).privatise(self._statistic.values(query), noise)
        self._mixture.learn(query, Combined(query.id, answer, std))
        if self._mixture.finished:
            self._sample()

    def _sample(self) -> None:
        """The method's trainer, made anew with samples; the same ones whenever it goes on."""
        rng = torch.Generator().manual_seed(self._material.seed)
        images, labels = self._mixture.mixture.sample(self._start.samples, rng)
        self.training = self._trainer(to_signed(as_bytes(images)), labels)

    def _trainer(self, images: torch.Tensor, labels: torch.Tensor) -> Trainer:
        told = labels if self._plan.classes else None
        material = replace(self._material, public=images, public_labels=told)
        return self._method.trainer(self._plan, self._facts, material)
