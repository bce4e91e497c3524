"""What a run will ask and what that costs: fixed from public facts, before anything is spent.

One machine is a federation of one holder. Noise is calibrated on the mean over holders of their
shard-averaged rows, for the smallest shard count among them: who has more shards is protected
better. See the privacy law, section 4.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedtranscribe.config import StudentSettings
from fedtranscribe.errors import ConfigError, HopelessPlanError
from fedtranscribe.noise.bounds import Bound
from fedtranscribe.noise.masked import Grid, MaskedShare
from fedtranscribe.noise.mechanisms import Mechanism, gaussian_mechanism, label_mechanism
from fedtranscribe.privacy.accountant import guarantee
from fedtranscribe.privacy.forecasts import Forecast
from fedtranscribe.privacy.published import Published
from fedtranscribe.privacy.release_plan import (
    MechanismRelease,
    NoisePlan,
    PrivacyPlan,
    expect_tolerable,
)
from fedtranscribe.privacy.units import Adjacency, Guarantee, NoiseMode, RowAnswer, Unit
from fedtranscribe.questions.capabilities import Capabilities
from fedtranscribe.questions.descent import gradients_bound
from fedtranscribe.questions.kinds import QUERIES, question_of
from fedtranscribe.questions.mixture import mixture_bound
from fedtranscribe.questions.moments import moments_bound
from fedtranscribe.questions.question import Kind, is_sum
from fedtranscribe.questions.rows import mean_rows_bound

if TYPE_CHECKING:
    from fedtranscribe.noise.mask_keys import Members

# In label mode a class that all M teachers name has log odds η·M; of synthetic images about half
# of them agree.
AGREEMENT = 0.5
MOST_NATS = math.log(1e6)
"""No label is taken for more certain than that."""

_TRUST = {
    NoiseMode.LOCAL: "nobody: each holder's answers are private by themselves",
    NoiseMode.CENTRAL: "the server: it sees raw answers and adds the noise",
}

Charged = Mapping[str, Sequence[int]]
"""Rows by holder and part of the plan."""


KINDS = {"data": Kind.GRADIENT, "label": Kind.LABEL, "vote": Kind.VOTE}
"""What is asked for, by the setting `privacy`."""


@dataclass(frozen=True)
class Asked:
    """The settings of a run, and what follows from them.

    Attributes:
        settings: of the run.
        kind: what is asked for; of teachers, where there is a start.
        mode: who adds the noise.
        dropouts: that a masked sum is to bear; None: what all holders bear.
        by_formula: whether the noise is the published formula's, which is no guarantee.
        start: whether sums over the records are asked first.
        left: of the budget, in μ² (under masks ρ), what questions of other packages leave.
    """

    settings: StudentSettings
    kind: Kind
    mode: NoiseMode = NoiseMode.LOCAL
    dropouts: int | None = None
    by_formula: bool = False
    start: bool = False
    left: float = 1.0

    def failures(self, roster: Mapping[str, Capabilities]) -> tuple[int, int]:
        """How many holders a masked sum may miss, and how many may side with the server.

        Every holder's own policy is kept: as many colluders as the most careful one counts on, and
        no more drop-outs than the strictest one bears.

        Raises:
            ConfigError: more drop-outs are asked for than that, or too many for so few holders.
        """
        colluders = max(facts.colluders for facts in roster.values())
        strictest = min(roster.values(), key=lambda facts: facts.dropouts)
        most = min(strictest.dropouts, max(0, (len(roster) - colluders - 1) // 2))
        wanted = most if self.dropouts is None else self.dropouts
        if wanted > strictest.dropouts:
            raise ConfigError(
                f"Expected dropouts={wanted} <= {strictest.dropouts}, the limit of holder "
                f"{strictest.name}; ask for fewer."
            )
        expect_tolerable(len(roster), wanted, colluders)
        return wanted, colluders


@dataclass(frozen=True)
class Part:
    """Rows of one kind under one noise.

    Attributes:
        kind: what is asked for.
        rows: how many in all.
        noise: under which every query of this part goes out.
        width: numbers in an answer's row; for sums, features with the constant.
        classes: of the sums by class, for moments; None leaves them out. Of a gradient, its
            columns. For a mixture, blocks of products; None asks for energies.
    """

    kind: str
    rows: int
    noise: NoisePlan
    width: int
    classes: int | None = None

    def mechanism(self, holder: Capabilities) -> Mechanism:
        """What one holder's answers pass through."""
        if self.kind is Kind.LABEL:
            return label_mechanism(holder.shards, self.width, self.noise)
        return gaussian_mechanism(self.bound(holder), self.noise)

    def bound(self, holder: Capabilities) -> Bound:
        """Of one holder's vectors; labels have none."""
        if self.kind is Kind.MOMENTS:
            return moments_bound(self.width, self.classes)
        if self.kind in (Kind.MIXTURE, Kind.CLASS_MOMENTS):
            return mixture_bound(self.width, self.classes)
        if self.outside:
            return question_of(self.kind).bound(holder)
        if self.kind is Kind.DESCENT:
            assert self.classes is not None  # a gradient has one column per class
            return gradients_bound(self.width, self.classes)
        return mean_rows_bound(holder.shards, RowAnswer(self.kind), self.width)

    def grid(self, holder: Capabilities) -> Grid:
        """Where the values of a masked sum lie, the same for every holder.

        Raises:
            ConfigError: answers of this part are not masked.
        """
        mechanism = self.mechanism(holder)
        if not isinstance(mechanism, MaskedShare):
            raise ConfigError(f"Expected noise mode secagg, got {self.noise.mode}.")
        return mechanism.grid

    def release(self, holder: Capabilities, rows: int) -> MechanismRelease:
        """What so many answered rows give away about one holder's data."""
        return self.mechanism(holder).release(rows, positional_ids=holder.positional_ids)

    @property
    def outside(self) -> bool:
        """Whether another package brings the kind: asked when the method has all its answers."""
        return self.kind not in QUERIES

    @property
    def averaged(self) -> bool:
        """Whether holders' answers are averaged; sums and labels add up."""
        return self.kind in (Kind.VOTE, Kind.GRADIENT)

    def combined_std(self, answers: int) -> float:
        """Std of the noise per coordinate on the mean, or the sum, of so many holders' answers."""
        s, m = self.noise.strength, self.noise.holders
        if self.noise.mode is NoiseMode.CENTRAL:
            total = m * s
        elif self.noise.mode is NoiseMode.SECAGG:
            total = m * s * math.sqrt(answers / (m - self.noise.tolerated))
        else:
            total = s * math.sqrt(m * answers)
        return total / answers if self.averaged else total


