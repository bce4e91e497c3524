"""Rows with products of their leading entries: how long they are, and what a record moves."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedtranscribe.data import ImageSet
from fedtranscribe.errors import ConfigError
from fedtranscribe.models import Classifier, build, load_network, save_network
from fedtranscribe.models.fixed_features import SCATTER, UnitFeatures, row_length, unit_rows_of
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.questions.descent import Descent, DescentQuery, gradients_bound
from fedtranscribe.questions.kinds import query_from
from fedtranscribe.questions.moments import Moments, MomentsQuery, moments_bound
from fedtranscribe.questions.question import Kind
from fedtranscribe.questions.record_rows import BATCH

CPU = torch.device("cpu")
N, SIZE, CLASSES, K, PRODUCTS = 10, 8, 4, 6, 3
ENTRIES = K + 6 + 1


def records(seed: int, images: Tensor | None = None) -> ImageSet:
    rng = torch.Generator().manual_seed(seed)
    shape = (N, 1, SIZE, SIZE)
    drawn = torch.randint(0, 256, shape, generator=rng).to(torch.uint8)
    labels = torch.randint(0, CLASSES, (N,), generator=rng)
    ids = tuple(f"r{i}" for i in range(N))
    return ImageSet("records", "records", drawn if images is None else images, labels, CLASSES, ids)


def query(kind: Kind, products: int = PRODUCTS) -> MomentsQuery | DescentQuery:
    numbers = Moments(records(0), CPU).rows.numbers(SCATTER)
    rng = torch.Generator().manual_seed(7)
    rows = torch.rand(numbers, generator=rng), torch.randn(numbers, K, generator=rng), SCATTER
    if kind is Kind.MOMENTS:
        return MomentsQuery("q", kind, *rows, CLASSES, products=products)
    head = 3 * torch.randn(row_length(K, PRODUCTS), CLASSES, generator=rng)
    return DescentQuery("q", kind, *rows, head, torch.ones(CLASSES), products=products)


def test_a_row_holds_products_and_has_norm_one():
    features = torch.randn(50, 9, generator=torch.Generator().manual_seed(0)).double()
    features[0], features[1], features[2] = 0.0, torch.nan, torch.inf
    features[3], features[4] = 1e-200, torch.tensor([1e9, 0, 0, 0, 0, 0, 0, 0, 0])
    mapping = torch.randn(9, K, generator=torch.Generator().manual_seed(1)).double()
    plain = unit_rows_of(features, torch.zeros(9), mapping)
    rows = unit_rows_of(features, torch.zeros(9), mapping, products=PRODUCTS)
    assert rows.shape == (50, ENTRIES)
    assert torch.equal(rows[:4], torch.zeros(4, ENTRIES).double())
    assert torch.allclose(rows[4:].norm(dim=1), torch.ones(46).double())
    assert torch.allclose(rows[4:, -1], plain[4:, -1])
    leading, others = plain[10:, :2], rows[10:, K : K + 2]
    # In the order of pairs: the first squared, then with the second; up to one factor per row.
    found = (leading[:, 0] * leading[:, 1]).sign()
    assert torch.equal(others[:, 1].sign(), found)


@pytest.mark.parametrize("kind", [Kind.MOMENTS, Kind.DESCENT])
def test_no_record_moves_a_sum_further_than_its_bound(kind: Kind):
    asked = query(kind)
    bound = gradients_bound if kind is Kind.DESCENT else moments_bound
    moves = bound(ENTRIES, CLASSES).moves[Unit.RECORD]
    counts, bits = bound(ENTRIES, CLASSES).counts, bound(ENTRIES, CLASSES).bits

    def values(images: ImageSet) -> Tensor:
        whole = Moments(images, CPU)
        statistic = whole if kind is Kind.MOMENTS else Descent(whole.rows)
        statistic.check(asked)
        return statistic.values(asked)[0].double()

    furthest = 0.0
    for seed in range(8):
        before, other = records(seed), records(seed + 100)
        images, labels = before.images.clone(), before.labels.clone()
        images[0], labels[0] = (255 if seed % 2 else other.images[0]), other.labels[0]
        whole, rest = values(before), values(before.subset(torch.arange(1, N)))
        replaced = values(replace(before, pixels=images, labels=labels))
        # Exactly what it adds alone: no other record's part changes by it.
        assert torch.equal(whole - rest, values(before.subset(torch.tensor([0]))))
        for adjacency, moved in ((Adjacency.ZERO_OUT, rest), (Adjacency.REPLACE, replaced)):
            difference = (whole - moved).square()
            length = float((difference if counts is None else difference * counts).sum().sqrt())
            assert length * 2.0**-bits <= moves[adjacency]
            furthest = max(furthest, length * 2.0**-bits)
    assert furthest > 0.9


def test_a_holder_s_rows_are_the_student_s(tmp_path: Path):
    asked, images = query(Kind.MOMENTS), records(3)
    student = build(SCATTER, CLASSES, 1, SIZE, products=PRODUCTS)
    features = student.backbone
    assert isinstance(features, UnitFeatures)
    features.map = torch.zeros(len(asked.centre), K)
    features.set_axes(asked.centre, asked.map)
    [(rows, _, _)] = Moments(images, CPU).rows.blocks(asked, range(N))
    assert torch.allclose(features(images.images.float() / 255), rows[:N], atol=1e-5)
    plain = Moments(images, CPU)
    [(without, _, _)] = plain.rows.blocks(query(Kind.MOMENTS, 0), range(N))
    [(again, _, _)] = plain.rows.blocks(asked, range(N))
    assert without.shape == (BATCH, K + 1)
    assert torch.equal(again, rows), "rows of another form were kept"
    whole = build(SCATTER, CLASSES, 1, SIZE, seed=1, products=PRODUCTS)
    save_network(whole, tmp_path / "student.safetensors")
    loaded = load_network(tmp_path / "student.safetensors")
    assert isinstance(loaded, Classifier)
    seen = images.images.float() / 255
    assert torch.equal(loaded(seen), whole.eval()(seen))


@pytest.mark.parametrize("products", [-1, K + 1, True, 2.0, "3", None, 10_000])
def test_products_that_there_are_not_are_refused(products):
    asked = query(Kind.MOMENTS)
    with pytest.raises(ConfigError, match="Expected products="):
        replace(asked, products=products)
    shapes = {name: tuple(array.shape) for name, array in asked.arrays.items()}
    with pytest.raises(ConfigError, match="Expected products="):
        Moments(records(0), CPU).expect(shapes, {**asked.terms, "products": products})


def test_a_head_has_an_entry_for_each():
    asked = query(Kind.DESCENT)
    statistic = Descent(Moments(records(0), CPU).rows)
    shapes = {name: tuple(array.shape) for name, array in asked.arrays.items()}
    assert statistic.expect(shapes, asked.terms) == 1
    with pytest.raises(ConfigError, match=r"a head \[7, 4\]"):
        statistic.expect(shapes, {**asked.terms, "products": 0})
    with pytest.raises(ConfigError, match="Expected a head"):
        replace(asked, products=1)
    stored = asked.to_dict()
    again = query_from(asked.kind, asked.id, stored["arrays"], stored["terms"])
    assert again.digest() == asked.digest() != query(Kind.MOMENTS).digest()
