"""Rounds of gradients: from the moments' student to a better one."""

import math
from dataclasses import replace

import pytest
import torch

from fedtranscribe.config import DpsdSettings
from fedtranscribe.methods.descent import DescentMethod
from fedtranscribe.methods.method import Combined
from fedtranscribe.methods.moments import MomentsMethod
from fedtranscribe.methods.sums import SumsMethod
from fedtranscribe.models import Generator, build
from fedtranscribe.models.fixed_features import BIAS
from fedtranscribe.questions.descent import DescentQuery
from fedtranscribe.questions.moments import MomentsQuery, MomentSums

CLASSES, ROUNDS = 3, 4


@pytest.fixture
def records() -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of norm one, and labels that a linear classifier can tell, but ridge regression not.

    The third class lies between the two others.
    """
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(900) % CLASSES
    at = torch.tensor([-1.0, 1.0, 0.0])[labels]
    rows = 0.3 * torch.randn(900, 501, generator=rng, dtype=torch.float64)
    rows[:, 0] += 25 * at
    rows[:, -1] = 5.0
    return rows / rows.norm(dim=1, keepdim=True), labels


def method(*, balanced: bool = False) -> SumsMethod:
    torch.manual_seed(0)
    student, rng = build("scatter", CLASSES, 1, 28), torch.Generator().manual_seed(0)
    network, settings = Generator(8, 1, 28, 8), DpsdSettings()
    moments = MomentsMethod(
        student, network, settings=settings, rng=rng, run="run", balanced=balanced
    )
    return SumsMethod(moments, DescentMethod(moments, ROUNDS, "run"))


def answered(records, query) -> Combined:
    rows, labels = records
    one_hot = torch.eye(CLASSES).double()[labels]
    if isinstance(query, DescentQuery):
        missed = (rows @ query.head.double()).softmax(1) - one_hot
        missed = missed * query.weights.double()[labels][:, None]
        missed = missed / missed.norm(dim=1, keepdim=True).clamp_min(1)
        return Combined(query.id, (rows.T @ missed).flatten()[None], 1e-3)
    assert isinstance(query, MomentsQuery)
    sums = MomentSums(rows.T @ rows, rows.T @ one_hot if query.classes else None)
    at = torch.triu_indices(*sums.second.shape).unbind()
    parts = [sums.second[at], *([] if sums.by_class is None else [sums.by_class.flatten()])]
    return Combined(query.id, torch.cat(parts)[None], 1e-3)


def loss(asking: SumsMethod, records) -> float:
    rows, labels = records
    said = rows.float() @ asking.student.head.weight.detach().T
    return float(torch.nn.functional.cross_entropy(said, labels))


def test_rounds_go_on_from_the_moments_and_lower_the_loss(records):
    asking, losses, names = method(), [], []
    while not asking.finished:
        query = asking.ask()
        names.append(query.id)
        asking.learn(query, answered(records, query))
        losses.append(loss(asking, records))
    assert names == [f"run/moments-{i}" for i in range(2)] + [
        f"run/descent-{i}" for i in range(ROUNDS)
    ]
    assert (asking.round, asking.rows, asking.part) == (6, 6, 6)
    assert losses[-2] < losses[2] < losses[1], "each round is a step down"
    assert losses[-1] < losses[1]


def test_the_student_is_the_mean_of_the_later_heads(records):
    asking, heads = method(), []
    while not asking.finished:
        query = asking.ask()
        if isinstance(query, DescentQuery):
            heads.append(query.head.double())
        asking.learn(query, answered(records, query))
    # The fourth head is nobody's question; it follows from the mean of the last two.
    mean = asking.student.head.weight.detach().double().T / asking.logit_scale
    fourth = 2 * mean - heads[3]
    gradient = answered(records, asking_at(heads[3], query)).values[0].reshape(501, CLASSES)
    rows, _ = records
    step = heads[3] - fourth
    assert torch.allclose(rows.T @ rows @ step, 6.0 * gradient, atol=1.0)
    assert float(step.norm()) > 0


def test_the_student_is_made_as_sure_as_the_later_answers_say(records):
    asking, slopes = method(), []
    while not asking.finished:
        assert asking.logit_scale is None
        query = asking.ask()
        answer = answered(records, query)
        if isinstance(query, DescentQuery):
            gradient = answer.values[0].reshape(query.head.shape)
            slopes.append(float((query.head.double() * gradient).sum()) / len(records[0]))
        asking.learn(query, answer)
    expected = torch.tensor(-sum(slopes[2:]) / 2).exp()
    assert asking.logit_scale == pytest.approx(float(expected), rel=1e-3)
    assert asking.logit_scale > 1
    surer = loss(asking, records)
    with torch.no_grad():
        asking.student.head.weight /= asking.logit_scale
    assert surer < loss(asking, records)


def overlapping(rare: int, common: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Records of two classes that a line tells apart in part, the rare one last."""
    rng = torch.Generator().manual_seed(seed)
    labels = (torch.arange(common + rare) >= common).long()
    rows = torch.zeros(len(labels), 501, dtype=torch.float64)
    rows[:, 0] = 2 * labels + torch.randn(len(labels), generator=rng, dtype=torch.float64)
    rows[:, 1] = 2.0
    rows /= rows.norm(dim=1, keepdim=True)
    rows[:, -1] = BIAS
    return rows / math.sqrt(1 + BIAS**2), labels


def test_records_of_a_rare_class_count_more():
    records, recalls = overlapping(40, 860, seed=1), {}
    rows, labels = overlapping(500, 500, seed=2)
    for balanced in (False, True):
        asking = method(balanced=balanced)
        while not asking.finished:
            query = asking.ask()
            asking.learn(query, answered(records, query))
        said = (rows.float() @ asking.student.head.weight.detach().T)[:, :2].argmax(1)
        recalls[balanced] = [float((said[labels == c] == c).float().mean()) for c in (0, 1)]
        weights = [math.sqrt(40 / 860), 1.0, 1.0] if balanced else [1.0, 1.0, 1.0]
        # The third class has no records: what is never seen is no measure for the others.
        assert query.weights.tolist() == pytest.approx(weights, rel=0.01)
    assert recalls[False][1] < 0.5
    assert recalls[True][1] > recalls[False][1] + 0.15
    assert recalls[True][0] > 0.8


def asking_at(head: torch.Tensor, query: DescentQuery) -> DescentQuery:
    return replace(query, head=head.float())


@pytest.mark.parametrize("after", range(1, 6))
def test_a_stored_state_goes_on_as_if_nothing_had_happened(records, after):
    asking = method()
    for _ in range(after):
        query = asking.ask()
        asking.learn(query, answered(records, query))
    again = method()
    again.load_state(asking.state())
    assert again.round == after
    while not asking.finished:
        query, other = asking.ask(), again.ask()
        assert query.digest() == other.digest()
        asking.learn(query, answered(records, query))
        again.learn(other, answered(records, other))
    assert torch.equal(asking.student.head.weight, again.student.head.weight)
    assert asking.logit_scale == again.logit_scale is not None


def test_noise_alone_gives_a_finite_student():
    asking, rng = method(), torch.Generator().manual_seed(0)
    while not asking.finished:
        query = asking.ask()
        noise = 100 * torch.randn(1, query.width, generator=rng).double()
        asking.learn(query, Combined(query.id, noise, 100.0))
    assert bool(torch.isfinite(asking.student.head.weight).all())
