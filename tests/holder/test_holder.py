import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fedtranscribe.exchange import AnswerKind, QueryBatch

from fedtranscribe.errors import BudgetExhaustedError, ConfigError, ModelMismatchError
from fedtranscribe.holder import Holder
from fedtranscribe.mechanisms import (
    ExponentialVoteLabels,
    NoisyMeanRows,
    SeededNoise,
    TopKRandomizedResponse,
)
from fedtranscribe.privacy.budget import Budget
from fedtranscribe.privacy.calibrate import EnsembleLayout, RowAnswer
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.units import Adjacency, Unit

CLASSES = 4


class FakeTeachers:
    """Two teachers with given logits, which count how often they are asked."""

    def __init__(self, *logits: torch.Tensor) -> None:
        self.manifest = SimpleNamespace(channels=1, size=8, classes=CLASSES)
        self.given, self.shards, self.asked = logits, len(logits), 0

    def logits(self, images: torch.Tensor) -> Iterator[torch.Tensor]:
        self.asked += 1
        for row in self.given:
            yield row.expand(1, len(images), CLASSES)


def query(kind: AnswerKind = AnswerKind.VOTE, name: str = "q", n: int = 3) -> QueryBatch:
    return QueryBatch(
        id=name,
        kind=kind,
        images=torch.zeros(n, 1, 8, 8, dtype=torch.uint8),
        index_sets=torch.arange(CLASSES).expand(n, CLASSES).contiguous(),
        student_logits=torch.zeros(n, CLASSES) if kind is AnswerKind.GRADIENT else None,
    )


SURE = torch.tensor([50.0, 0, 0, 0])
BROKEN = torch.tensor([math.nan, 0, 0, 0])


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Ledger]:
    limit = Budget(1e9, 1e-5, Unit.RECORD, Adjacency.ZERO_OUT)
    with Ledger.open(tmp_path / "book.sqlite", "data", limit) as ledger:
        yield ledger


def holder(book: Ledger, teachers: FakeTeachers, answer=RowAnswer.VOTE, std=1e-4) -> Holder:
    mechanism = NoisyMeanRows(EnsembleLayout(teachers.shards), std, answer)
    return Holder(teachers, mechanism, book, "run", positional_ids=False)


def test_an_answer_is_charged_once_and_replayed_for_ever(book: Ledger):
    teachers = FakeTeachers(SURE, SURE)
    asked = holder(book, teachers)
    first, second = asked.answer(query()), asked.answer(query())
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
        holder(book, Fragile(SURE)).answer(query())
    # Asked again, the reservation is still there, and is not charged a second time.
    holder(book, FakeTeachers(SURE)).answer(query())
    assert len(book.releases()) == 1


def test_a_broken_teacher_is_silent_and_counts(book: Ledger):
    answer = holder(book, FakeTeachers(SURE, BROKEN)).answer(query())
    expected = torch.tensor([0.5, 0, 0, 0]).expand(3, CLASSES)
    torch.testing.assert_close(answer.values, expected, atol=1e-2, rtol=0)


def test_a_gradient_answer_points_from_student_to_teacher(book: Ledger):
    asked = holder(book, FakeTeachers(SURE, SURE), RowAnswer.GRADIENT)
    values = asked.answer(query(AnswerKind.GRADIENT)).values
    assert (values[:, 0] < 0).all()
    assert (values[:, 1:] > 0).all()
    torch.testing.assert_close(values.norm(dim=-1), torch.ones(3), atol=1e-2, rtol=0)


def test_label_answers_are_one_hot(book: Ledger):
    asked = Holder(
        FakeTeachers(SURE, SURE, SURE),
        ExponentialVoteLabels(20.0, CLASSES),
        book,
        "run",
        positional_ids=False,
        noise=SeededNoise(0),
    )
    values = asked.answer(query(AnswerKind.LABEL)).values
    assert torch.equal(values, torch.eye(CLASSES)[[0, 0, 0]])


def test_another_kind_shape_or_class_is_refused_before_anything_is_booked(book: Ledger):
    asked = holder(book, FakeTeachers(SURE))
    with pytest.raises(ConfigError, match="vote"):
        asked.answer(query(AnswerKind.LABEL))
    large = QueryBatch("x", AnswerKind.VOTE, torch.zeros(1, 1, 9, 9).byte(), torch.tensor([[0]]))
    with pytest.raises(ModelMismatchError, match="shape"):
        asked.answer(large)
    strange = QueryBatch("y", AnswerKind.VOTE, torch.zeros(1, 1, 8, 8).byte(), torch.tensor([[9]]))
    with pytest.raises(ModelMismatchError, match="4 classes"):
        asked.answer(strange)
    assert book.releases() == []


def test_an_exhausted_budget_asks_no_teacher(tmp_path: Path):
    limit = Budget(1.0, 1e-5, Unit.RECORD, Adjacency.ZERO_OUT)
    teachers = FakeTeachers(SURE)
    with Ledger.open(tmp_path / "small.sqlite", "data", limit) as small:
        with pytest.raises(BudgetExhaustedError):
            holder(small, teachers, std=0.1).answer(query())
        assert teachers.asked == 0
        assert small.releases() == []


def test_a_mechanism_for_more_teachers_than_there_are_is_refused(book: Ledger):
    mechanism = NoisyMeanRows(EnsembleLayout(250), 1.0, RowAnswer.VOTE)
    with pytest.raises(ConfigError, match="2 shards, got one for 250"):
        Holder(FakeTeachers(SURE, SURE), mechanism, book, "run", positional_ids=False)
    with pytest.raises(ConfigError, match="2 shards, got one for 1"):
        Holder(
            FakeTeachers(SURE, SURE),
            TopKRandomizedResponse(1.0, CLASSES),
            book,
            "run",
            positional_ids=False,
        )


def test_a_smaller_index_set_than_booked_is_refused(book: Ledger):
    asked = Holder(
        FakeTeachers(SURE),
        TopKRandomizedResponse(1.0, CLASSES),
        book,
        "run",
        positional_ids=False,
    )
    whole = query(AnswerKind.LABEL)
    small = QueryBatch("s", AnswerKind.LABEL, whole.images, whole.index_sets[:, :2].contiguous())
    with pytest.raises(ConfigError, match="k=4"):
        asked.answer(small)
    assert book.releases() == []
