"""The scale of a student's logits, from slopes that gradients measured."""

import math

import pytest
import torch

from fedtranscribe.methods.distillation import Slope, calibrated_scale


def test_a_student_that_is_not_sure_enough_is_made_surer():
    assert calibrated_scale([Slope(-200.0, 0.0)], 1000) == pytest.approx(math.exp(0.2))
    assert calibrated_scale([Slope(200.0, 0.0)], 1000) == pytest.approx(math.exp(-0.2))
    assert calibrated_scale([Slope(0.0, 0.0)], 1000) == 1


def test_slopes_count_by_their_mean_and_noise_by_its_own():
    alone = calibrated_scale([Slope(-200.0, 100.0)], 1000)
    assert alone == pytest.approx(math.exp(0.2 * 4 / 5))
    four = [Slope(-100.0, 100.0), Slope(-300.0, 100.0)] * 2
    assert calibrated_scale(four, 1000) == pytest.approx(math.exp(0.2 * 16 / 17))


@pytest.mark.parametrize("records", [0.0, -50.0, 1e-9, 1.0])
def test_a_noisy_count_and_steep_slopes_stay_in_bounds(records):
    assert calibrated_scale([Slope(-1e6, 1.0)], records) == pytest.approx(math.e)
    assert calibrated_scale([Slope(1e6, 1.0)], records) == pytest.approx(1 / math.e)


def test_noise_alone_hardly_moves_it():
    rng = torch.Generator().manual_seed(0)
    noise = 0.05 * 1000 * torch.randn(200, 5, generator=rng).double()
    scales = [calibrated_scale([Slope(float(x), 50.0) for x in slopes], 1000) for slopes in noise]
    assert max(abs(math.log(scale)) for scale in scales) < 0.1


def test_it_finds_the_scale_of_logits_that_were_shrunk():
    """Labels drawn from softmax(z): the student that says z / 2 is told to be surer."""
    rng = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(20_000, 4, generator=rng).double()
    labels = torch.multinomial(logits.softmax(1), 1, generator=rng)[:, 0]
    one_hot = torch.eye(4).double()[labels]

    def slope(scale: float) -> Slope:
        said = scale * logits
        return Slope(float((said * (said.softmax(1) - one_hot)).sum()), 1.0)

    def loss(scale: float) -> float:
        return float(torch.nn.functional.cross_entropy(scale * logits, labels))

    assert calibrated_scale([slope(1.0)], len(logits)) == pytest.approx(1, abs=0.05)
    surer = 0.5 * calibrated_scale([slope(0.5)], len(logits))
    assert 0.6 < surer < 1.1
    assert loss(surer) < loss(0.5)
    less_sure = 2 * calibrated_scale([slope(2.0)], len(logits))
    assert loss(less_sure) < loss(2.0)
