"""Both flaws of Eq. 17, shown on small networks, and that the sound step has neither.

A sound step clips one record's gradient over the student's parameters (`DpSgdStep`). Eq. 17 clips
the gradient of the student's output image and multiplies by the Jacobian of that image.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from sad_runs import TINY
from torch import Tensor, nn

from fedtranscribe.models.diffusion import Schedule
from fedtranscribe.noise.sources import SeededNoise
from fedtranscribe.privacy.diffusion import DpSgdPlan
from fedtranscribe.trainers.dp_sad import Rows, StudentLoss, output_of
from fedtranscribe.trainers.dp_sad_as_printed import add_published, published_step
from fedtranscribe.trainers.per_sample import Backend
from fedtranscribe.trainers.private_steps import DpSgdStep

C, STEPS = 0.5, 500
PIXELS = 16
LOSS = StudentLoss(replace(TINY, adversarial_weight=0.0), None)


class Affine(nn.Module):
    """Every pixel of the guess is an affine function of the private input."""

    def __init__(self, weight: float = 0.1) -> None:
        super().__init__()
        self.layer = nn.Linear(PIXELS, PIXELS)
        rng = torch.Generator().manual_seed(2)
        with torch.no_grad():
            self.layer.weight.copy_(weight * torch.randn(PIXELS, PIXELS, generator=rng))
            self.layer.bias.zero_()

    def forward(self, x: Tensor, t: Tensor, labels: Tensor) -> Tensor:
        return self.layer(x.flatten(1)).view_as(x)


class TwoLayers(nn.Module):
    """The gradient of the first layer grows with the weights of the second."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.first, self.second = Affine(), Affine(weight)
        self.second.requires_grad_(False)

    def forward(self, x: Tensor, t: Tensor, labels: Tensor) -> Tensor:
        return self.second(self.first(x, t, labels), t, labels)


def private_rows(scale: float = 1.0, count: int = 1, seed: int = 0) -> Rows:
    """Records whose errors are larger than C wherever the student guesses nearly nothing."""
    rng = torch.Generator().manual_seed(seed)
    x = scale * torch.randn(count, 1, 4, 4, generator=rng)
    ones, label = torch.ones(count), torch.zeros(count).long()
    far = 100 * torch.randn(x.shape, generator=rng)
    return Rows(x, label + 1, label, label, far, far, ones, ones, ones)


def output_and_loss(student: nn.Module, rows: Rows) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    return output_of(student, rows), partial(LOSS.of_output, rows)  # type: ignore[arg-type]


def published_sum(student: nn.Module, rows: Rows) -> list[Tensor]:
    """What the rows add up to in Eq. 17, before any noise."""
    student.zero_grad()
    add_published(*output_and_loss(student, rows), C)
    return [p.grad.clone() for p in student.parameters() if p.grad is not None]


def published_gradient(student: nn.Module, rows: list[Rows], sigma: float) -> list[Tensor]:
    """ḡ with noise; one record expected."""
    optimiser = torch.optim.SGD(student.parameters(), lr=1e-9)
    plan = DpSgdPlan(records=100, batch=1, steps=1, noise_multiplier=sigma, clip=C)
    outputs = (output_and_loss(student, each) for each in rows)
    published_step(student, outputs, optimiser, SeededNoise(0), plan, Schedule(STEPS))
    return [p.grad.clone() for p in student.parameters() if p.grad is not None]


def sound_gradient(student: nn.Module, rows: Rows | None, sigma: float) -> list[Tensor]:
    """The same from a sound step; one record expected."""
    plan = DpSgdPlan(records=100, batch=1, steps=1, noise_multiplier=sigma, clip=C)
    optimiser = torch.optim.SGD(student.parameters(), lr=1e-9)
    step = DpSgdStep(student, plan, LOSS, Backend.FUNCTIONAL, SeededNoise(0), 100)
    indices = torch.arange(0 if rows is None else len(rows.r))

    def draw(picked: Tensor) -> tuple[Tensor, ...]:
        assert rows is not None
        return tuple(tensor[picked].unsqueeze(1) for tensor in rows)

    step.step(optimiser, draw, indices)
    return [p.grad.clone() for p in student.parameters() if p.grad is not None]


def norm(gradients: list[Tensor]) -> float:
    return float(torch.cat([g.flatten() for g in gradients]).double().norm())


def alike(one: Tensor, other: Tensor) -> float:
    """|cosine| of two images."""
    return float(nn.functional.cosine_similarity(one.flatten(), other.flatten(), dim=0).abs())


# ---------------------------------------------------------------- no bound on what a record adds


