"""What the private training of a diffusion model costs: dp-promise and DP-SAD, as plans.

A plan holds public numbers only. The trainers take their batches, steps, clipping and noise from
it, and the ledger books its `release`, so that what is trained, what is booked and what is printed
cannot drift apart. Both methods suppose Poisson batches, per-record gradients clipped in parameter
space, noise added once per step, and division by the expected batch size. Unit: record, which is
everything under one id.

Guarantee
    A trained model is a post-processing of the plan's events, all fixed before the first step.
    - dp-promise, Phase I: `released_images` has the proof; x_0 and its noise are never touched
      again. With one image per record for ever (`cached`) there are n releases, one of which
      moves by μ, or μ/2 under zero-out: a plain Gaussian, with nothing gained from batches.
      Phase II: DP-SGD under the same adjacency. The null record ⊥ of zero-out keeps its coin: it
      contributes a grey image to Phase I, where an image has to be drawn, and a zero gradient to
      Phase II.
    - DP-SAD: the student is DP-SGD; a private teacher, and a discriminator that sees more than
      public data and private outputs, are one more DP-SGD each, over as many epochs.
"""

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from fedtranscribe.errors import ConfigError
from fedtranscribe.privacy.calibrate import ROUNDING
from fedtranscribe.privacy.dpsgd_plan import DpSgdPlan
from fedtranscribe.privacy.events import Event, Gaussian, Together
from fedtranscribe.privacy.published import (
    BETA_FIRST,
    BETA_LAST,
    TIME_STEPS,
    Published,
    diffusion_signal,
    dp_promise_theorem2,
    dp_sad_theorem4,
    sampling_probability,
    sgd_steps,
)
from fedtranscribe.privacy.release_plan import Release
from fedtranscribe.privacy.released_images import ReleasedImages
from fedtranscribe.privacy.units import Adjacency, Unit


class Teacher(StrEnum):
    """Where DP-SAD's teacher comes from."""

    PUBLIC = "public"
    """Trained on public data; costs nothing."""
    DP = "dp"
    """Trained on the private records with DP-SGD, at the student's multiplier and epochs."""


class Discriminator(StrEnum):
    """What DP-SAD's discriminator learns from."""

    OUTPUTS = "outputs"
    """Public data and outputs of private models only; costs nothing."""
    DP = "dp"
    """Private records, with DP-SGD at the student's multiplier and epochs."""


