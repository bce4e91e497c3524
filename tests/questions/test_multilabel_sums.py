"""Sums over records that may have several labels: what a record moves, and who may ask."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedtranscribe.data import ImageSet
from fedtranscribe.data.imageset import groups_of
from fedtranscribe.errors import ConfigError
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.questions.class_moments import ClassMoments, ClassMomentsQuery
from fedtranscribe.questions.descent import Descent, DescentQuery, gradients_bound
from fedtranscribe.questions.mixture import Mixture, MixtureQuery, block_matrices
from fedtranscribe.questions.moments import Moments, MomentsQuery, MomentSums, moments_bound
from fedtranscribe.questions.question import Kind

CPU = torch.device("cpu")
N, SIZE, CLASSES, K = 12, 8, 5, 6


def records(labels: Tensor, seed: int = 0, ids: list[str] | None = None) -> ImageSet:
    rng = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (len(labels), 1, SIZE, SIZE), generator=rng).to(torch.uint8)
    names = ids or [f"r{i}" for i in range(len(labels))]
    return ImageSet("records", "records", images, labels, CLASSES, tuple(names))


def drawn_labels(seed: int, n: int = N) -> Tensor:
    """From none to all of them."""
    rng = torch.Generator().manual_seed(seed)
    share = torch.rand(n, 1, generator=rng)
    return (torch.rand(n, CLASSES, generator=rng) < share).long()


def of_rows(images: ImageSet) -> tuple[str, Tensor, Tensor, str]:
    numbers = Moments(images, CPU).rows.numbers("scatter")
    rng = torch.Generator().manual_seed(7)
    centre = torch.rand(numbers, generator=rng)
    return Kind.MOMENTS, centre, torch.randn(numbers, K, generator=rng), "scatter"


def moments(images: ImageSet, classes: int = CLASSES, multilabel: bool = True) -> MomentsQuery:
    return MomentsQuery("q/moments", *of_rows(images), classes, multilabel)


def descent(images: ImageSet, size: float = 1.0, multilabel: bool = True) -> DescentQuery:
    _, *rows = of_rows(images)
    head = size * torch.randn(K + 1, CLASSES, generator=torch.Generator().manual_seed(3))
    return DescentQuery("q/descent", Kind.DESCENT, *rows, head, torch.ones(CLASSES), multilabel)


def rows_of(images: ImageSet, query) -> Tensor:
    """Rows of the records, without what fills up the last block."""
    blocks = Moments(images, CPU).rows.blocks(query, range(len(images)))
    return torch.cat([rows for rows, _, _ in blocks])[: len(images)]


def values(images: ImageSet, query) -> Tensor:
    whole = Moments(images, CPU)
    found = whole if query.kind == Kind.MOMENTS else Descent(whole.rows)
    return found.values(query)[0].double()


@pytest.mark.parametrize("what", ["moments", "descent", "hostile head"])
@pytest.mark.parametrize("shared", [False, True])
def test_no_record_moves_a_sum_further_than_its_bound(what: str, shared: bool):
    """However many labels it has, whatever they become; all records of one id together."""
    furthest = {Adjacency.ZERO_OUT: 0.0, Adjacency.REPLACE: 0.0}
    for seed in range(10):
        ids = ["a"] * 3 + [f"r{i}" for i in range(N - 3)] if shared else None
        mine = torch.tensor([i < (3 if shared else 1) for i in range(N)])
        before = records(drawn_labels(seed), seed, ids)
        if what == "moments":
            query, bound = moments(before), moments_bound(K + 1, CLASSES)
        else:
            query = descent(before, 1e12 if what == "hostile head" else 2.0)
            bound = gradients_bound(K + 1, CLASSES)
        other = records(drawn_labels(seed + 1_000), seed + 1_000, ids)
        labels, pixels = before.labels.clone(), before.images.clone()
        labels[mine], pixels[mine] = other.labels[mine], other.images[mine]
        if seed % 4 == 0:  # the furthest there can be: the same row, all labels instead of none
            pixels[mine], labels[mine] = before.images[mine], 1 - before.labels[mine]
        replaced = replace(before, pixels=pixels, labels=labels)
        rest = before.subset(torch.arange(N)[~mine])
        whole = values(before, query)
        counts = torch.ones_like(whole) if bound.counts is None else bound.counts
        moved = {Adjacency.ZERO_OUT: whole - values(rest, query)}
        # Exactly what they add alone: no other record's part changes by them.
        alone = values(before.subset(torch.arange(N)[mine]), query)
        assert torch.equal(moved[Adjacency.ZERO_OUT], alone)
        moved[Adjacency.REPLACE] = whole - values(replaced, query)
        for adjacency, difference in moved.items():
            length = float((difference.square() * counts).sum().sqrt()) * 2.0**-bound.bits
            furthest[adjacency] = max(furthest[adjacency], length)
    for adjacency, length in furthest.items():
        most = bound.moves[Unit.RECORD][adjacency]
        assert length <= most
        assert length > 0.5 * most or adjacency is Adjacency.REPLACE


def test_sums_by_class_are_of_labels_cut_to_norm_one():
    labels = torch.tensor([[0, 0, 0, 0, 0], [1, 0, 0, 0, 0], [0, 1, 1, 1, 1]])
    images = records(labels)
    found = values(images, moments(images)) * 2.0**-36
    sums = MomentSums.from_vector(found, K + 1, CLASSES)
    rows = rows_of(images, moments(images))
    expected = (
        rows.double().T
        @ torch.tensor([[0.0] * 5, [1, 0, 0, 0, 0], [0, 0.5, 0.5, 0.5, 0.5]]).double()
    )
    assert sums.by_class is not None
    assert torch.allclose(sums.by_class, expected, atol=1e-3)


def test_a_gradient_is_that_of_independent_logistic_losses():
    images = records(drawn_labels(5))
    query = descent(images, 0.1)
    rows = rows_of(images, query)
    head = query.head.double().requires_grad_()
    logits = rows.double() @ head
    each = torch.nn.functional.binary_cross_entropy_with_logits(
        logits, images.labels.double(), reduction="none"
    )
    missed = (logits.sigmoid() - images.labels).norm(dim=1).clamp_min(1).detach()
    (each.sum(1) / missed).sum().backward()
    found = values(images, query).reshape(K + 1, CLASSES) * 2.0**-36
    assert torch.allclose(found, head.grad, atol=5e-3)


def test_groups_tell_blocks_apart():
    """None first; of several labels the first one."""
    labels = torch.tensor([[0, 0, 0, 0, 0], [0, 1, 0, 0, 1], [0, 1, 0, 0, 0], [1, 1, 1, 1, 1]])
    assert groups_of(labels).tolist() == [0, 2, 2, 1]
    assert groups_of(torch.tensor([3, 1])).tolist() == [3, 1]
    images = records(labels)
    assert images.facts.groups == CLASSES + 1
    kind, *rows = of_rows(images)
    asked = ClassMomentsQuery("q/c", kind, *rows, CLASSES + 1)
    statistic = ClassMoments(Moments(images, CPU).rows)
    statistic.check(asked)
    sums = block_matrices(statistic.values(asked)[0].double() * 2.0**-36, K + 1, CLASSES + 1)
    counts = sums.diagonal(dim1=1, dim2=2).sum(1)
    assert counts.tolist() == pytest.approx([1, 1, 2, 0, 0, 0], abs=1e-2)
    centre, mapping = torch.zeros(SIZE**2), torch.eye(SIZE**2)[:, :4]
    cuts = torch.zeros(CLASSES + 1, 0, 5)
    drawn = MixtureQuery("q/m", Kind.MIXTURE, centre, mapping, cuts, 0.0, 0)
    mixture = Mixture(images)
    mixture.check(drawn)
    of_blocks = block_matrices(mixture.values(drawn)[0].double() * 2.0**-36, 5, CLASSES + 1)
    assert (of_blocks[:, -1, -1] > 0).tolist() == [True, True, True, False, False, False]


@pytest.mark.parametrize("make", [moments, descent])
def test_who_asks_has_to_know_what_labels_there_are(make):
    several, single = records(drawn_labels(0)), records(torch.arange(N) % CLASSES)
    for images, multilabel in ((several, False), (single, True)):
        query = make(images, multilabel=multilabel)
        whole = Moments(images, CPU)
        statistic = whole if make is moments else Descent(whole.rows)
        shapes = {name: tuple(array.shape) for name, array in query.arrays.items()}
        with pytest.raises(ConfigError, match=f"multilabel={not multilabel}"):
            statistic.expect(shapes, query.terms)
        with pytest.raises(ConfigError, match="as the records have labels"):
            statistic.check(query)
        fitting = make(images, multilabel=not multilabel)
        assert statistic.expect(shapes, fitting.terms) == 1
        statistic.check(fitting)
        assert fitting.digest() != query.digest()
    for wrong in (1, 0, None, "yes"):
        with pytest.raises(ConfigError, match="as true or false"):
            make(several, multilabel=wrong)
