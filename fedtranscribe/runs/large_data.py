"""How long sums over many records will take, in words, before anything is spent."""

import time
from collections.abc import Iterator

import torch

from fedtranscribe.data import ImageSet
from fedtranscribe.models import build
from fedtranscribe.models.fixed_features import UnitFeatures, coefficient_count, features_for
from fedtranscribe.query import Kind, MomentsQuery
from fedtranscribe.runs.preparation import Prepared
from fedtranscribe.runs.public_features import given_backbones
from fedtranscribe.statistics import Moments
from fedtranscribe.statistics.record_rows import BATCH

_MANY = 50_000
_MAPS = 2  # the second question of moments maps features differently
_GIB = 2**30


def words_of_a_long_sum(prepared: Prepared) -> Iterator[str]:
    """About how long features of many records take on this machine, and how much disk.

    One block of black images is timed; no record is looked at. How many images a record has is
    not a public fact, so the estimate is that of one image each.
    """
    facts, settings = prepared.plan.facts, prepared.settings
    asked = prepared.plan.teachers is None or prepared.plan.starts
    if not asked or facts.records < _MANY:
        return
    features = features_for(settings.student, facts.channels)
    numbers = coefficient_count(features, facts.channels, facts.size)
    room = 4 * numbers * facts.records / _GIB
    again = room > settings.scratch_gib
    seconds = _seconds_per_record(prepared, features) * facts.records
    hours = seconds * (_MAPS if again else 1) / 3600
    spent = f"{hours:.1f} hours" if hours >= 1 else f"{max(1, round(60 * hours))} minutes"
    kept = (
        f"kept on disk, {room:.1f} GiB, until the run ends"
        if not again
        else f"computed {_MAPS} times: they would take {room:.1f} GiB of disk, more than "
        f"--scratch-gib {settings.scratch_gib:g}"
    )
    yield (
        f"features of {facts.records:,} records, at one image each, take about {spent} on this "
        f"machine; {kept}"
    )


def _seconds_per_record(prepared: Prepared, features: str) -> float:
    facts = prepared.plan.facts
    shape = facts.channels, facts.size, facts.size
    black = torch.zeros(BATCH, *shape, dtype=torch.uint8)
    labels = torch.zeros(BATCH, dtype=torch.int64)
    images = ImageSet("black", "black", black, labels, facts.classes)
    student = build(features, facts.classes, facts.channels, facts.size).backbone
    assert isinstance(student, UnitFeatures)
    query = MomentsQuery(
        "timing", Kind.MOMENTS, student.centre, student.map, features, facts.classes
    )
    backbones = given_backbones(prepared.settings)
    sums = Moments(images, prepared.device, backbones=backbones)
    sums.values(query)  # the first time is slower
    began = time.perf_counter()
    sums.values(query)
    return (time.perf_counter() - began) / BATCH
