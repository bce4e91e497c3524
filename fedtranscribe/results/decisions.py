"""What a student takes for what on held-out images, and what follows from it."""

from collections.abc import Sequence
from typing import Annotated, Self

from fedtranscribe.results.allowed import Why
from fedtranscribe.results.parts import ResultPart


class Confusion(ResultPart):
    """What a student takes for what on a benchmark's public test set, and what follows from it."""

    # images by true class, then by the class that the student names
    counts: Annotated[tuple[tuple[int, ...], ...], Why.BENCHMARK]
    # share of the most frequent class: what naming it always would get right
    majority: Annotated[float, Why.BENCHMARK]
    # mean over classes of the share that is recognised; classes without images do not count
    balanced: Annotated[float | None, Why.BENCHMARK] = None
    # of two classes, how often an image of the second has a higher score for it than one of the
    # first; ties count half
    auc: Annotated[float | None, Why.BENCHMARK] = None
    # of two classes, share of the second that is named so
    sensitivity: Annotated[float | None, Why.BENCHMARK] = None
    # of two classes, share of the first that is named so
    specificity: Annotated[float | None, Why.BENCHMARK] = None
    # of ordinal grades, Cohen's with quadratic weights: 1 is right, 0 is chance; None where all
    # images have one grade and are named so
    kappa: Annotated[float | None, Why.BENCHMARK] = None
    # of ordinal grades, how many grades the named one is off
    mean_absolute_error: Annotated[float | None, Why.BENCHMARK] = None

    @classmethod
    def of(
        cls, counts: Sequence[Sequence[int]], auc: float | None = None, *, ordinal: bool = False
    ) -> Self:
        """From counts, at least one of which is not zero; `auc` where two classes both have images.

        Args:
            counts: by true class, then by the class that is named.
            auc: see the attribute.
            ordinal: whether classes are grades, in their order.
        """
        rows = tuple(tuple(row) for row in counts)
        sizes = [sum(row) for row in rows]
        recalls = [row[i] / sizes[i] for i, row in enumerate(rows) if sizes[i]]
        found: dict[str, float | None] = {}
        if auc is not None:
            (right, _), (_, named) = rows
            found = {
                "auc": auc,
                "sensitivity": named / sizes[1],
                "specificity": right / sizes[0],
            }
        if ordinal:
            found["kappa"] = _quadratic_kappa(rows)
            found["mean_absolute_error"] = _off_by(rows, 1) / sum(sizes)
        return cls(
            counts=rows,
            majority=max(sizes) / sum(sizes),
            balanced=sum(recalls) / len(recalls),
            **found,
        )

    @property
    def classes(self) -> int:
        """How many there are."""
        return len(self.counts)

    def figures(self, names: Sequence[str]) -> list[tuple[str, str]]:
        """What follows from the counts, in words and as text.

        Args:
            names: of the classes.
        """
        shares = [
            ("always naming the most frequent class", self.majority),
            ("balanced accuracy: mean of the classes' own", self.balanced),
        ]
        if self.auc is not None:
            shares += [
                (f"sensitivity: share of {names[1]} recognised", self.sensitivity),
                (f"specificity: share of {names[0]} recognised", self.specificity),
            ]
        elif len(self.counts) <= _MOST_RECALLS:
            shares += [
                (f"share of {name} recognised", row[i] / sum(row) if sum(row) else None)
                for i, (name, row) in enumerate(zip(names, self.counts, strict=True))
            ]
        numbers = [
            ("area under the ROC curve", self.auc),
            ("quadratic-weighted kappa", self.kappa),
            ("mean absolute error, in grades", self.mean_absolute_error),
        ]
        told = [(words, f"{value:.1%}") for words, value in shares if value is not None]
        return told + [(words, f"{value:.3f}") for words, value in numbers if value is not None]


# Beyond, a reader looks at the table of counts.
_MOST_RECALLS = 20


class Findings(ResultPart):
    """What a student of several labels says of a benchmark's public test set, class by class."""

    images: Annotated[int, Why.BENCHMARK]  # how many
    positives: Annotated[tuple[int, ...], Why.BENCHMARK]  # images that have each class
    found: Annotated[tuple[int, ...], Why.BENCHMARK]  # of these, named so
    named: Annotated[tuple[int, ...], Why.BENCHMARK]  # images that are named so, rightly or not
    # how often an image that has the class has a higher score for it than one that has it not; ties
    # count half; None where all images have it, or none
    auc: Annotated[tuple[float | None, ...], Why.BENCHMARK]
    # over classes that have one; None where none has
    mean_auc: Annotated[float | None, Why.BENCHMARK] = None
    # share of all decisions, image by image and class by class, that are right by naming always
    # what most images of a class are
    majority: Annotated[float, Why.BENCHMARK]

    @classmethod
    def of(
        cls,
        *,
        images: int,
        positives: Sequence[int],
        found: Sequence[int],
        named: Sequence[int],
        auc: Sequence[float | None],
    ) -> Self:
        """From counts by class, and the area under the ROC curve of each."""
        known = [value for value in auc if value is not None]
        commoner = sum(max(count, images - count) for count in positives)
        return cls(
            images=images,
            positives=tuple(positives),
            found=tuple(found),
            named=tuple(named),
            auc=tuple(auc),
            mean_auc=sum(known) / len(known) if known else None,
            majority=commoner / (images * len(positives)),
        )

    @property
    def classes(self) -> int:
        """How many there are."""
        return len(self.positives)

    def figures(self, names: Sequence[str]) -> list[tuple[str, str]]:
        """What follows from them, in words and as text.

        Args:
            names: of the classes.
        """
        rows = [("always naming what most images are", f"{self.majority:.1%}")]
        if self.mean_auc is not None:
            rows.append(("area under the ROC curve, mean over classes", f"{self.mean_auc:.3f}"))
        shown = zip(names, self.positives, self.auc, strict=True)
        for name, count, area in list(shown)[:_MOST_RECALLS]:
            value = "-" if area is None else f"{area:.3f}"
            rows.append((f"area of {name} ({count:,} of {self.images:,} images)", value))
        return rows


def _off_by(counts: Sequence[Sequence[float]], power: int) -> float:
    """Σ |i − j|^power over counts."""
    return sum(
        abs(i - j) ** power * count for i, row in enumerate(counts) for j, count in enumerate(row)
    )


def _quadratic_kappa(counts: Sequence[Sequence[int]]) -> float | None:
    """Cohen's kappa with weights (i − j)²."""
    true, named = (
        [sum(row) for row in counts],
        [sum(column) for column in zip(*counts, strict=True)],
    )
    by_chance = _off_by([[a * b / sum(true) for b in named] for a in true], 2)
    return 1 - _off_by(counts, 2) / by_chance if by_chance else None
