"""What a holder says when it is asked for the gradient of a classifier's loss on its records."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedtranscribe.data import ImageSet
from fedtranscribe.errors import ConfigError, ModelMismatchError
from fedtranscribe.models.fixed_features import SCATTER, coefficient_count, unit_rows_of
from fedtranscribe.models.scattering import NormalisedScattering
from fedtranscribe.questions.descent import Descent, DescentQuery
from fedtranscribe.questions.kinds import query_from
from fedtranscribe.questions.moments import SUM_BITS, Moments
from fedtranscribe.questions.question import Kind

RAW, K, CLASSES = coefficient_count(SCATTER, 1, 8), 4, 3


def records(ids: tuple[str, ...] | None = None) -> ImageSet:
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (6, 1, 8, 8), generator=rng, dtype=torch.uint8)
    return ImageSet("tiny", "tiny", images, torch.tensor([0, 1, 2, 0, 1, 2]), CLASSES, ids)


def query(scale: float = 1.0, raw: int = RAW, classes: int = CLASSES) -> DescentQuery:
    rng = torch.Generator().manual_seed(1)
    mapped = torch.randn(raw, K, generator=rng)
    head = scale * torch.randn(K + 1, classes, generator=rng)
    weights = torch.ones(classes)
    return DescentQuery("q", Kind.DESCENT, torch.zeros(raw), mapped, SCATTER, head, weights)


def statistic(images: ImageSet, scratch: Path | None = None) -> Descent:
    return Descent(Moments(images, torch.device("cpu"), scratch).rows)


def rows() -> torch.Tensor:
    with torch.no_grad():
        found = NormalisedScattering(1)(records().images.float() / 255).double()
    return unit_rows_of(found, torch.zeros(RAW).double(), query().map.double())


def test_it_is_the_gradient_that_autograd_finds():
    """Of a classifier that is unsure, so that no record's gradient is clipped."""
    asked = query(scale=0.1)
    found = statistic(records()).values(asked)[0].double() / 2**SUM_BITS
    head = asked.head.double().requires_grad_()
    loss = torch.nn.functional.cross_entropy(rows() @ head, records().labels, reduction="sum")
    loss.backward()
    assert head.grad is not None
    assert torch.allclose(found, head.grad.flatten(), atol=5e-3)


def test_classes_have_weights():
    weights = torch.tensor([1.0, 0.25, 0.0, 0.5])[:CLASSES]
    asked = replace(query(scale=0.1), weights=weights)
    found = statistic(records()).values(asked)[0].double() / 2**SUM_BITS
    head = asked.head.double().requires_grad_()
    torch.nn.functional.cross_entropy(
        rows() @ head, records().labels, weights.double(), reduction="sum"
    ).backward()
    assert head.grad is not None
    assert torch.allclose(found, head.grad.flatten(), atol=5e-3)
    nothing = replace(query(1e4), weights=torch.zeros(CLASSES))
    assert not statistic(records()).values(nothing).any()


def test_what_a_classifier_is_sure_of_and_wrong_about_is_clipped():
    asked = query(scale=1e4)
    found = statistic(records()).values(asked)[0].double() / 2**SUM_BITS
    wrong = (rows() @ asked.head.double()).argmax(1) != records().labels
    missed = torch.zeros(6, CLASSES).double()
    missed[wrong] = (rows() @ asked.head.double()).softmax(1)[wrong]
    missed[wrong] -= torch.eye(CLASSES).double()[records().labels[wrong]]
    expected = rows().T @ (missed / missed.norm(dim=1, keepdim=True).clamp_min(1))
    assert bool(wrong.any())
    assert torch.allclose(found, expected.flatten(), atol=5e-3)


def test_records_of_one_person_weigh_as_one_record():
    one = statistic(records(("a", "a", "a", "a", "a", "a"))).values(query(1e4))
    length = float(one.double().norm()) / 2**SUM_BITS
    assert 0 < length <= 1


