import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fedtranscribe.config.facts import Facts
from fedtranscribe.errors import (
    BudgetExhaustedError,
    ConfigError,
    ModelMismatchError,
    QueryConflictError,
)
from fedtranscribe.holder.answering import Holder
from fedtranscribe.noise.sources import SeededNoise
from fedtranscribe.privacy.budget import Budget
from fedtranscribe.privacy.calibrate import EnsembleLayout
from fedtranscribe.privacy.label_events import RandomizedResponse
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.release_plan import NoisePlan
from fedtranscribe.privacy.units import Adjacency, NoiseMode, RowAnswer, Unit
from fedtranscribe.questions.kinds import of_teachers
from fedtranscribe.questions.moments import MomentsQuery
from fedtranscribe.questions.question import Answer, Kind, RawAnswer
from fedtranscribe.questions.rows import ImageQuery
from tests.mechanisms_for import local, noisy_mean_rows

CLASSES = 4


class FakeTeachers:
    """A family that is no network: it has given logits, and counts how often it is asked."""

    def __init__(self, *logits: torch.Tensor) -> None:
        self.given, self.asked = logits, 0
        self.facts = Facts(
            classes=CLASSES, channels=1, size=8, shards=len(logits), positional_ids=False
        )

    def logits(self, images: torch.Tensor) -> Iterator[torch.Tensor]:
        self.asked += 1
        for row in self.given:
            yield row.expand(1, len(images), CLASSES)


def query(kind: Kind = Kind.VOTE, name: str = "q", n: int = 3) -> ImageQuery:
    return ImageQuery(
        id=name,
        kind=kind,
        images=torch.zeros(n, 1, 8, 8, dtype=torch.uint8),
        index_sets=torch.arange(CLASSES).expand(n, CLASSES).contiguous(),
        student_logits=torch.zeros(n, CLASSES) if kind is Kind.GRADIENT else None,
    )


SURE = torch.tensor([50.0, 0, 0, 0])
BROKEN = torch.tensor([math.nan, 0, 0, 0])


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Ledger]:
    limit = Budget(1e9, 1e-5, Unit.RECORD, Adjacency.ZERO_OUT)
    with Ledger.open(tmp_path / "book.sqlite", "data", limit) as ledger:
        yield ledger


QUIET = local(1e-4)


def holder(book: Ledger, teachers: FakeTeachers, **sources) -> Holder:
    return Holder(of_teachers(teachers), book, "run", positional_ids=False, **sources)


def test_an_answer_is_charged_once_and_replayed_for_ever(book: Ledger):
    teachers = FakeTeachers(SURE, SURE)
    asked = holder(book, teachers)
    first, second = asked.answer(query(), QUIET), asked.answer(query(), QUIET)
    assert teachers.asked == 1
    assert torch.equal(first.values, second.values), "noise is never drawn twice for one query"
    assert first.head == second.head == (book.head.sequence, book.head.hash)
    assert [release.rows for release in book.releases()] == [3]


def test_the_ledger_is_charged_before_a_teacher_is_asked(book: Ledger):
    class Fragile(FakeTeachers):
        def logits(self, images: torch.Tensor) -> Iterator[torch.Tensor]:
            assert [release.rows for release in book.releases()] == [3]
            raise RuntimeError("a teacher failed")
            yield

    with pytest.raises(RuntimeError, match="a teacher failed"):
        holder(book, Fragile(SURE)).answer(query(), QUIET)
    # Asked again, the reservation is still there, and is not charged a second time.
    holder(book, FakeTeachers(SURE)).answer(query(), QUIET)
    assert len(book.releases()) == 1


def test_a_broken_teacher_is_silent_and_counts(book: Ledger):
    answer = holder(book, FakeTeachers(SURE, BROKEN)).answer(query(), QUIET)
    expected = torch.tensor([0.5, 0, 0, 0]).expand(3, CLASSES)
    torch.testing.assert_close(answer.values, expected, atol=1e-2, rtol=0)


def test_a_gradient_answer_points_from_student_to_teacher(book: Ledger):
    asked = holder(book, FakeTeachers(SURE, SURE))
    values = asked.answer(query(Kind.GRADIENT), QUIET).values
    assert (values[:, 0] < 0).all()
    assert (values[:, 1:] > 0).all()
    torch.testing.assert_close(values.norm(dim=-1), torch.ones(3), atol=1e-2, rtol=0)


