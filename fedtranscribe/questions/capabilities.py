"""What a holder states to a server before any query, and why it does not answer one."""

from dataclasses import dataclass

from fedtranscribe.config.facts import Facts
from fedtranscribe.privacy.units import NoiseMode
from fedtranscribe.text import expect_name


@dataclass(frozen=True, kw_only=True)
class Capabilities(Facts):
    """What a holder states about itself: those facts and its policy, never an accuracy.

    Attributes:
        name: how the server calls the holder in logs and files.
        kinds: what it answers.
        noise: the least protective mode it accepts.
        rows_per_message, rows_per_run: its limits.
        dropouts, colluders: its terms for masked sums.
        masks: whether it has a key and a roster for them.
        trainers: private trainings that it carries out, by method.
    """

    name: str
    kinds: tuple[str, ...]
    noise: NoiseMode
    rows_per_message: int
    rows_per_run: int
    dropouts: int = 0
    colluders: int = 0
    masks: bool = False
    trainers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what no holder can be; a server reads these off the wire.

        Raises:
            ConfigError, ValueError: names the value.
        """
        super().__post_init__()
        for name in (self.name, *self.trainers):
            expect_name("name", name)
