from dataclasses import replace

import pytest
import torch

from fedtranscribe.data import ImageSet, dirichlet_partition
from fedtranscribe.errors import ConfigError


def make(n: int = 1_000, classes: int = 10) -> ImageSet:
    labels = torch.arange(n) % classes
    images = torch.zeros(n, 1, 4, 4, dtype=torch.uint8)
    ids = tuple(f"patient-{i}" for i in range(n))
    return ImageSet("toy", "toy", images, labels, classes, ids)


def test_every_record_has_exactly_one_holder():
    parts = dirichlet_partition(make(), 5, 0.5, seed=1)
    owned = [record for part in parts for record in part.ids]
    assert len(parts) == 5
    assert sorted(owned) == sorted(make().ids)


def test_the_seed_alone_decides():
    first, again, other = (dirichlet_partition(make(), 5, 0.5, seed=s) for s in (1, 1, 2))
    assert [p.ids for p in first] == [p.ids for p in again]
    assert [p.ids for p in first] != [p.ids for p in other]


def test_a_small_alpha_skews_and_a_large_one_does_not():
    def largest_share(alpha: float) -> float:
        counts = torch.stack(
            [p.labels.bincount(minlength=10) for p in dirichlet_partition(make(), 5, alpha, 0)]
        )
        return float((counts.max(0).values / counts.sum(0)).mean())

    assert largest_share(0.1) > 0.7
    assert largest_share(1_000.0) < 0.25


def test_every_holder_gets_its_least():
    parts = dirichlet_partition(make(), 5, 0.1, seed=3, least=40)
    assert min(len(part) for part in parts) >= 40


@pytest.mark.parametrize(
    ("holders", "alpha", "least", "named"),
    [
        (5, 0.0, 1, "alpha=0.0"),
        (5, float("nan"), 1, "alpha=nan"),
        (0, 0.5, 1, "holders=0"),
        (5, 0.5, 201, "holders=5"),
        (7, 0.001, 101, "alpha=0.001"),
    ],
)
def test_impossible_partitions_are_refused(holders, alpha, least, named):
    with pytest.raises(ConfigError, match=named):
        dirichlet_partition(make(), holders, alpha, 0, least)


def test_all_images_of_a_patient_go_to_one_holder():
    whole = make()
    patients = tuple(f"patient-{i % 40}" for i in range(len(whole)))
    parts = dirichlet_partition(replace(whole, record_ids=patients), 5, 0.5, seed=1)
    assert sum(map(len, parts)) == len(whole)
    held = [set(part.ids) for part in parts]
    assert sum(map(len, held)) == len(set.union(*held)) == 40
