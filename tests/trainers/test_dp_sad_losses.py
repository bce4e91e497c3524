import math
from dataclasses import replace

import pytest
import torch
from sad_runs import TINY
from torch import Tensor, nn

from fedtranscribe.models.diffusion import Schedule, guided_noise, posterior_mean
from fedtranscribe.trainers.denoising import noise_losses
from fedtranscribe.trainers.dp_sad import (
    Rows,
    StudentLoss,
    concatenated,
    discriminator_losses,
    distillation_rows,
)
from fedtranscribe.trainers.records import Draws, SharedDraws

SCHEDULE = Schedule(500, 1e-4, 0.028)
PLAIN = replace(TINY, adversarial_weight=0.0)


class Known(nn.Module):
    """Guesses 1 for every label but the null one, where it guesses 0; remembers what it saw."""

    null_label = 2

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Tensor, Tensor, Tensor]] = []

    def forward(self, x: Tensor, t: Tensor, labels: Tensor) -> Tensor:
        self.seen.append((x, t, labels))
        return (labels != self.null_label).float().view(-1, 1, 1, 1).expand_as(x)


class Judge(nn.Module):
    """The mean over the first channel, times a slope, as a logit."""

    def __init__(self, slope: float = 1.0) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(slope))
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor, t: Tensor, labels: Tensor) -> Tensor:
        self.seen.append(labels)
        return self.slope * x[:, 0].mean((1, 2))


def flat(value: float, channels: int = 1) -> Tensor:
    return torch.full((1, channels, 2, 2), value)


def hand_rows(taught: float = 0.5, true: float = 0.2, weight: float = 1.0) -> Rows:
    return Rows(
        x_r=flat(1.0),
        r=torch.tensor([3]),
        labels=torch.tensor([0]),
        judged=torch.tensor([1]),
        taught=flat(taught),
        true=flat(true),
        keep=torch.tensor([1.0]),
        step=torch.tensor([0.3]),
        weight=torch.tensor([weight]),
    )


def rows_of(x_0: Tensor, labels: Tensor, draws: Draws, settings=TINY) -> Rows:
    return distillation_rows(settings, Known(), True, x_0, labels, draws)  # type: ignore[arg-type]


def draws(rows: int, seed: int = 0) -> SharedDraws:
    return SharedDraws(torch.Generator().manual_seed(seed), rows)


# ---------------------------------------------------------------- the image of the next step


@pytest.mark.parametrize("r", [1, 2, 57, 499, 500])
def test_the_true_noise_gives_the_posterior_mean_of_the_forward_process(r: int):
    rng = torch.Generator().manual_seed(r)
    x_0 = torch.randn(1, 1, 4, 4, generator=rng, dtype=torch.float64)
    z, t = torch.randn(x_0.shape, generator=rng, dtype=torch.float64), torch.tensor([r])
    x_r = SCHEDULE.noisy(x_0, t, z)
    beta, now, before = SCHEDULE.betas[r - 1], SCHEDULE.alpha_bar[r], SCHEDULE.alpha_bar[r - 1]
    closed_form = (
        before.sqrt() * beta / (1 - now) * x_0 + (1 - beta).sqrt() * (1 - before) / (1 - now) * x_r
    )
    torch.testing.assert_close(posterior_mean(x_r, z, *SCHEDULE.posterior(t)), closed_form)
    if r == 1:
        torch.testing.assert_close(closed_form, x_0)


def test_guidance_is_one_plus_w_with_the_label_less_w_without():
    teacher = Known()
    x, t, labels = torch.zeros(2, 1, 2, 2), torch.tensor([1, 9]), torch.tensor([0, 2])
    guess = guided_noise(teacher, x, t, labels, 1.8)  # type: ignore[arg-type]
    # 2.8 · 1 − 1.8 · 0, and nothing at all for the row without a label.
    assert guess.mean((1, 2, 3)).tolist() == pytest.approx([2.8, 0.0])
    assert [seen.tolist() for _, _, seen in teacher.seen] == [[0, 2], [2, 2]]
    guided_noise(teacher, x, t, labels, 0.0)  # type: ignore[arg-type]
    assert len(teacher.seen) == 3


# ---------------------------------------------------------------- records at random steps


