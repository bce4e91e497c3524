"""A record that joins moves all others by one place, and moves a sum by no more than itself.

Kernels of some processors round the last rows of a block apart from the others; a hostile question
makes all but rounding cancel. MKL reads from the environment whose kernels it is to use, when a
process starts.
"""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

from fedtranscribe.data import ImageSet
from fedtranscribe.models.fixed_features import FIXED, coefficient_count, fixed_features
from fedtranscribe.models.mixture import frequencies, frequency_count
from fedtranscribe.questions.class_moments import ClassMoments, ClassMomentsQuery
from fedtranscribe.questions.descent import Descent, DescentQuery
from fedtranscribe.questions.mixture import (
    Mixture,
    MixtureQuery,
    mixture_bound,
    products_bound,
)
from fedtranscribe.questions.moments import Moments, MomentsQuery, moments_bound
from fedtranscribe.questions.question import Kind

SIZE, K, CLASSES, RECORDS = 8, 16, 3, 1_001
UNIT = 2.0**36


def records(first: int, channels: int) -> ImageSet:
    """All but the first few of the same images; labels follow the places that are rounded apart."""
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (RECORDS, channels, SIZE, SIZE), generator=rng).byte()
    places = (torch.arange(RECORDS) - 1) % 200
    labels = torch.full((RECORDS,), 2)
    labels[places == 199], labels[places == 197] = 0, 1
    ids = tuple(f"patient-{i}" for i in range(RECORDS))
    return ImageSet("x", "x", images[first:], labels[first:], CLASSES, ids[first:])


def cancelling(numbers: int, width: int = K) -> torch.Tensor:
    """A map under which a row of equal numbers is rounding alone."""
    rng = torch.Generator().manual_seed(1)
    half = torch.randn(numbers // 2, width, generator=rng)
    rows = torch.cat([half, -half, half.new_zeros(numbers % 2, width)])
    return rows[torch.randperm(numbers, generator=rng)]


def moved(answer: Callable[[int], torch.Tensor], counts: torch.Tensor | float = 1.0) -> float:
    difference = (answer(1) - answer(0)).double() / UNIT
    return float((difference.square() * counts).sum().sqrt())


def of_features(features: str, channels: int) -> tuple[float, float, float]:
    numbers = coefficient_count(features, channels, SIZE)
    centre, mapped = torch.full((numbers,), -1e10), cancelling(numbers)
    head = torch.randn(K + 1, CLASSES, generator=torch.Generator().manual_seed(2)) * 1e3
    moments = MomentsQuery("m", Kind.MOMENTS, centre, mapped, features, CLASSES)
    by_block = ClassMomentsQuery("c", Kind.CLASS_MOMENTS, centre, mapped, features, CLASSES)
    descent = DescentQuery("d", Kind.DESCENT, centre, mapped, features, head, torch.ones(CLASSES))

    def asked(first: int) -> Moments:
        return Moments(records(first, channels), torch.device("cpu"))

    return (
        moved(lambda first: asked(first).values(moments), moments_bound(K + 1, CLASSES).counts),
        moved(lambda first: Descent(asked(first).rows).values(descent)),
        moved(
            lambda first: ClassMoments(asked(first).rows).values(by_block),
            products_bound(K + 1, CLASSES).counts,
        ),
    )


def of_mixture(channels: int) -> float:
    numbers = frequency_count(channels, SIZE)
    centre = torch.full((numbers,), -1e10)
    none = torch.zeros(0, 0, K + 1)
    query = MixtureQuery("x", Kind.MIXTURE, centre, cancelling(numbers), none, 0.0, 0)
    counts = mixture_bound(K + 1, 1).counts
    return moved(lambda first: Mixture(records(first, channels)).values(query), counts)


def hold() -> None:
    for channels in (1, 3):
        for features in FIXED:
            fixed = fixed_features(features, channels)
            shown = records(0, channels).images[:200] / 255
            assert torch.equal(fixed(shown.roll(1, 0)), fixed(shown).roll(1, 0)), features
            by_class, gradients, blocks = of_features(features, channels)
            assert by_class <= 2**0.5, (features, channels, by_class)
            assert gradients <= 1, (features, channels, gradients)
            assert blocks <= 1, (features, channels, blocks)
        for size in (8, 28, 40):
            one = torch.randint(0, 256, (1, channels, size, size)).byte()
            found = frequencies(one.expand(256, -1, -1, -1))
            assert torch.equal(found, found[:1].expand_as(found)), (channels, size)
        assert of_mixture(channels) <= 1


@pytest.mark.long
def test_a_record_that_joins_moves_sums_by_no_more_than_itself():
    hold()


@pytest.mark.long
@pytest.mark.parametrize("kernels", ["AVX2", "SSE4_2"])
def test_so_it_is_with_other_processors_kernels(kernels: str):
    code = "from tests.holder.test_places import hold; hold()"
    environment = os.environ | {"MKL_ENABLE_INSTRUCTIONS": kernels}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2_000:]