@dataclass(frozen=True)
class Plan:
    """Everything that decides the guarantee of a run.

    Attributes:
        parts: what is asked, in this order.
        roster: the holders that take part, by name; fixed for the run.
        delta: at which ε is quoted.
        forecast: what can be learned at all.
        published: the paper's own figure for the same noise; None where no paper has one.
        words: how the budget was shared out, and why; empty where there was nothing to share.
        before: what the student had cost its holder before the first query.
        mixture_share: of the whole budget, in μ² (under masks ρ), what a mixture gets.
        products: of how many features the student has all products, too; see `unit_rows_of`.
        shows_nothing: whether noise would hide what classes look like, so that no generator is made
            unless teachers are asked about its images.
    """

    parts: tuple[Part, ...]
    roster: Mapping[str, Capabilities]
    delta: float
    forecast: Forecast
    published: Published | None
    words: str = ""
    before: tuple[MechanismRelease, ...] = field(default=())
    mixture_share: float = 0.0
    products: int = 0
    shows_nothing: bool = False

    @property
    def starts(self) -> bool:
        """Whether sums over the records are asked, before anything else."""
        return self.parts[0].kind is Kind.MOMENTS

    @property
    def of_method(self) -> tuple[Part, ...]:
        """What student and generator are made from."""
        return tuple(part for part in self.parts if not part.outside)

    @property
    def teachers(self) -> Part | None:
        """What teachers are asked; None where they are not."""
        last = self.of_method[-1]
        return None if is_sum(last.kind) else last

    @property
    def rows(self) -> int:
        """How many in all."""
        return sum(part.rows for part in self.parts)

    @property
    def sets_student(self) -> Part:
        """What the student is set by: teachers' answers, or else the last sum for it."""
        for_generator = (Kind.MIXTURE, Kind.CLASS_MOMENTS)
        return [part for part in self.of_method if part.kind not in for_generator][-1]

    @property
    def mixture(self) -> tuple[Part, ...]:
        """What a generator is made from; empty where none is asked for."""
        return tuple(part for part in self.parts if part.kind is Kind.MIXTURE)

    @property
    def sharpened(self) -> bool:
        """Whether class moments are asked, to which the mixture's images are sharpened."""
        return any(part.kind is Kind.CLASS_MOMENTS for part in self.parts)

    @property
    def descent(self) -> tuple[Part, ...]:
        """Rounds of gradients from the student that the moments set; empty where none are asked."""
        return tuple(part for part in self.parts if part.kind is Kind.DESCENT)

    @property
    def noise(self) -> NoisePlan:
        """Of the part that the student is set by; all parts have one mode."""
        return self.sets_student.noise

    @property
    def facts(self) -> Capabilities:
        """What all holders have in common: classes, channels, size."""
        return next(iter(self.roster.values()))

    @property
    def noise_std(self) -> float | None:
        """Std per coordinate, as results tell it; labels have none."""
        return None if self.sets_student.kind is Kind.LABEL else self.noise.strength

    @property
    def sums_stds(self) -> tuple[float, ...]:
        """As `noise_std`, of every sum over records that student and generator are made from."""
        return tuple(part.noise.strength for part in self.of_method if is_sum(part.kind))

    def releases(
        self, holder: str, rows: Sequence[int] | None = None
    ) -> tuple[MechanismRelease, ...]:
        """What answered rows give away about one holder's data.

        Args:
            holder: its name.
            rows: by part; all of the plan's if not given.
        """
        counts = [part.rows for part in self.parts] if rows is None else rows
        facts = self.roster[holder]
        return tuple(
            part.release(facts, count)
            for part, count in zip(self.parts, counts, strict=True)
            if count
        )

    def guarantee(self, charged: Charged, unit: Unit, adjacency: Adjacency) -> Guarantee | None:
        """The weakest of the holders' guarantees; None where one has none.

        One record or holder is touched by its own holder's answers only, so the figures of
        several holders do not add up.
        """
        stated = []
        for holder, rows in charged.items():
            releases = self.releases(holder, rows)
            if not releases:
                continue
            releases = (*self.before, *releases)
            if any(adjacency not in release.costs.get(unit, {}) for release in releases):
                return None
            stated.append(guarantee(PrivacyPlan(releases, unit, adjacency, self.delta)))
        return max(stated, key=lambda g: g.epsilon, default=None)

    def outline(self) -> list[list[Any]]:
        """What every answer costs, as a checkpoint keeps it: a resumed run has the same."""
        return [
            [str(part.kind), part.rows, part.width, part.classes, part.noise.words]
            for part in self.parts
        ]

    def refuse_if_hopeless(self, *, force: bool, insist: str) -> None:
        """Stop before any holder spends anything.

        Args:
            force: whether somebody insists.
            insist: what to type for that.

        Raises:
            HopelessPlanError: nothing can be learned, and nobody insists.
        """
        if self.forecast.hopeless and not force:
            raise HopelessPlanError(f"{self.forecast.words} {insist} to spend the budget anyway.")

    @property
    def trust(self) -> str:
        """Whom the holders have to trust, in words."""
        if self.noise.mode is NoiseMode.SECAGG:
            members = self.members
            missing = self.noise.dropouts - members.graph.spare
            return (
                f"no server: answers are summed under masks, of which up to {missing} "
                f"holders may be missing while {self.noise.colluders} tell the server all they "
                f"know; {members.graph.words}"
            )
        return _TRUST[self.noise.mode]

    @property
    def members(self) -> "Members":
        """Who takes part in masked sums.

        Raises:
            ConfigError: too many failures for so few holders.
        """
        # Of an extra that one machine does without.
        from fedtranscribe.noise.mask_keys import Members

        return Members(tuple(sorted(self.roster)), self.noise.dropouts, self.noise.colluders)

    def strength(self, part: int, answers: int) -> float:
        """What a method has to know of the noise in a combined answer.

        Returns:
            Std per coordinate; for labels, nats that one of them is worth.
        """
        asked = self.parts[part]
        if asked.kind is not Kind.LABEL:
            return asked.combined_std(answers)
        shards = min(facts.shards for facts in self.roster.values())
        return label_nats(asked.noise.strength, shards)


def label_nats(strength: float, shards: int) -> float:
    """Nats that a label of one teacher, or of an ensemble's votes, is worth."""
    return min(strength if shards == 1 else strength * shards * AGREEMENT, MOST_NATS)