def test_steps_are_in_1_to_t_and_every_one_of_them_is_met():
    settings = replace(TINY, schedule=Schedule(7, 0.1, 0.5))
    rows = rows_of(torch.zeros(2000, 1, 2, 2), torch.zeros(2000).long(), draws(2000), settings)
    assert set(rows.r.tolist()) == set(range(1, 8))
    counts = rows.r.bincount()[1:] / 2000
    assert float((counts - 1 / 7).abs().max()) < 0.03


def test_x_r_comes_from_the_forward_process_and_both_targets_are_of_step_r_minus_1():
    schedule = Schedule(5, 0.1, 0.5)
    x_0 = torch.full((400, 1, 8, 8), 0.5)
    rows = rows_of(x_0, torch.zeros(400).long(), draws(400), replace(TINY, schedule=schedule))
    for r in range(1, 6):
        chosen, kept = rows.r == r, float(schedule.alpha_bar[r])
        x_r = rows.x_r[chosen]
        assert float(x_r.mean()) == pytest.approx(0.5 * math.sqrt(kept), abs=0.06)
        assert float(x_r.std()) == pytest.approx(math.sqrt(1 - kept), rel=0.05)
        # E[x_{r-1} | x_r, x_0] has the mean of step r − 1: √ᾱ_{r−1} x_0.
        before = float(schedule.alpha_bar[r - 1])
        assert float(rows.true[chosen].mean()) == pytest.approx(0.5 * math.sqrt(before), abs=0.06)
    at_1 = rows.r == 1
    torch.testing.assert_close(rows.true[at_1], x_0[at_1])
    # The teacher guessed a noise of 2.8 at (x_r, r).
    expected = posterior_mean(rows.x_r, torch.full_like(x_0, 2.8), rows.keep, rows.step)
    torch.testing.assert_close(rows.taught, expected)


@pytest.mark.parametrize("conditioned", [True, False])
def test_conditioning_switches_say_who_is_told_the_label(conditioned: bool):
    settings = replace(TINY, student_conditioning=conditioned)
    rows = rows_of(torch.zeros(3, 1, 2, 2), torch.tensor([0, 1, 0]), draws(3), settings)
    assert rows.labels.tolist() == ([0, 1, 0] if conditioned else [2, 2, 2])
    assert rows.judged.tolist() == [0, 1, 0]
    settings = replace(TINY, discriminator_conditioning=conditioned)
    rows = rows_of(torch.zeros(3, 1, 2, 2), torch.tensor([0, 1, 0]), draws(3), settings)
    assert rows.judged.tolist() == ([0, 1, 0] if conditioned else [2, 2, 2])
    assert rows.labels.tolist() == [0, 1, 0]


def test_a_teacher_of_unlabelled_images_is_asked_without_labels_and_guidance():
    teacher, labels = Known(), torch.tensor([0, 1, 0])
    rows = distillation_rows(TINY, teacher, False, torch.zeros(3, 1, 2, 2), labels, draws(3))  # type: ignore[arg-type]
    assert [labels.tolist() for _, _, labels in teacher.seen] == [[2, 2, 2]]
    assert rows.labels.tolist() == [0, 1, 0]


def test_dropped_labels_are_dropped_for_everybody():
    settings = replace(TINY, student_label_drop=0.5)
    rows = rows_of(torch.zeros(400, 1, 2, 2), torch.zeros(400).long(), draws(400), settings)
    dropped = rows.labels == 2
    assert float(dropped.float().mean()) == pytest.approx(0.5, abs=0.1)
    assert torch.equal(rows.judged, rows.labels)
    noise = (rows.keep.view(-1, 1, 1, 1) * rows.x_r - rows.taught)[:, 0, 0, 0] / rows.step
    assert noise[dropped].abs().max() < 1e-3
    assert (noise[~dropped] - 2.8).abs().max() < 1e-3


# ---------------------------------------------------------------- the student's loss


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        # x_θ = 1 · 1 − 0.3 · 1 = 0.7
        ({"data_weight": 0.0}, 0.2**2),
        ({"teacher_weight": 0.0}, 0.5**2),
        ({}, 0.2**2 + 0.5**2),
        ({"teacher_weight": 2.0, "data_weight": 3.0}, 2 * 0.2**2 + 3 * 0.5**2),
    ],
)
def test_squared_errors_are_those_of_a_hand(weights: dict, expected: float):
    loss = StudentLoss(replace(PLAIN, **weights), None)
    losses = loss(Known(), *hand_rows())  # type: ignore[arg-type]
    assert losses.tolist() == pytest.approx([expected])
    heavy = loss(Known(), *hand_rows(weight=10.0))  # type: ignore[arg-type]
    assert heavy.tolist() == pytest.approx([10 * expected])


