from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedtranscribe.data import ImageSet
from fedtranscribe.errors import (
    BudgetExhaustedError,
    ConfigError,
    ModelMismatchError,
    QueryConflictError,
)
from fedtranscribe.holder.answering import Holder
from fedtranscribe.models.fixed_features import PATCHES, SCATTER, coefficient_count, unit_rows_of
from fedtranscribe.models.scattering import NormalisedScattering
from fedtranscribe.noise.bounds import Bound
from fedtranscribe.noise.sources import SeededBits, SeededNoise
from fedtranscribe.privacy.budget import Budget
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.release_plan import NoisePlan
from fedtranscribe.privacy.units import Adjacency, NoiseMode, Unit
from fedtranscribe.questions.kinds import by_kind
from fedtranscribe.questions.moments import (
    SUM_BITS,
    Moments,
    MomentsQuery,
    MomentSums,
    moments_bound,
)
from fedtranscribe.questions.question import Answer, Kind
from fedtranscribe.questions.record_rows import RecordRows
from tests.mechanisms_for import apart, local, moved

RAW = coefficient_count(SCATTER, 1, 8)
CLASSES = 3


def records(ids: tuple[str, ...] | None = None) -> ImageSet:
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (6, 1, 8, 8), generator=rng, dtype=torch.uint8)
    return ImageSet("tiny", "tiny", images, torch.tensor([0, 1, 2, 0, 1, 2]), 3, ids)


def query(name: str = "q", *, by_class: bool = True, raw: int = RAW) -> MomentsQuery:
    mapped = torch.randn(raw, 4, generator=torch.Generator().manual_seed(1))
    return MomentsQuery(
        name, Kind.MOMENTS, torch.zeros(raw), mapped, SCATTER, CLASSES if by_class else 0
    )


@pytest.fixture
def ledger(tmp_path: Path):
    budget = Budget(1.0, 1e-5, Unit.RECORD, Adjacency.ZERO_OUT)
    with Ledger.open(tmp_path / "ledger.sqlite", "tiny", budget) as opened:
        yield opened


def holder(
    ledger: Ledger, images: ImageSet | None = None, noise: object = None, bits: object = None
) -> Holder:
    images = images or records()
    statistics = by_kind([Moments(images, torch.device("cpu"))])
    return Holder(
        statistics, ledger, "run", positional_ids=images.positional, noise=noise, bits=bits
    )


def sums(answer: Answer) -> MomentSums:
    return MomentSums.from_vector(answer.values[0], query().entries, CLASSES)


QUIET, PRIVATE = local(1e-6), local(50.0)


def test_the_answer_is_the_sum_over_records_and_noise(tmp_path: Path):
    ample = Budget(1e13, 1e-5, Unit.RECORD, Adjacency.ZERO_OUT)
    with Ledger.open(tmp_path / "open.sqlite", "tiny", ample) as open_ledger:
        told = sums(holder(open_ledger, noise=SeededNoise(0)).answer(query(), QUIET))
    images = records()
    with torch.no_grad():
        coefficients = NormalisedScattering(1)(images.images.float() / 255).double()
    rows = unit_rows_of(coefficients, torch.zeros(RAW).double(), query().map.double())
    assert torch.allclose(told.second, rows.T @ rows, atol=2e-3)
    assert told.by_class is not None
    one_hot = torch.eye(3).double()[images.labels]
    assert torch.allclose(told.by_class, rows.T @ one_hot, atol=2e-3)


def test_records_of_one_person_weigh_as_one_record(tmp_path: Path):
    ample = Budget(1e13, 1e-5, Unit.RECORD, Adjacency.ZERO_OUT)
    with Ledger.open(tmp_path / "open.sqlite", "tiny", ample) as open_ledger:
        images = records(("a", "a", "a", "b", "c", "d"))
        told = sums(holder(open_ledger, images).answer(query(), QUIET))
    # Every row has norm one, so the trace counts persons.
    assert float(told.second.trace()) == pytest.approx(4, abs=4e-3)


def moved_by(adjacency: Adjacency) -> float:
    return moved(query().entries, CLASSES, adjacency)


def bound() -> Bound:
    return moments_bound(query().entries, CLASSES)


def told_without_noise(images: ImageSet, path: Path) -> torch.Tensor:
    ample = Budget(1e13, 1e-5, Unit.RECORD, Adjacency.ZERO_OUT)
    with Ledger.open(path, "tiny", ample) as open_ledger:
        return holder(open_ledger, images, SeededNoise(0)).answer(query(), QUIET).values


@pytest.mark.parametrize("ids", [None, ("a", "a", "b", "c", "d", "e")])
def test_one_record_moves_the_answer_no_further_than_the_sensitivity(
    tmp_path: Path, ids: tuple[str, ...] | None
):
    images = records(ids)
    here = told_without_noise(images, tmp_path / "here.sqlite")
    inverted, moved_label = images.images.clone(), images.labels.clone()
    inverted[0] = 255 - inverted[0]
    moved_label[0] = 2
    worlds = {
        "another image": (inverted, images.labels),
        "another label": (images.images, moved_label),
        "both": (inverted, moved_label),
    }
    for name, (pixels, labels) in worlds.items():
        other = ImageSet("tiny", "tiny", pixels, labels, 3, ids)
        there = told_without_noise(other, tmp_path / f"{name}.sqlite")
        far = apart(here, there, bound())
        assert 0.01 < far <= moved_by(Adjacency.REPLACE)
    without = images.subset(range(1, 6))
    if ids is None:
        there = told_without_noise(without, tmp_path / "without.sqlite")
        far = apart(here, there, bound())
        assert far == pytest.approx(moved_by(Adjacency.ZERO_OUT), rel=1e-3)