def test_in_image_space_the_clipping_itself_is_right():
    """The flaw is not the clipping: where the Jacobian is the identity, C does bound a record."""

    class Image(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.image = nn.Parameter(torch.zeros(1, 1, 4, 4))

        def forward(self, x: Tensor, t: Tensor, labels: Tensor) -> Tensor:
            return self.image.expand_as(x)

    assert norm(published_sum(Image(), private_rows())) == pytest.approx(C)
    # Only what is above C is scaled.
    near = private_rows()._replace(taught=torch.full((1, 1, 4, 4), 1e-3))
    near = near._replace(true=near.taught, x_r=torch.zeros(1, 1, 4, 4))
    assert 0 < norm(published_sum(Image(), near)) < C


@pytest.mark.parametrize("scale", [1.0, 1e2, 1e4, 1e6])
def test_one_record_adds_more_than_any_bound_as_its_input_grows(scale: float):
    rows = private_rows(scale)
    added = norm(published_sum(Affine(), rows))
    # CLIP(g) ⊗ x for the weights, CLIP(g) for the biases; the clipped norm is C.
    expected = C * (float(rows.x_r.norm()) ** 2 + 1) ** 0.5
    assert added == pytest.approx(expected, rel=1e-4)
    assert added > 3 * scale * C
    assert norm(sound_gradient(Affine(), rows, 1e-9)) <= C


@pytest.mark.parametrize("weight", [1.0, 1e2, 1e4])
def test_one_record_adds_more_than_any_bound_as_the_weights_grow(weight: float):
    """Within the student itself: nothing keeps its weights from growing while it is trained."""
    student, rows = TwoLayers(weight), private_rows()
    assert norm(published_sum(student, rows)) > weight * C
    assert norm(sound_gradient(student, rows, 1e-9)) <= C


def test_the_sound_sum_moves_by_c_at_most_whichever_record_is_nulled():
    student, rows = Affine(), private_rows(scale=1e4, count=5)
    whole = sound_gradient(student, rows, 1e-9)
    published = published_sum(student, rows)
    for left_out in range(5):
        kept = torch.arange(5) != left_out
        others = Rows(*(tensor[kept] for tensor in rows))
        moved = [a - b for a, b in zip(whole, sound_gradient(student, others, 1e-9), strict=True)]
        assert norm(moved) <= C * (1 + 1e-6)
        moved = [a - b for a, b in zip(published, published_sum(student, others), strict=True)]
        assert norm(moved) > 1e4 * C


# ---------------------------------------------------------------- the private input, read off


def test_a_private_input_stands_in_the_published_gradient():
    rows = private_rows(scale=0.5)
    weight, bias = published_sum(Affine(), rows)
    # ∂L/∂W = CLIP(g) ⊗ x: clipping scales the left factor, the right one is the image itself.
    for row in weight:
        assert alike(row, rows.x_r) == pytest.approx(1, abs=1e-6)
    # With the bias's gradient, which is CLIP(g), even the scale comes out.
    read = (bias @ weight) / bias.square().sum()
    torch.testing.assert_close(read.view_as(rows.x_r), rows.x_r, rtol=1e-4, atol=1e-5)


def test_noise_over_t_does_not_hide_it_but_undivided_noise_after_sound_clipping_does():
    """σ = 1.9, which is to give ε = 1: one record in an otherwise empty batch."""
    images = [private_rows(scale=0.5, seed=seed) for seed in range(10)]

    def best_guess(gradients: list[Tensor]) -> Tensor:
        # The right factor of what is nearest to a product of two vectors.
        return torch.linalg.svd(gradients[0]).Vh[0]

    published = [alike(best_guess(published_gradient(Affine(), [x], 1.9)), x.x_r) for x in images]
    assert min(published) > 0.99
    sound = [alike(best_guess(sound_gradient(Affine(), x, 1.9)), x.x_r) for x in images]
    # What a random direction in 16 dimensions has in common with anything: 0.2 on average.
    assert sum(sound) / 10 < 0.4


# ---------------------------------------------------------------- noise over T


def test_the_published_noise_is_t_times_smaller_than_the_sound_one():
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(20_000))

        def forward(self, x: Tensor, t: Tensor, labels: Tensor) -> Tensor:
            return x * self.weight.sum()

    sigma = 1.9
    (published,) = published_gradient(Wide(), [], sigma)
    (sound,) = sound_gradient(Wide(), None, sigma)
    assert float(published.std()) == pytest.approx(sigma * C / STEPS, rel=0.02)
    assert float(sound.std()) == pytest.approx(sigma * C, rel=0.02)
    torch.testing.assert_close(published * STEPS, sound, rtol=1e-2, atol=1e-2)