def test_label_answers_are_one_hot(book: Ledger):
    asked = holder(book, FakeTeachers(SURE, SURE, SURE), noise=SeededNoise(0))
    values = asked.answer(query(Kind.LABEL), local(20.0)).values
    assert torch.equal(values, torch.eye(CLASSES)[[0, 0, 0]])


def test_another_kind_shape_or_class_is_refused_before_anything_is_booked(book: Ledger):
    asked = holder(book, FakeTeachers(SURE))
    with pytest.raises(ConfigError, match="gradient, label, vote queries, got moments"):
        asked.answer(
            MomentsQuery("m", Kind.MOMENTS, torch.zeros(2), torch.ones(2, 1), "scatter", 0), QUIET
        )
    sets = torch.tensor([[0]])
    large = ImageQuery("x", Kind.VOTE, torch.zeros(1, 1, 9, 9).byte(), sets)
    with pytest.raises(ModelMismatchError, match="shape"):
        asked.answer(large, QUIET)
    strange = ImageQuery("y", Kind.VOTE, torch.zeros(1, 1, 8, 8).byte(), sets + 9)
    with pytest.raises(ModelMismatchError, match="4 classes"):
        asked.answer(strange, QUIET)
    assert book.releases() == []


@pytest.mark.parametrize("mode", [NoiseMode.CENTRAL, NoiseMode.SECAGG])
def test_a_label_has_no_noise_that_somebody_else_could_add(book: Ledger, mode: NoiseMode):
    failures = (0, 1) if mode is NoiseMode.SECAGG else ()
    with pytest.raises(ConfigError, match="local with label answers"):
        holder(book, FakeTeachers(SURE)).answer(
            query(Kind.LABEL), NoisePlan(mode, 1.0, 3, *failures)
        )
    assert book.releases() == []


def test_the_form_of_an_answer_follows_from_its_plan(book: Ledger):
    asked = holder(book, FakeTeachers(SURE))
    assert isinstance(asked.answer(query(name="a"), QUIET), Answer)
    central, masked = (
        NoisePlan(NoiseMode.CENTRAL, 1.0, 3),
        NoisePlan(NoiseMode.SECAGG, 1.0, 3, 0, 1),
    )
    raw = asked.answer(query(name="b"), central)
    assert isinstance(raw, RawAnswer)
    assert torch.allclose(raw.values, torch.tensor([1.0, 0, 0, 0]).expand(3, CLASSES))
    with pytest.raises(ConfigError, match="under masks only"):
        asked.answer(query(name="c"), masked)
    assert asked.summand(query(name="c"), masked).values.dtype == torch.int64
    with pytest.raises(ConfigError, match="secagg"):
        asked.summand(query(name="d"), central)


def test_a_query_stays_bound_to_its_noise_and_to_who_asks(book: Ledger):
    holder(book, FakeTeachers(SURE)).answer(query(), QUIET)
    with pytest.raises(QueryConflictError):
        holder(book, FakeTeachers(SURE)).answer(query(), local(2e-4))
    with pytest.raises(QueryConflictError):
        holder(book, FakeTeachers(SURE), terms="another").answer(query(), QUIET)
    assert len(book.releases()) == 1


def test_an_exhausted_budget_asks_no_teacher(tmp_path: Path):
    limit = Budget(1.0, 1e-5, Unit.RECORD, Adjacency.ZERO_OUT)
    teachers = FakeTeachers(SURE)
    with Ledger.open(tmp_path / "small.sqlite", "data", limit) as small:
        with pytest.raises(BudgetExhaustedError):
            holder(small, teachers).answer(query(), local(0.1))
        assert teachers.asked == 0
        assert small.releases() == []


def test_what_is_booked_counts_the_teachers_that_there_are(book: Ledger):
    holder(book, FakeTeachers(SURE, SURE)).answer(query(), local(1.0))
    booked = book.releases()[0].event(Unit.RECORD, Adjacency.ZERO_OUT)
    planned = noisy_mean_rows(EnsembleLayout(2), 1.0, RowAnswer.VOTE)
    assert booked == planned.release(3, positional_ids=False).event(Unit.RECORD, Adjacency.ZERO_OUT)


def test_a_smaller_index_set_is_booked_as_the_dearer_answer_that_it_is(book: Ledger):
    asked, whole = holder(book, FakeTeachers(SURE)), query(Kind.LABEL)
    small = ImageQuery("s", Kind.LABEL, whole.images, whole.index_sets[:, :2].contiguous())
    asked.answer(small, local(1.0))
    event = book.releases()[0].event(Unit.RECORD, Adjacency.ZERO_OUT)
    assert isinstance(event, RandomizedResponse)
    assert event.classes == 2