@pytest.mark.parametrize("way", ["batch", "channels"])
@pytest.mark.parametrize("weight", [0.0, 0.5, 4.0])
def test_the_adversarial_term_does_not_saturate(weight: float, way: str):
    settings = replace(TINY, adversarial_weight=weight, concatenation=way)
    judge = Judge(slope=2.0) if weight else None
    losses = StudentLoss(settings, judge)(Known(), *hand_rows())  # type: ignore[arg-type]
    # The verdict on x_θ = 0.7, which comes first in its pair, is 1.4: −log sigmoid(1.4).
    expected = 0.2**2 + 0.5**2 - weight * math.log(1 / (1 + math.exp(-1.4)))
    assert losses.tolist() == pytest.approx([expected])
    if judge is not None:
        assert [seen.tolist() for seen in judge.seen] == [[1]]


def test_weighted_as_noise_all_steps_are_errors_of_the_noise():
    x_0 = torch.rand(50, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    rows = {
        weighting: rows_of(
            x_0, torch.zeros(50).long(), draws(50), replace(PLAIN, weighting=weighting)
        )
        for weighting in ("noise", "image")
    }
    noise, image = rows["noise"], rows["image"]
    losses = StudentLoss(replace(PLAIN, data_weight=0.0), None)
    # The student guesses 1, the teacher 2.8.
    values = losses(Known(), *noise)  # type: ignore[arg-type]
    torch.testing.assert_close(values, torch.full((50,), 1.8**2), rtol=1e-3, atol=0.0)
    small = losses(Known(), *image)  # type: ignore[arg-type]
    torch.testing.assert_close(small, 1.8**2 * image.step.square(), rtol=1e-3, atol=0.0)


def test_the_teacher_learns_from_the_mean_squared_error_of_the_noise():
    z = flat(0.25)
    losses = noise_losses(Known(), flat(0.0), torch.tensor([1]), torch.tensor([0]), z)  # type: ignore[arg-type]
    assert losses.tolist() == pytest.approx([0.75**2])


# ---------------------------------------------------------------- the discriminator's


def test_the_discriminator_s_loss_is_the_cross_entropy_of_both_verdicts():
    step, label = torch.tensor([3]), torch.tensor([1])
    losses = discriminator_losses(Judge(2.0), flat(0.5), flat(0.7), step, label)  # type: ignore[arg-type]
    real, fake = 1 / (1 + math.exp(-1.0)), 1 / (1 + math.exp(-1.4))
    assert losses.tolist() == pytest.approx([-math.log(real) - math.log(1 - fake)])


def test_the_players_pull_apart():
    """What helps the discriminator hurts the student; both descend losses of their own."""
    settings = replace(TINY, teacher_weight=0.0, data_weight=0.0)
    taught, output = flat(0.2), flat(0.9).requires_grad_()
    judge = Judge(slope=0.5)
    judged = discriminator_losses(judge, taught, output, torch.tensor([1]), torch.tensor([0]))  # type: ignore[arg-type]
    (slope,) = torch.autograd.grad(judged.sum(), judge.slope)
    # The student's image is the brighter one: a smaller slope takes it for what it is.
    assert float(slope) > 0
    loss = StudentLoss(settings, judge).of_output(hand_rows(), output)  # type: ignore[arg-type]
    (image,) = torch.autograd.grad(loss.sum(), output)
    # With a positive slope, brighter passes for the teacher's: descending makes it brighter.
    assert bool((image < 0).all())


def test_pairs_are_shown_in_both_orders():
    taught, output = flat(0.0), flat(1.0)
    assert concatenated(TINY, taught, output) == (taught, output)
    first, second = concatenated(replace(TINY, concatenation="channels"), taught, output)
    assert (first[0, :, 0, 0].tolist(), second[0, :, 0, 0].tolist()) == ([0, 1], [1, 0])