@dataclass(frozen=True)
class DpPromisePlan:
    """A dp-promise training, with the sound Phase I.

    Attributes:
        records: n, how many ids there are.
        dimensions: d, numbers in an image.
        boundary: S, the first time step of Phase I, 1..T; T + 1 for no Phase I.
        phase2_batch: m2, records expected in a batch of Phase II.
        phase2_epochs: passes over the records in Phase II.
        sigma: noise multiplier of Phase II; 0 trains without privacy, for baselines.
        phase1_batch: m1; None without Phase I, or where its images are cached.
        phase1_epochs: passes in Phase I; None as for `phase1_batch`.
        cached: one noised image per record, drawn once for ever, instead of one per inclusion.
        clip: C of Phase II; it costs nothing.
        copies: K of Phase II; they cost nothing.
        time_steps: T.
        beta_first: β_1.
        beta_last: β_T.
    """

    records: int
    dimensions: int
    boundary: int
    phase2_batch: int
    phase2_epochs: float
    sigma: float
    phase1_batch: int | None = None
    phase1_epochs: float | None = None
    cached: bool = False
    clip: float = 1.0
    copies: int = 1
    time_steps: int = TIME_STEPS
    beta_first: float = BETA_FIRST
    beta_last: float = BETA_LAST

    def __post_init__(self) -> None:
        if self.dimensions < 1:
            raise ConfigError(f"Expected dimensions={self.dimensions} >= 1.")
        none = self.time_steps + 1
        if not 1 <= self.boundary <= none:
            raise ConfigError(
                f"Expected boundary={self.boundary} between 1 and {none}; {none} leaves Phase I "
                "out."
            )
        _expect_sigma(self.sigma)
        _expect_batch("phase2_batch", self.phase2_batch, self.records)
        sgd_steps(self.phase2_epochs, self.phase2_batch, self.records)
        if self.phase1_batch is not None:
            _expect_batch("phase1_batch", self.phase1_batch, self.records)
        if self.phase1_epochs is not None and not self.phase1_epochs > 0:
            raise ConfigError(f"Expected phase1_epochs={self.phase1_epochs} > 0.")
        if self.has_phase1 and not self.cached and None in (self.phase1_batch, self.phase1_epochs):
            raise ConfigError(
                f"Expected a batch and epochs for Phase I at boundary={self.boundary}; give both, "
                f"or leave Phase I out by boundary={none}."
            )

    @property
    def has_phase1(self) -> bool:
        """Whether noised images are released at all."""
        return self.boundary <= self.time_steps

    @property
    def mu(self) -> float:
        """μ_S = 2√(d ᾱ_S/(1 − ᾱ_S)) of one released image under replace; 0 without Phase I.

        Inflated by `calibrate.ROUNDING`.
        """
        if not self.has_phase1:
            return 0.0
        betas = self.beta_first, self.beta_last
        kept = diffusion_signal(self.boundary, self.time_steps, *betas)
        return 2 * math.sqrt(self.dimensions * kept / (1 - kept)) * (1 + ROUNDING)

    @property
    def phase1_steps(self) -> int:
        """Optimiser steps of Phase I; each releases images, unless these are cached."""
        if not self.has_phase1 or self.phase1_batch is None or self.phase1_epochs is None:
            return 0
        return sgd_steps(self.phase1_epochs, self.phase1_batch, self.records)

    @property
    def phase2(self) -> DpSgdPlan:
        """What Phase II trains."""
        steps = sgd_steps(self.phase2_epochs, self.phase2_batch, self.records)
        return DpSgdPlan(self.records, self.phase2_batch, steps, self.sigma, self.clip, self.copies)

    @property
    def private_steps(self) -> int:
        """Steps that give something away, over both phases."""
        return (0 if self.cached else self.phase1_steps) + self.phase2.steps

    @property
    def adjacencies(self) -> tuple[Adjacency, ...]:
        """Those that have a guarantee; the headline first."""
        fixed_size = (Adjacency.ZERO_OUT, Adjacency.REPLACE)
        return fixed_size if self.has_phase1 else (*fixed_size, Adjacency.ADD_REMOVE)

    def phase1_event(self, adjacency: Adjacency) -> Event | None:
        """What Phase I releases; None without it.

        Raises:
            UnsupportedAdjacencyError: add-remove, which changes the number of images.
        """
        if not self.has_phase1:
            return None
        if self.cached:
            once = ReleasedImages(self.mu, self.records, self.records, 1, adjacency)
            return Gaussian(once.distance)
        assert self.phase1_batch is not None
        return ReleasedImages(
            self.mu, self.records, self.phase1_batch, self.phase1_steps, adjacency
        )

    def event(self, adjacency: Adjacency) -> Event:
        """The whole training as one event.

        Raises:
            UnsupportedAdjacencyError: add-remove with Phase I.
            ConfigError: there is no noise.
        """
        _expect_noise(self.sigma)
        first, second = self.phase1_event(adjacency), self.phase2.event(adjacency)
        return second if first is None else Together((first, second))

    def release(self) -> Release:
        """The trained model, as a ledger books it."""
        costs = {adjacency: self.event(adjacency) for adjacency in self.adjacencies}
        return Release("dp-promise", 1, {Unit.RECORD: costs})

    def published(self, delta: float) -> Published:
        """Theorem 2 of the paper at these settings, fresh images in Phase I.

        Raises:
            ConfigError: delta is not inside (0, 1).
        """
        return dp_promise_theorem2(
            self.sigma,
            self.dimensions,
            min(self.boundary, self.time_steps),
            sampling_probability(self.phase1_batch or self.phase2_batch, self.records),
            sgd_steps(self.phase1_epochs, self.phase1_batch, self.records)
            if self.has_phase1 and self.phase1_batch and self.phase1_epochs
            else 0,
            sampling_probability(self.phase2_batch, self.records),
            self.phase2.steps,
            delta,
        )