def test_a_query_is_charged_once_and_replayed(ledger: Ledger):
    asked = holder(ledger)
    first, again = asked.answer(query(), PRIVATE), asked.answer(query(), PRIVATE)
    assert torch.equal(first.values, again.values)
    assert len(ledger.releases("run")) == 1
    assert first.head[0] <= again.head[0]


def test_a_query_id_stays_bound_to_its_content_and_noise(ledger: Ledger):
    asked = holder(ledger)
    asked.answer(query(), PRIVATE)
    other = replace(query(), centre=query().centre + 1)
    with pytest.raises(QueryConflictError):
        asked.answer(other, PRIVATE)
    with pytest.raises(QueryConflictError):
        asked.answer(query(), local(60.0))
    assert len(ledger.releases("run")) == 1


def test_a_spent_budget_is_noticed_before_a_record_is_touched(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(RecordRows, "blocks", lambda *_: pytest.fail("a record was touched"))
    with pytest.raises(BudgetExhaustedError):
        holder(ledger).answer(query(), QUIET)
    assert ledger.releases("run") == []


def test_what_does_not_fit_is_refused_before_it_is_booked(ledger: Ledger):
    with pytest.raises(ModelMismatchError, match=f"centre of {RAW} numbers"):
        holder(ledger).answer(query(raw=10), PRIVATE)
    with pytest.raises(ModelMismatchError, match="sums by 3 classes, got 2"):
        holder(ledger).answer(replace(query(), classes=2), PRIVATE)
    assert ledger.releases("run") == []


def test_classes_are_held_against_the_records_before_anything_is_made_of_them():
    asked = Moments(records(), torch.device("cpu"))
    shapes = {name: tuple(array.shape) for name, array in query().arrays.items()}
    terms = {"features": SCATTER, "classes": CLASSES}
    assert asked.expect(shapes, terms) == 1
    for classes in (2, 10**8, 10**18, -1, "3", None):
        with pytest.raises(ConfigError, match="classes"):
            asked.expect(shapes, terms | {"classes": classes})
    for features in (None, 3, "wavelets"):
        with pytest.raises(ConfigError, match=f"Expected features={features!r} as one of scatter"):
            asked.expect(shapes, terms | {"features": features})
    with pytest.raises(ConfigError, match=r"Expected a centre \[7200\]"):
        asked.expect(shapes, terms | {"features": PATCHES})


def test_a_summand_is_whole_numbers_with_this_holders_share_of_the_noise(tmp_path: Path):
    ample = Budget(1e13, 1e-5, Unit.RECORD, Adjacency.ZERO_OUT)
    plan = NoisePlan(NoiseMode.SECAGG, 1e-6, 3, 0, 1)
    with Ledger.open(tmp_path / "open.sqlite", "tiny", ample) as open_ledger:
        asked = holder(open_ledger, bits=SeededBits(0))
        summand, again = asked.summand(query(), plan), asked.summand(query(), plan)
        with pytest.raises(ConfigError, match="under masks only"):
            asked.answer(query(), plan)
    assert summand.values.dtype is torch.int64
    assert torch.equal(summand.values, again.values)
    exact = Moments(records(), torch.device("cpu")).values(query())
    noise = (summand.values - exact).double() / 2**SUM_BITS
    assert 0 < float(noise.abs().max()) < 1e-4


def test_queries_that_are_none_are_refused():
    good = query()
    with pytest.raises(ConfigError, match="finite"):
        replace(good, map=good.map * torch.nan)
    with pytest.raises(ConfigError, match="float32"):
        replace(good, centre=good.centre.double())
    with pytest.raises(ConfigError, match="k <="):
        replace(good, centre=good.centre[:2], map=good.map[:2])


def counting(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    blocks: list[int] = []
    forward = NormalisedScattering.forward

    def counted(self: NormalisedScattering, images: torch.Tensor) -> torch.Tensor:
        blocks.append(len(images))
        return forward(self, images)

    monkeypatch.setattr(NormalisedScattering, "forward", counted)
    return blocks


def test_coefficients_are_computed_once_and_leave_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    many = records().subset(torch.arange(450) % 6)
    one, other = query(), query("r", by_class=False)
    plain = Moments(many, torch.device("cpu"))
    expected = [plain.values(one), plain.values(other)]
    kept = Moments(many, torch.device("cpu"), tmp_path / "private")
    blocks = counting(monkeypatch)
    found = [kept.values(one), kept.values(other)]
    assert blocks == [200] * 3
    assert all(map(torch.equal, found, expected))
    assert list((tmp_path / "private").iterdir()) == []


def test_coefficients_that_do_not_fit_are_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    small = Moments(records(), torch.device("cpu"), tmp_path, scratch_gib=1e-6)
    (tmp_path / "file").write_text("")
    nowhere = Moments(records(), torch.device("cpu"), tmp_path / "file" / "private")
    blocks = counting(monkeypatch)
    for statistic in (small, nowhere):
        assert torch.equal(statistic.values(query()), statistic.values(query()))
    assert blocks == [200] * 4
