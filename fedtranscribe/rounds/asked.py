"""What a plan is made from, besides the facts that holders state."""

from collections.abc import Mapping
from dataclasses import dataclass

from fedtranscribe.capabilities import Capabilities
from fedtranscribe.config import StudentSettings
from fedtranscribe.errors import ConfigError
from fedtranscribe.privacy.noise_plan import expect_tolerable
from fedtranscribe.privacy.units import NoiseMode
from fedtranscribe.query import Kind

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
    """

    settings: StudentSettings
    kind: Kind
    mode: NoiseMode = NoiseMode.LOCAL
    dropouts: int | None = None
    by_formula: bool = False
    start: bool = False

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
