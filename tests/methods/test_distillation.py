import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtranscribe.methods.distillation import evidence, posterior_labels, reference_rows
from fedtranscribe.questions.gradients import (
    classic_distillation,
    decoupled_distillation,
    gradient_of,
)
from fedtranscribe.questions.question import Kind
from fedtranscribe.questions.rows import ImageQuery


def random_logits(*shape: int, seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def query(kind: Kind, n: int = 4, c: int = 5, k: int | None = None) -> ImageQuery:
    logits = random_logits(n, c)
    return ImageQuery(
        id="q",
        kind=kind,
        images=torch.zeros(n, 1, 28, 28, dtype=torch.uint8),
        index_sets=logits.topk(k or c).indices,
        student_logits=logits if kind is Kind.GRADIENT else None,
    )


def test_decoupled_loss_is_the_sum_of_its_two_written_out_terms():
    teacher, student = random_logits(6, 5).double(), random_logits(6, 5, seed=1).double()
    p, q = teacher.softmax(-1), student.softmax(-1)
    for i in range(6):
        r = int(p[i].argmax())
        target = p[i, r] * math.log(p[i, r] / q[i, r])
        target += (1 - p[i, r]) * math.log((1 - p[i, r]) / (1 - q[i, r]))
        others = [j for j in range(5) if j != r]
        non_target = sum(
            p[i, j] / (1 - p[i, r]) * math.log(p[i, j] * (1 - q[i, r]) / (q[i, j] * (1 - p[i, r])))
            for j in others
        )
        expected = float(target + 8 * non_target)
        assert float(decoupled_distillation(teacher, student)[i]) == pytest.approx(expected)


def test_the_non_target_term_vanishes_with_two_classes():
    teacher, student = random_logits(8, 2).double(), random_logits(8, 2, seed=1).double()
    with_term = decoupled_distillation(teacher, student, balance=8.0)
    without = decoupled_distillation(teacher, student, balance=0.0)
    torch.testing.assert_close(with_term, without)


def test_weighting_the_decoupled_terms_gives_back_classic_distillation():
    # KL = target term + (1 - p_r) * non-target term.
    teacher, student = random_logits(6, 5).double(), random_logits(6, 5, seed=1).double()
    target = decoupled_distillation(teacher, student, balance=0.0)
    non_target = decoupled_distillation(teacher, student, balance=1.0) - target
    rest = 1 - teacher.softmax(-1).amax(-1)
    torch.testing.assert_close(target + rest * non_target, classic_distillation(teacher, student))


def test_classic_gradient_with_respect_to_logits_is_the_difference_of_probabilities():
    teacher, student = random_logits(3, 6, 5), random_logits(6, 5, seed=1)
    rows = gradient_of(classic_distillation)(teacher, student)
    expected = student.double().softmax(-1) - teacher.double().softmax(-1)
    torch.testing.assert_close(rows, expected)


@given(scale=st.floats(0.1, 300), seed=st.integers(0, 50))
@settings(max_examples=30, deadline=None)
def test_gradients_stay_finite_for_extreme_teachers(scale: float, seed: int):
    teacher = scale * random_logits(2, 4, 5, seed=seed)
    student = scale * random_logits(4, 5, seed=seed + 1)
    assert torch.isfinite(gradient_of(decoupled_distillation)(teacher, student)).all()


def test_reference_rows_are_unit_rows_that_pull_towards_their_class():
    asked = query(Kind.GRADIENT)
    rows = reference_rows(asked, gradient_of(decoupled_distillation))
    assert rows.shape == (4, 5, 5)
    torch.testing.assert_close(
        rows.norm(dim=-1), torch.ones(4, 5, dtype=torch.float64), atol=1e-2, rtol=0
    )
    # Following −row raises the named class, unless the student is surer of it than the reference.
    assert asked.student_logits is not None
    full = torch.zeros(4, 5, 5, dtype=torch.float64)
    full.scatter_(2, asked.index_sets[:, None].expand(-1, 5, -1), rows)
    named = torch.stack([full[:, j, j] for j in range(5)], 1)
    unsure = asked.student_logits.softmax(-1) < 0.8
    assert unsure.any()
    assert (named[unsure] < 0).all()


@pytest.mark.parametrize("kind", [Kind.GRADIENT, Kind.VOTE, Kind.LABEL])
def test_evidence_of_a_clear_answer_names_its_class(kind: Kind):
    asked, gradient = query(kind), gradient_of(decoupled_distillation)
    truth = torch.tensor([1, 4, 0, 2])
    if kind is Kind.GRADIENT:
        values = reference_rows(asked, gradient)[torch.arange(4), truth]
    else:
        values = (asked.index_sets == truth[:, None]).double()
    found = evidence(asked, values, 4.0, 5, gradient)
    assert found.argmax(-1).tolist() == truth.tolist()


def test_label_evidence_is_the_log_likelihood_ratio_of_randomised_response():
    asked = query(Kind.LABEL, k=3)
    values = torch.zeros(4, 3).double()
    values[:, 0] = 1
    found = evidence(asked, values, 1.5, 5, gradient_of(decoupled_distillation))
    total = math.exp(1.5) + 2
    told, other = found.gather(1, asked.index_sets)[:, 0], found.gather(1, asked.index_sets)[:, 1]
    # Against a class outside the set, for which the answer is uniform over the three.
    torch.testing.assert_close(told, torch.full((4,), math.log(3 * math.exp(1.5) / total)).double())
    torch.testing.assert_close(other, torch.full((4,), math.log(3 / total)).double())


def test_posterior_labels_are_on_the_simplex_and_follow_bayes():
    logits, found = random_logits(4, 5), random_logits(4, 5, seed=2)
    labels = posterior_labels(logits, found, 1.0, 1.0)
    torch.testing.assert_close(labels.sum(-1), torch.ones(4))
    bayes = logits.softmax(-1) * found.exp()
    torch.testing.assert_close(labels, bayes / bayes.sum(-1, keepdim=True))
