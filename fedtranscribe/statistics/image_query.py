"""What all statistics of teachers share: the queries about images that fit them."""

from collections.abc import Mapping

from fedtranscribe.errors import ConfigError, ModelMismatchError
from fedtranscribe.query import ImageQuery, Scalar
from fedtranscribe.teachers import Teachers


class OfTeachers:
    """A statistic of teachers that are asked about images; see `Statistic`.

    Args:
        teachers: an ensemble on disjoint shards of the holder's records.
    """

    def __init__(self, teachers: Teachers) -> None:
        self._teachers = teachers

    def expect(self, shapes: Mapping[str, tuple[int, ...]], terms: Mapping[str, Scalar]) -> int:
        """See `Statistic`."""
        return expect_shapes(shapes, self._teachers)

    def check(self, query: ImageQuery) -> None:
        """See `Statistic`."""
        expect_fitting(query, self._teachers)


def expect_fitting(query: ImageQuery, teachers: Teachers) -> None:
    """Refuse images of another shape, and classes that the teachers do not have.

    Raises:
        ModelMismatchError: names what was expected.
    """
    facts = teachers.facts
    expected = (facts.channels, facts.size, facts.size)
    if tuple(query.images.shape[1:]) != expected:
        raise ModelMismatchError(
            f"Expected query images of shape {expected}, got {tuple(query.images.shape[1:])}."
        )
    logits = query.student_logits
    classes = facts.classes if logits is None else logits.shape[1]
    if int(query.index_sets.max()) >= facts.classes or classes != facts.classes:
        raise ModelMismatchError(f"Expected queries over {facts.classes} classes.")


def expect_shapes(shapes: Mapping[str, tuple[int, ...]], teachers: Teachers) -> int:
    """Refuse arrays that no query to these teachers can have; how many rows are asked.

    Raises:
        ConfigError, KeyError, ValueError: a shape that the teachers cannot answer.
    """
    facts = teachers.facts
    rows, *_ = shapes["images"] or (0,)
    _, k = shapes["index_sets"]
    if rows < 1 or not 1 <= k <= facts.classes:
        raise ConfigError(f"Expected rows={rows} >= 1 and k={k} from 1 to {facts.classes}.")
    expected = {
        "images": (rows, facts.channels, facts.size, facts.size),
        "index_sets": (rows, k),
        "student_logits": (rows, facts.classes),
    }
    for name, shape in shapes.items():
        if shape != expected[name]:
            raise ConfigError(f"Expected {name} {expected[name]}, got {shape}.")
    return rows
