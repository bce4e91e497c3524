"""What one data holder allows, whatever a server asks: default deny.

The holder writes it, its node enforces it, and nothing that a server sends can change it.
"""

from collections.abc import Collection
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from fedtranscribe.config import Settings
from fedtranscribe.config.facts import Facts
from fedtranscribe.errors import BudgetExhaustedError
from fedtranscribe.privacy.budget import Budget
from fedtranscribe.privacy.release_plan import NoisePlan
from fedtranscribe.privacy.units import Adjacency, NoiseMode, Unit
from fedtranscribe.questions.capabilities import Capabilities
from fedtranscribe.questions.kinds import registered
from fedtranscribe.questions.question import Kind, Query, is_sum
from fedtranscribe.questions.refusals import Refusal, RefusalCode

Trainer = Literal["dp-promise", "dp-sad"]


def _known(kind: str) -> str:
    if kind not in (*Kind, *registered()):
        known = ", ".join([*Kind, *sorted(registered())])
        raise ValueError(f"expected kinds out of {known}")
    return kind


class HolderPolicy(Settings):
    """Limits of one holder; each is public and may be sent to the server.

    `noise` is the trust that the holder grants: under `local` every answer is private by itself
    and a server that asks for raw answers is refused; under `secagg` answers are masked, and
    private once they are summed with those of others, of whom `colluders` may side with the
    server; under `central` raw answers go to a server that is trusted to add the noise. A server
    may always ask for more protection than that.

    `rows_per_run` counts by the run's name, which the server chooses; what limits all runs together
    is `epsilon`. An answer under very much noise costs next to nothing of it, so quotas limit what
    is stored: `runs`, `queries_per_run` and `stored_bytes`. What is booked already goes on.
    """

    epsilon: float = Field(
        gt=0, allow_inf_nan=False, description="most that all runs on the holder's data may cost"
    )
    delta: float = Field(default=1e-5, gt=0, lt=1)
    unit: Unit = Unit.RECORD
    kinds: tuple[Annotated[str, AfterValidator(_known)], ...] = tuple(Kind)
    trainers: tuple[Trainer, ...] = Field(
        default=(), description="private trainings on the records themselves"
    )
    noise: NoiseMode = NoiseMode.LOCAL
    dropouts: int = Field(
        default=0, ge=0, description="secagg: most holders that may be missing from a sum"
    )
    colluders: int = Field(
        default=1, ge=0, description="secagg: holders that may collude with the server"
    )
    rows_per_message: int = Field(default=10_000, gt=0)
    rows_per_run: int = Field(default=1_000_000, gt=0)
    bytes_per_message: int = Field(
        default=64_000_000, ge=100_000, description="longest message that is read"
    )
    queries_per_run: int = Field(default=10_000, gt=0)
    runs: int = Field(default=10_000, gt=0, description="runs that are booked or have keys")
    stored_bytes: int = Field(
        default=10_000_000_000,
        gt=0,
        description="ledger, rounds of masked sums and trainings on disk, all runs together",
    )
    training_seconds: float = Field(
        default=120.0, gt=0, description="longest slice of a training; other questions wait"
    )

    @property
    def answered(self) -> tuple[str, ...]:
        """The kinds that the unit leaves: a sum over records hides no whole holder."""
        return tuple(k for k in self.kinds if not is_sum(k) or self.unit == Unit.RECORD)

    @property
    def trainings(self) -> tuple[Trainer, ...]:
        """The private trainings that the unit leaves: their cost is per record."""
        return self.trainers if self.unit is Unit.RECORD else ()

    @property
    def budget(self) -> Budget:
        """The limit as the ledger keeps it."""
        return Budget(self.epsilon, self.delta, self.unit, Adjacency.ZERO_OUT)

    def capabilities(
        self, name: str, facts: Facts, kinds: Collection[str], *, masks: bool, trains: bool
    ) -> Capabilities:
        """What a holder under this policy states to a server.

        Args:
            name: of the holder.
            facts: what is public about its private side.
            kinds: that it can answer.
            masks: whether it has a key and a roster for masked sums.
            trains: whether it can carry out private trainings.
        """
        return Capabilities(
            name=name,
            **vars(facts),
            kinds=tuple(kind for kind in self.answered if kind in kinds),
            noise=self.noise,
            rows_per_message=self.rows_per_message,
            rows_per_run=self.rows_per_run,
            dropouts=self.dropouts,
            colluders=self.colluders,
            masks=masks,
            trainers=self.trainings if trains else (),
        )

    def check(self, query: Query, plan: NoisePlan, rows_before: int) -> None:
        """Refuse what is not allowed; looks at public values only.

        Args:
            query: what is asked.
            plan: under which noise.
            rows_before: rows that this run has been charged for already, this query excluded.

        Raises:
            Refusal: POLICY.
        """
        allowed = (
            query.kind in self.answered
            and self._trusts(query.kind, plan)
            and query.rows <= self.rows_per_message
            and rows_before + query.rows <= self.rows_per_run
        )
        if not allowed:
            raise Refusal(RefusalCode.POLICY)

    def check_usage(self, runs: int, queries: int, size: int) -> None:
        """Refuse what would make the holder store more than it is willing to.

        Args:
            runs: that would be known.
            queries: that the run would have.
            size: bytes that would be stored.

        Raises:
            Refusal: QUOTA.
        """
        if runs > self.runs or queries > self.queries_per_run or size > self.stored_bytes:
            raise Refusal(RefusalCode.QUOTA)

    def check_method(self, method: object) -> None:
        """Refuse a training that the holder does not carry out.

        Raises:
            Refusal: POLICY.
        """
        if method not in self.trainings:
            raise Refusal(RefusalCode.POLICY)

    def check_cost(self, epsilon: float, delta: float) -> None:
        """Refuse a training that could never be booked, before its noise is looked for.

        Raises:
            BudgetExhaustedError: it would cost more than all runs together may.
            Refusal: POLICY for a bound that fails more often than the holder's.
        """
        if epsilon > self.epsilon:
            raise BudgetExhaustedError(
                f"Expected a training of epsilon={epsilon:g} <= {self.epsilon:g}, the policy's "
                "limit for all runs together."
            )
        if delta > self.delta:
            raise Refusal(RefusalCode.POLICY)

    def check_cohort(self, dropouts: int, colluders: int) -> None:
        """Refuse a masked sum with more failures than this holder bears, or less noise.

        Raises:
            Refusal: POLICY.
        """
        if not self._trusts_cohort(dropouts, colluders):
            raise Refusal(RefusalCode.POLICY)

    def _trusts(self, kind: str, plan: NoisePlan) -> bool:
        if plan.mode is NoiseMode.LOCAL:
            return True
        if kind is Kind.LABEL:
            # A label is private by itself or not at all: there is no noise to add to it later.
            return False
        if plan.mode is NoiseMode.SECAGG:
            return self._trusts_cohort(plan.dropouts, plan.colluders)
        return self.noise is NoiseMode.CENTRAL

    def _trusts_cohort(self, dropouts: int, colluders: int) -> bool:
        masked = self.noise is not NoiseMode.LOCAL
        return masked and dropouts <= self.dropouts and colluders >= self.colluders
