"""Under which noise a query is answered: agreed on in public, before anything is computed."""

from dataclasses import dataclass

from fedtranscribe.errors import ConfigError
from fedtranscribe.privacy.units import NoiseMode

_STRENGTHS = (1e-9, 1e9)
_MOST_HOLDERS = 100_000


@dataclass(frozen=True)
class NoisePlan:
    """How the answers to a query become private; the holder binds it to the query for ever.

    Attributes:
        mode: who adds the noise.
        strength: s, the noise std per coordinate on the mean over holders; for labels ε0 (one
            teacher) or η (votes of an ensemble).
        holders: m, how many holders the noise is planned for.
        dropouts, colluders: under `secagg`, d of them may be missing from a sum and c may reveal
            the server all they know; m > 2d + c.
    """

    mode: NoiseMode
    strength: float
    holders: int
    dropouts: int = 0
    colluders: int = 0

    def __post_init__(self) -> None:
        """Refuse noise that is none, that no float could add, and a federation of nobody."""
        least, most = _STRENGTHS
        if not least <= self.strength <= most:
            raise ConfigError(
                f"Expected a noise strength={self.strength} between {least:g} and {most:g}."
            )
        # Beyond these limits the cost of an answer could underflow to nothing.
        if not 1 <= self.holders <= _MOST_HOLDERS:
            raise ConfigError(f"Expected holders={self.holders} between 1 and {_MOST_HOLDERS}.")
        if self.mode is NoiseMode.SECAGG:
            expect_tolerable(self.holders, self.dropouts, self.colluders)
        elif self.dropouts or self.colluders:
            raise ConfigError(f"Expected no dropouts or colluders under noise mode {self.mode}.")

    @property
    def tolerated(self) -> int:
        """t = d + c, how many holders' shares of the noise are not counted on."""
        return self.dropouts + self.colluders

    @property
    def words(self) -> str:
        """One canonical line; two plans agree if and only if their lines do."""
        line = f"{self.mode.value} {self.strength.hex()} {self.holders}"
        if self.mode is NoiseMode.SECAGG:
            return f"{line} {self.dropouts} {self.colluders}"
        return line


def expect_tolerable(holders: int, dropouts: int, colluders: int) -> None:
    """Refuse more failures than a masked sum of so many holders can bear.

    Raises:
        ConfigError: m > 2d + c does not hold; see `secagg.keys.Cohort` for why it must.
    """
    if dropouts < 0 or colluders < 0 or holders <= 2 * dropouts + colluders or holders < 2:
        raise ConfigError(
            f"Expected more than {max(1, 2 * dropouts + colluders)} holders for "
            f"dropouts={dropouts} >= 0 and colluders={colluders} >= 0, got {holders}; "
            "tolerate fewer."
        )
