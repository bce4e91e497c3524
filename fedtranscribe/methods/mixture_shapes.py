"""What a mixture's questions look like before one is asked, and how finely a class is cut."""

from collections.abc import Callable
from dataclasses import dataclass

from fedtranscribe.mechanisms.blocks import triangle_length
from fedtranscribe.models.frequencies import frequency_count
from fedtranscribe.query import MOST_NUMBERS

FREQUENCIES = 200
"""The lowest ones, among which axes are looked for."""
AXES = 40
# A component is cut in two where either half still stands so many times above the noise.
_WORTH_A_CUT = 100.0
_MOST_CUTS = 3


@dataclass(frozen=True)
class QuestionShape:
    """What a plan has to know of a question before it is asked.

    Attributes:
        share: of the mixture's budget, in μ².
        width: numbers in a mapped record, with the constant.
        blocks: of products; None asks for squares.
    """

    share: float
    width: int
    blocks: int | None


Shapes = tuple[QuestionShape, ...]


def question_shapes(channels: int, size: int, classes: int, cuts: int) -> Shapes:
    """Axes, classes, components where there are any, texture: all that `MixtureMethod` will ask."""
    d = frequency_count(channels, size)
    looked_at = min(FREQUENCIES, d)
    wide = min(AXES, looked_at) + 1
    shares = (0.2, 0.15, 0.6, 0.05) if cuts else (0.25, 0.7, 0.05)
    blocks = (classes, classes * 2**cuts) if cuts else (classes,)
    shapes = ((looked_at + 1, 1), *((wide, count) for count in blocks), (d, None))
    return tuple(QuestionShape(s, *shape) for s, shape in zip(shares, shapes, strict=True))


def fits(channels: int, size: int, classes: int, cuts: int = 0) -> bool:
    """Whether every answer of such a mixture is short enough to be asked for."""
    shapes = question_shapes(channels, size, classes, cuts)
    return all((s.blocks or 0) * triangle_length(s.width) <= MOST_NUMBERS for s in shapes)


def picked_cuts(
    channels: int, size: int, classes: int, stands: Callable[[QuestionShape], float]
) -> int:
    """How often each class is cut: as often as its parts stand well above the noise.

    Args:
        channels: of the images.
        size: of the images, in pixels.
        classes: of the task.
        stands: how many times a block of usual size stands above the noise of a question; 0 where
            nobody says how many records there are.
    """
    for cuts in range(_MOST_CUTS, 0, -1):
        if fits(channels, size, classes, cuts):
            last = question_shapes(channels, size, classes, cuts)[-2]
            if stands(last) >= _WORTH_A_CUT:
                return cuts
    return 0
