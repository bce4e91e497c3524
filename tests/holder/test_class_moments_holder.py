"""What a holder says when it is asked for second moments of features, class by class."""

import math
from dataclasses import replace

import pytest
import torch

from fedtranscribe.data import ImageSet
from fedtranscribe.errors import ConfigError, ModelMismatchError
from fedtranscribe.models.fixed_features import SCATTER, coefficient_count, unit_rows_of
from fedtranscribe.models.scattering import NormalisedScattering
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.questions.class_moments import ClassMoments, ClassMomentsQuery
from fedtranscribe.questions.kinds import query_from
from fedtranscribe.questions.mixture import block_matrices, products_bound
from fedtranscribe.questions.moments import SUM_BITS, Moments
from fedtranscribe.questions.question import Kind
from tests.mechanisms_for import apart, local

RAW, K, CLASSES = coefficient_count(SCATTER, 1, 8), 4, 3


def records(ids: tuple[str, ...] | None = None, n: int = 6) -> ImageSet:
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (n, 1, 8, 8), generator=rng, dtype=torch.uint8)
    return ImageSet("tiny", "tiny", images, torch.arange(n) % CLASSES, CLASSES, ids)


def query(raw: int = RAW, classes: int = CLASSES) -> ClassMomentsQuery:
    mapped = torch.randn(raw, K, generator=torch.Generator().manual_seed(1))
    return ClassMomentsQuery("q", Kind.CLASS_MOMENTS, torch.zeros(raw), mapped, SCATTER, classes)


def statistic(images: ImageSet) -> ClassMoments:
    return ClassMoments(Moments(images, torch.device("cpu")).rows)


def test_it_is_the_second_moments_of_each_class():
    found = statistic(records()).values(query())[0].double() / 2**SUM_BITS
    matrices = block_matrices(found, K + 1, CLASSES)
    with torch.no_grad():
        features = NormalisedScattering(1)(records().images.float() / 255).double()
    rows = unit_rows_of(features, torch.zeros(RAW).double(), query().map.double())
    for label in range(CLASSES):
        here = rows[records().labels == label]
        torch.testing.assert_close(matrices[label], here.T @ here, atol=5e-3, rtol=0)


@pytest.mark.parametrize("ids", [None, ("a", "a", "b", "c", "d", "e")])
def test_one_record_moves_it_no_further_than_the_sensitivity(ids: tuple[str, ...] | None):
    images = records(ids)
    bound = products_bound(K + 1, CLASSES)
    moves = bound.moves[Unit.RECORD]
    here = statistic(images).values(query())[0]
    for seed in range(20):
        rng = torch.Generator().manual_seed(seed)
        pixels, labels = images.images.clone(), images.labels.clone()
        own = [i for i, name in enumerate(ids or range(6)) if name == (ids or range(6))[0]]
        for i in own:
            pixels[i] = torch.randint(0, 256, (1, 8, 8), generator=rng)
            labels[i] = int(torch.randint(0, CLASSES, (1,), generator=rng))
        there = statistic(replace(images, pixels=pixels, labels=labels)).values(query())[0]
        assert apart(here, there, bound) * 2.0**-SUM_BITS <= moves[Adjacency.REPLACE]
    rest = images.subset(torch.tensor([i for i in range(6) if i not in own]))
    without = statistic(rest).values(query())[0]
    assert apart(here, without, bound) * 2.0**-SUM_BITS <= moves[Adjacency.ADD_REMOVE] == 1


def test_all_classes_cost_what_the_moments_of_all_records_cost():
    mechanism = statistic(records()).mechanism(query(), local(2.0))
    event = mechanism.release(1, positional_ids=False).event(Unit.RECORD, Adjacency.ZERO_OUT)
    assert math.isclose(event.gdp_mu, 1 / 2.0, rel_tol=1e-5)


@pytest.mark.parametrize("n", [1, 199, 200, 201])
def test_a_record_that_joins_moves_nobody_elses_row(n: int):
    more = records(tuple(f"p{i}" for i in range(n + 1)), n + 1)
    asked, bound = (
        replace(query(), centre=torch.full((RAW,), -1e10)),
        products_bound(K + 1, CLASSES),
    )
    before, after = (
        statistic(some).values(asked)[0] for some in (more.subset(torch.arange(n)), more)
    )
    assert apart(before, after, bound) * 2.0**-SUM_BITS <= 1


def test_a_query_that_does_not_fit_is_refused():
    asked = statistic(records())
    shapes = {name: tuple(array.shape) for name, array in query().arrays.items()}
    terms = {"features": SCATTER, "classes": CLASSES}
    assert asked.expect(shapes, terms) == 1
    for changed in ({"map": (RAW + 1, K)}, {"centre": (7,)}, {"map": (RAW, 5_000)}):
        with pytest.raises(ConfigError, match="Expected a centre"):
            asked.expect(shapes | changed, terms)
    for classes in (0, 4, True, 3.0, "3"):
        with pytest.raises(ConfigError, match="sums by 3 classes"):
            asked.expect(shapes, terms | {"classes": classes})
    with pytest.raises(ModelMismatchError, match="sums by 3 classes, got 4"):
        asked.check(query(classes=4))
    with pytest.raises(ModelMismatchError, match="numbers for the features scatter"):
        asked.check(query(raw=RAW + 1))
    for classes in (1, True, 2.0):
        with pytest.raises(ConfigError, match="whole number >= 2"):
            query(classes=classes)
    with pytest.raises(ConfigError, match="at most"):
        query(classes=10**6)


def test_a_stored_query_is_the_same_question():
    assert query_from(**query().to_dict()).digest() == query().digest()
    assert query(classes=4).digest() != query().digest()
