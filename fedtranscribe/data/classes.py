"""Which classes a data set has: public facts, stated by the person who gives the data.

Guarantee: nothing here counts labels, so neither the number of classes nor their names depend on a
private record. A class may be empty.
"""

from dataclasses import dataclass

from torch import Tensor

from fedtranscribe.config import LONGEST_NAME, MOST_CLASSES, OwnData, is_name
from fedtranscribe.errors import ConfigError, InvalidDataError


@dataclass(frozen=True)
class Classes:
    """How many classes there are, and what they are called.

    Raises:
        InvalidDataError: fewer than 2, too many, or names that do not fit.
    """

    count: int
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Bound what networks and cards are built from."""
        if not 2 <= self.count <= MOST_CLASSES:
            raise InvalidDataError(f"Expected 2 <= classes={self.count} <= {MOST_CLASSES}.")
        if self.names is None:
            return
        if len(self.names) != self.count or len(set(self.names)) != self.count:
            raise InvalidDataError(f"Expected a different name for each of {self.count} classes.")
        wrong = next((name for name in self.names if not is_name(name)), None)
        if wrong is not None:
            raise InvalidDataError(
                f"Expected the class name {wrong[:80]!r} to have 1 to {LONGEST_NAME} printable "
                "characters; rename the class."
            )


def settled(known: Classes | None, own: OwnData, where: str) -> Classes | None:
    """What a set and the settings say together; None where neither says anything.

    Args:
        known: what the set itself states.
        own: the settings.
        where: the set, for messages.

    Raises:
        ConfigError: they contradict each other.
    """
    if own.classes is None:
        return known
    if isinstance(own.classes, int):
        said = Classes(own.classes)
    else:
        said = Classes(len(own.classes), own.classes)
    if known is None:
        return said
    if said.count != known.count:
        raise ConfigError(
            f"Expected classes={said.count} to be the {known.count} classes that {where!r} states; "
            "leave --classes out, or correct it."
        )
    if said.names and known.names and said.names != known.names:
        raise ConfigError(
            f"Expected --classes to be the class names that {where!r} states; leave it out."
        )
    return known if said.names is None else said


def below(labels: Tensor, classes: Classes, where: str) -> Tensor:
    """The labels, int64 [n], if each of them is a class; does not say which one is not.

    Raises:
        InvalidDataError: one is not in [0, classes).
    """
    if bool(((labels < 0) | (labels >= classes.count)).any()):
        raise InvalidDataError(
            f"Expected {where} within 0..{classes.count - 1}, since classes={classes.count}, and a "
            "label is not; correct the labels, or state another number: --classes, or the key "
            "'classes'."
        )
    return labels
