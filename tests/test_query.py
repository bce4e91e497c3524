import io
from dataclasses import replace

import pytest
import torch

from fedtranscribe.errors import ConfigError
from fedtranscribe.questions.kinds import QUERIES, query_from
from fedtranscribe.questions.moments import MomentsQuery
from fedtranscribe.questions.question import Kind, Query
from fedtranscribe.questions.rows import ImageQuery

QUERY = ImageQuery(
    id="run/0",
    kind=Kind.GRADIENT,
    images=torch.zeros(2, 1, 8, 8, dtype=torch.uint8),
    index_sets=torch.tensor([[0, 2], [1, 0]]),
    student_logits=torch.zeros(2, 3),
)


def changed(**parts) -> ImageQuery:
    return replace(QUERY, **parts)


def test_the_digest_binds_every_part_of_a_query():
    other_image = QUERY.images.clone()
    other_image[1, 0, 3, 3] = 1
    others = [
        changed(id="run/1"),
        changed(kind=Kind.VOTE),
        changed(images=other_image),
        changed(index_sets=torch.tensor([[2, 0], [1, 0]])),
        changed(student_logits=torch.full((2, 3), 1e-30)),
        changed(kind=Kind.VOTE, student_logits=None),
    ]
    digests = {query.digest() for query in [QUERY, *others]}
    assert len(digests) == 1 + len(others)
    assert changed(images=QUERY.images.clone()).digest() == QUERY.digest()


def test_shape_of_images_is_part_of_the_digest():
    flat = changed(images=torch.zeros(2, 1, 4, 16, dtype=torch.uint8))
    assert flat.digest() != QUERY.digest()


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ({"images": torch.zeros(2, 1, 8, 8)}, "uint8"),
        ({"images": torch.zeros(0, 1, 8, 8, dtype=torch.uint8)}, "n > 0"),
        ({"index_sets": torch.zeros(2, 2, dtype=torch.int64)}, "distinct"),
        ({"index_sets": torch.tensor([[0, -1], [0, 1]])}, "non-negative"),
        ({"index_sets": torch.tensor([[0, 3], [0, 1]])}, "within"),
        ({"index_sets": torch.zeros(1, 2, dtype=torch.int64)}, r"\[2, k\]"),
        ({"student_logits": None}, "student logits"),
        ({"student_logits": torch.full((2, 3), torch.nan)}, "finite"),
        ({"student_logits": torch.zeros(3, 3)}, "finite student logits"),
    ],
)
def test_a_malformed_public_query_is_refused(parts, named):
    with pytest.raises(ConfigError, match=named):
        changed(**parts)


@pytest.mark.parametrize(
    "query",
    [
        QUERY,
        replace(QUERY, kind=Kind.VOTE, student_logits=None),
        MomentsQuery("run/1", Kind.MOMENTS, torch.zeros(5), torch.ones(5, 3), "scatter", 4),
    ],
)
def test_a_checkpoint_gives_the_same_query_back(query: Query):
    buffer = io.BytesIO()
    torch.save(query.to_dict(), buffer)
    buffer.seek(0)
    again = query_from(**torch.load(buffer, weights_only=True))
    assert type(again) is type(query)
    assert again.digest() == query.digest()


def test_a_query_about_moments_binds_its_classes_and_fits_its_answer():
    query = MomentsQuery("q", Kind.MOMENTS, torch.zeros(5), torch.ones(5, 3), "scatter", 2)
    # Four features with the constant: ten products, and eight sums by class.
    assert (query.rows, query.width) == (1, 18)
    without = replace(query, classes=0)
    assert without.width == 10
    assert without.digest() != query.digest()
    with pytest.raises(ConfigError, match="features"):
        MomentsQuery("q", Kind.MOMENTS, torch.zeros(9_000), torch.ones(9_000, 5_000), "scatter", 0)


@pytest.mark.parametrize("classes", [3.0, True, "3", -1])
def test_classes_of_moments_are_a_whole_number(classes):
    with pytest.raises(ConfigError, match="whole number"):
        MomentsQuery("q", Kind.MOMENTS, torch.zeros(5), torch.ones(5, 3), "scatter", classes)


def test_every_kind_has_a_form():
    assert set(QUERIES) == set(Kind)