def test_a_query_that_does_not_fit_is_refused():
    asked = statistic(records())
    shapes = {name: tuple(array.shape) for name, array in query().arrays.items()}
    assert asked.expect(shapes, {"features": SCATTER}) == 1
    for changed in ({"head": (K + 1, 5)}, {"head": (K, CLASSES)}, {"centre": (7,)}):
        with pytest.raises(ConfigError, match="Expected a centre"):
            asked.expect(shapes | changed, {"features": SCATTER})
    with pytest.raises(ModelMismatchError, match="head of 3 classes"):
        asked.check(query(classes=4))
    with pytest.raises(ModelMismatchError, match="numbers for the features scatter"):
        asked.check(query(raw=RAW + 1))
    with pytest.raises(ConfigError, match="Expected a head"):
        replace(query(), head=torch.ones(2, CLASSES))
    for weights in (torch.ones(CLASSES + 1), 1.01 * torch.ones(CLASSES), -torch.ones(CLASSES)):
        with pytest.raises(ConfigError, match="Expected weights"):
            replace(query(), weights=weights)
    with pytest.raises(ConfigError, match="finite"):
        query(scale=float("nan"))


def test_a_stored_query_is_the_same_question():
    again = query_from(**query().to_dict())
    assert again.digest() == query().digest()
    assert query(scale=2).digest() != query().digest()


def test_rounds_on_the_same_features_compute_them_once(tmp_path, monkeypatch):
    mapped: list[int] = []

    def counted(found, *more, **named):
        mapped.append(len(found))
        return unit_rows_of(found, *more, **named)

    monkeypatch.setattr("fedtranscribe.questions.record_rows.unit_rows_of", counted)
    many = records().subset(torch.arange(450) % 6)
    kept, plain = statistic(many, tmp_path), statistic(many)
    first, second = query(1.0), query(2.0)
    found = [kept.values(first), kept.values(second), kept.values(first)]
    assert mapped == [200] * 3
    assert torch.equal(found[0], plain.values(first))
    assert torch.equal(found[1], plain.values(second))
    assert torch.equal(found[0], found[2])
    assert list(tmp_path.iterdir()) == []


def rounding_alone() -> DescentQuery:
    """A query whose logits are zero, but for how floats are rounded on the way.

    Every image becomes the same row, and a head of entries and their negatives, in disorder, adds
    them up. In float64 that gives about 10¹³ of either sign, depending on the kernel, and so on how
    many rows are multiplied together.
    """
    raw, k, classes = coefficient_count(SCATTER, 1, 28), 500, 10
    rng = torch.Generator().manual_seed(7)
    half = torch.randn(k // 2, generator=rng)
    column = torch.cat([half, -half])[torch.randperm(k, generator=rng)] * 1e30
    centre, mapped, head = torch.zeros(raw), torch.zeros(raw, k), torch.zeros(k + 1, classes)
    centre[0], mapped[0] = -1e10, 1.0
    head[:k, 0], head[:k, 1] = column, -column
    return DescentQuery("q", Kind.DESCENT, centre, mapped, SCATTER, head, torch.ones(classes))


@pytest.mark.parametrize("n", [1, 2, 3, 199, 200, 201, 202])
def test_a_record_that_joins_moves_nobody_else_s_residual(n: int):
    """Whatever the query is, and however many records stand beside it."""
    rng = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (n + 1, 1, 28, 28), generator=rng, dtype=torch.uint8)
    ids = tuple(f"p{i}" for i in range(n + 1))
    more = ImageSet("x", "x", images, torch.zeros(n + 1, dtype=torch.int64), 10, ids)
    few = more.subset(torch.arange(n))
    before, after = (statistic(some).values(rounding_alone())[0].double() for some in (few, more))
    assert float((after - before).norm()) / 2**SUM_BITS <= 1


def test_a_query_that_is_changed_afterwards_is_another_one(tmp_path: Path):
    kept, asked = statistic(records(), tmp_path), query()
    kept.values(asked)
    asked.map.mul_(-1)
    assert torch.equal(kept.values(asked), statistic(records()).values(asked))