@dataclass(frozen=True)
class DpSadPlan:
    """A DP-SAD distillation with per-sample clipping in parameter space.

    Attributes:
        records: n, how many ids there are.
        batch: B, records expected in a batch.
        epochs: passes over the records, of each private training.
        sigma: noise multiplier that is asked for, the same for each private training; 0 trains
            without privacy, for baselines.
        teacher: where the teacher comes from.
        discriminator: what the discriminator learns from.
        dilution: what the noise, but not the sensitivity, is divided by; T in the paper's
            Eqs. 14-17, 1 to be sound and useful.
        clip: norm bound C, which the paper's theorem takes to matter; nothing else does.
        dimensions: s, length of a clipped gradient, that of an image by Eq. 17; as for `clip`.
        copies: K; they cost nothing.
    """

    records: int
    batch: int
    epochs: float
    sigma: float
    teacher: Teacher = Teacher.PUBLIC
    discriminator: Discriminator = Discriminator.OUTPUTS
    dilution: int = 1
    clip: float = 1e-6
    dimensions: int = 784
    copies: int = 1

    def __post_init__(self) -> None:
        _expect_sigma(self.sigma)
        _expect_batch("batch", self.batch, self.records)
        sgd_steps(self.epochs, self.batch, self.records)
        if self.dilution < 1:
            raise ConfigError(f"Expected dilution={self.dilution} >= 1.")

    @property
    def adjacencies(self) -> tuple[Adjacency, ...]:
        """Those that have a guarantee; the headline first."""
        return tuple(Adjacency)

    @property
    def training(self) -> DpSgdPlan:
        """What each private training does, but for the dilution."""
        steps = sgd_steps(self.epochs, self.batch, self.records)
        return DpSgdPlan(self.records, self.batch, steps, self.sigma, self.clip, self.copies)

    @property
    def multiplier(self) -> float:
        """Noise std over the sensitivity that is really there."""
        return self.sigma / self.dilution

    @property
    def trainings(self) -> int:
        """How many models are trained on private records."""
        return 1 + (self.teacher is Teacher.DP) + (self.discriminator is Discriminator.DP)

    @property
    def steps(self) -> int:
        """Private steps, over all trainings."""
        return self.trainings * self.training.steps

    def event(self, adjacency: Adjacency) -> Event:
        """All trainings as one event: their steps follow each other at one multiplier.

        Raises:
            ConfigError: there is no noise.
        """
        _expect_noise(self.sigma)
        one = replace(self.training, noise_multiplier=self.multiplier)
        return replace(one, steps=self.steps).event(adjacency)

    def release(self) -> Release:
        """The trained models, as a ledger books them."""
        costs = {adjacency: self.event(adjacency) for adjacency in self.adjacencies}
        return Release("dp-sad", 1, {Unit.RECORD: costs})

    def published(self, delta: float) -> Published:
        """Theorem 4 of the paper at these settings; it knows of one training only.

        Raises:
            ConfigError: clip or dimensions is not positive, or delta is not inside (0, 1).
        """
        steps = self.training.steps
        return dp_sad_theorem4(self.sigma, self.clip, self.dimensions, self.batch, steps, delta)


def _expect_batch(name: str, batch: int, records: int) -> None:
    if records < 1:
        raise ConfigError(f"Expected records={records} >= 1.")
    if not 1 <= batch <= records:
        raise ConfigError(f"Expected 1 <= {name}={batch} <= {records} records; change it.")


def _expect_sigma(sigma: float) -> None:
    if not (sigma >= 0 and math.isfinite(sigma)):
        raise ConfigError(f"Expected sigma={sigma} >= 0 and finite.")


def _expect_noise(sigma: float) -> None:
    if sigma == 0:
        raise ConfigError(f"Expected sigma={sigma} > 0: a training without noise has no guarantee.")
