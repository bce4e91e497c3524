"""What a classifier takes for what, and what clinicians read off it."""

import pytest
import torch

from fedtranscribe.models.inference import confusion_of, operating_point
from fedtranscribe.results.decisions import Confusion


def brightness(classes: int, *values: float) -> torch.Tensor:
    """Logits that say the second class the likelier the brighter an image is."""
    score = torch.tensor(values)[:, None] - 128
    return torch.cat([-score, score, torch.full((len(values), classes - 2), -999.0)], 1)


def test_two_classes_have_sensitivity_specificity_and_auc():
    labels = torch.tensor([0, 0, 0, 1, 1, 1, 1])
    found = confusion_of(brightness(2, 10, 100, 200, 90, 180, 220, 250), labels)
    assert found.counts == ((2, 1), (1, 3))
    assert found.majority == pytest.approx(4 / 7)
    assert found.sensitivity == pytest.approx(3 / 4)
    assert found.specificity == pytest.approx(2 / 3)
    assert found.balanced == pytest.approx((3 / 4 + 2 / 3) / 2)
    # Of twelve pairs, 90 is brighter than 10 alone, 180 than two, and the others than all.
    assert found.auc == pytest.approx((1 + 2 + 3 + 3) / 12)


def test_scores_that_are_equal_count_half():
    found = confusion_of(brightness(2, 50, 50), torch.tensor([0, 1]))
    assert found.auc == pytest.approx(0.5)


def test_more_classes_and_empty_ones_have_counts_alone():
    more = confusion_of(brightness(3, 10, 250, 20), torch.tensor([0, 1, 2]))
    assert more == Confusion.of([[1, 0, 0], [0, 1, 0], [1, 0, 0]])
    assert more.to_json() == {
        "counts": [[1, 0, 0], [0, 1, 0], [1, 0, 0]],
        "majority": pytest.approx(1 / 3),
        "balanced": pytest.approx(2 / 3),
    }
    assert more.figures("abc") == [
        ("always naming the most frequent class", "33.3%"),
        ("balanced accuracy: mean of the classes' own", "66.7%"),
        ("share of a recognised", "100.0%"),
        ("share of b recognised", "100.0%"),
        ("share of c recognised", "0.0%"),
    ]
    one = confusion_of(brightness(2, 10, 20), torch.tensor([0, 0]))
    assert (one.auc, one.sensitivity, one.specificity, one.majority) == (None, None, None, 1.0)


def test_grades_have_kappa_and_mean_error():
    counts = [[5, 1, 0], [1, 3, 2], [0, 1, 7]]
    found = Confusion.of(counts, ordinal=True)
    true = [i for i, row in enumerate(counts) for _ in range(sum(row))]
    named = [j for row in counts for j, count in enumerate(row) for _ in range(count)]
    metrics = pytest.importorskip("sklearn.metrics")
    kappa = metrics.cohen_kappa_score(true, named, weights="quadratic")
    assert found.kappa == pytest.approx(kappa)
    assert found.mean_absolute_error == pytest.approx(5 / 20)
    assert Confusion.of([[3, 0], [0, 0]], ordinal=True).kappa is None
    assert Confusion.of(counts).kappa is None
    assert ("quadratic-weighted kappa", f"{kappa:.3f}") in found.figures("abc")


def test_an_operating_point_is_the_sharpest_threshold_with_the_wanted_share():
    labels = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 1])
    scores = torch.tensor([0.1, 0.2, 0.3, 0.5, 0.6, 0.2, 0.5, 0.7, 0.9])
    for least, expected in (
        (0.5, (0.7, 0.5, 1.0)),
        (0.75, (0.5, 0.75, 0.6)),
        (0.76, (0.2, 1.0, 0.2)),
        (1.0, (0.2, 1.0, 0.2)),
    ):
        found = operating_point(scores, labels, "sensitivity", least)
        assert found == pytest.approx(expected)
    threshold, sensitivity, specificity = operating_point(scores, labels, "specificity", 0.8)
    assert threshold > 0.5, "0.5 itself, of the first class, must not be named"
    assert threshold == pytest.approx(0.5)
    assert (sensitivity, specificity) == (0.5, 0.8)
