"""What a private training costs: DP-SGD, dp-promise and DP-SAD."""

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from fedtranscribe.errors import ConfigError, PrivacyError
from fedtranscribe.privacy.calibrate import ROUNDING
from fedtranscribe.privacy.events import Event, Gaussian, PoissonGaussian, Together
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
from fedtranscribe.privacy.release_plan import MechanismRelease
from fedtranscribe.privacy.released_images import ReleasedImages
from fedtranscribe.privacy.units import Adjacency, Unit


@dataclass(frozen=True)
class DpSgdPlan:
    """The public settings of a training by DP-SGD.

    Attributes:
        records: n, public: how many ids there are. Images that share an id are one record.
        batch: m, the EXPECTED number of records in a step.
        steps: logical steps in all.
        noise_multiplier: σ, std of the noise on a step's sum over `clip`; 0 trains without
            privacy, for baselines.
        clip: C, the largest l2 norm of one record's gradient over all trainable parameters.
        multiplicity: K, copies of a record (other noise, another view) whose gradients are
            averaged BEFORE clipping; it costs time and no privacy.

    Guarantee:
        Unit: record, with all of its copies. Nothing is booked for unit holder: its records move
        the sum all at once, each by as much as one does here.
        Sensitivity of a step's sum of clipped gradients: C when a record is nulled, added or
        removed (its term is a vector of norm at most C, or zero), 2C when it is replaced.
        Sampling: each record has a coin of its own, of probability q = m/n, tossed anew for each
        step and kept secret (`PoissonBatches`). No coin, and no other record's term, depends on
        whether another record is there: what is drawn at random for a record comes from a stream
        of its own (`OwnDraws`), never from its place in the batch. So add-remove holds with
        positional ids as well. n, m and the number of steps are public by decision and held
        fixed: a record that comes or goes does not change them.
        Noise: N(0, (σC)²) on each coordinate of the sum. Dividing by m, which is public, and
        whatever the optimiser does next is post-processing. (Dividing by |I| would not be:
        the scale of the noise would reveal |I|.)
        A step is then the Poisson-sampled Gaussian of `PoissonGaussian`, where the pairs of
        the three adjacencies are; under replace it is (1−q)N(0,σ²) + qN(±1,σ²), which is neither
        add-remove at σ/2 nor twice add-remove.
    """

    records: int
    batch: int
    steps: int
    noise_multiplier: float
    clip: float
    multiplicity: int = 1

    def __post_init__(self) -> None:
        """Refuse what cannot be run."""
        for name in ("records", "batch", "steps", "multiplicity"):
            if getattr(self, name) < 1:
                raise ConfigError(f"Expected {name}={getattr(self, name)} >= 1.")
        if self.batch > self.records:
            raise ConfigError(f"Expected batch={self.batch} <= {self.records} records; lower it.")
        if not (self.noise_multiplier >= 0 and math.isfinite(self.noise_multiplier)):
            raise ConfigError(f"Expected noise_multiplier={self.noise_multiplier} >= 0 and finite.")
        if not (self.clip > 0 and math.isfinite(self.clip)):
            raise ConfigError(f"Expected clip={self.clip} > 0 and finite.")

    @property
    def sampling_probability(self) -> float:
        """q, the chance of each record to take part in a step."""
        return self.batch / self.records

    @property
    def noise_std(self) -> float:
        """Std of the noise on each coordinate of a step's SUM, σC."""
        return self.noise_multiplier * self.clip

    def event(self, adjacency: Adjacency) -> PoissonGaussian:
        """What all steps give away about one record.

        Raises:
            PrivacyError: a plan without noise gives no guarantee.
        """
        if self.noise_multiplier == 0:
            raise PrivacyError(
                "Expected noise_multiplier=0 > 0: training without noise gives no guarantee; "
                "raise it, or keep the run as a baseline that is not private."
            )
        q, sigma = self.sampling_probability, self.noise_multiplier
        return PoissonGaussian(q, sigma, self.steps, adjacency)


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
        signal = diffusion_signal(self.boundary, self.time_steps, *betas)
        return 2 * math.sqrt(self.dimensions * signal / (1 - signal)) * (1 + ROUNDING)

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

    def release(self) -> MechanismRelease:
        """The trained model, as a ledger books it."""
        costs = {adjacency: self.event(adjacency) for adjacency in self.adjacencies}
        return MechanismRelease("dp-promise", 1, {Unit.RECORD: costs})

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

    def release(self) -> MechanismRelease:
        """The trained models, as a ledger books them."""
        costs = {adjacency: self.event(adjacency) for adjacency in self.adjacencies}
        return MechanismRelease("dp-sad", 1, {Unit.RECORD: costs})

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
