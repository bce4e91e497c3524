"""What one training by DP-SGD does: one plan for sampling, clipping, noise and accounting.

The four are kept in one value, so that they cannot drift apart: `trainers/private_steps.py` trains
from it, and the ledger books its `event`.
"""

import math
from dataclasses import dataclass

from fedtranscribe.errors import ConfigError, PrivacyError
from fedtranscribe.privacy.events import PoissonGaussian
from fedtranscribe.privacy.units import Adjacency


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
