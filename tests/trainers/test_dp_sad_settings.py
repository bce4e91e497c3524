import math
from dataclasses import replace

import pytest
import torch
from sad_runs import TINY
from torch import nn

from fedtranscribe.errors import ConfigError
from fedtranscribe.models.diffusion import Sampling
from fedtranscribe.privacy.accountant import epsilon
from fedtranscribe.privacy.diffusion import Discriminator, Teacher
from fedtranscribe.privacy.units import Adjacency
from fedtranscribe.trainers.denoising import make_optimiser, set_rate
from fedtranscribe.trainers.dp_sad import make_networks
from fedtranscribe.trainers.profiles import sad_paper_settings, sad_tiny_settings


def test_the_paper_profile_holds_the_supplement_s_settings():
    mnist = sad_paper_settings("mnist", 1.9)
    schedule = mnist.schedule
    assert (schedule.steps, schedule.first, schedule.last) == (500, 1e-4, 0.028)
    assert (mnist.batch, mnist.epochs, mnist.clip, mnist.copies) == (128, 100, 1e-6, 1)
    assert (mnist.lr, mnist.discriminator_lr, mnist.guidance) == (1e-4, 1e-4, 1.8)
    assert (mnist.teacher_weight, mnist.data_weight, mnist.adversarial_weight) == (1, 1, 1)
    assert (mnist.sampling.steps, mnist.sampling.eta, mnist.sampling.guidance) == (500, 1, 0)
    assert (mnist.student_conditioning, mnist.discriminator_conditioning) == (True, True)
    assert mnist.student_start == "xavier"
    assert mnist.gradients == "sound"
    names = ("mnist", "fashion-mnist", "celeba")
    sizes = [sad_paper_settings(name, 1.0).unet for name in names]
    assert sizes == ["small", "medium", "large"]
    with pytest.raises(ConfigError, match="svhn"):
        sad_paper_settings("svhn", 1.0)


def test_as_printed_it_is_printed_throughout():
    printed = sad_paper_settings("mnist", 1.9, "published")
    assert (printed.optimiser, printed.weighting) == ("sgd", "image")
    assert printed.private_teacher
    assert printed.private_discriminator


def test_the_tiny_profile_follows_the_noise():
    private, plain = sad_tiny_settings(1.0), sad_tiny_settings(0.0)
    assert (private.unet, private.student_start) == ("tiny", "teacher")
    assert private.batch > plain.batch
    assert private.privacy_plan(4000).trainings == 2
    assert private.gradients == "sound"


def test_steps_are_epochs_over_the_expected_batch_rounded_up_as_the_accountant_counts():
    mnist = sad_paper_settings("mnist", 1.9)
    assert mnist.privacy_plan(60_000).training.steps == 46_875
    assert mnist.privacy_plan(60_001).training.steps == 46_876
    assert mnist.pretrain_steps(1_000) == 782  # 781.25


@pytest.mark.parametrize(
    ("sigma", "teacher", "expected"),
    [(1.9, Teacher.PUBLIC, 0.977), (0.6, Teacher.PUBLIC, 9.48), (2.54, Teacher.DP, 1.0)],
)
def test_the_plan_of_a_run_costs_what_the_privacy_law_says(
    sigma: float, teacher: Teacher, expected: float
):
    settings = replace(sad_paper_settings("mnist", sigma), teacher=teacher)
    event = settings.privacy_plan(60_000).event(Adjacency.ADD_REMOVE)
    assert epsilon([event], 1e-5) == pytest.approx(expected, rel=0.01)


def test_the_plan_counts_every_private_training():
    def trainings(**changes) -> int:
        return replace(TINY, **changes).privacy_plan(24).trainings

    assert trainings() == 1
    assert trainings(teacher=Teacher.DP) == 2
    assert trainings(discriminator=Discriminator.DP) == 2
    assert trainings(teacher=Teacher.DP, discriminator=Discriminator.DP) == 3
    # There is none without ADV.
    assert trainings(discriminator=Discriminator.DP, adversarial_weight=0.0) == 1
    printed = replace(TINY, gradients="published").privacy_plan(24, dimensions=64)
    assert (printed.dilution, printed.dimensions) == (40, 64)
    assert printed.multiplier == pytest.approx(1 / 40)
    with pytest.raises(ConfigError, match="sigma=0"):
        replace(TINY, noise_multiplier=0.0).privacy_plan(24).event(Adjacency.ZERO_OUT)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch": 0}, "batch=0 >= 1"),
        ({"copies": 0}, "copies=0 >= 1"),
        ({"discriminator_batch": 0}, "discriminator_batch=0 >= 1"),
        ({"synthetic_images": 0}, "synthetic_images=0 >= 1"),
        ({"clip": 0.0}, "clip=0"),
        ({"lr": float("inf")}, "lr=inf"),
        ({"epochs": -1}, "epochs=-1"),
        ({"noise_multiplier": -1.0}, "noise_multiplier=-1"),
        ({"noise_multiplier": float("nan")}, "noise_multiplier=nan"),
        ({"guidance": -0.1}, "guidance=-0.1 >= 0"),
        ({"adversarial_weight": -1.0}, "adversarial_weight=-1"),
        ({"label_drop": 1.0}, "label_drop=1"),
        ({"ema_decay": 1.0}, "ema_decay=1"),
        ({"label_drop": 0.0}, "label_drop=0 > 0 for guidance=1.8"),
        ({"sampling": Sampling(4, guidance=1.0)}, "student_label_drop=0 > 0"),
        ({"sampling": Sampling(41)}, "steps=41 <= T=40"),
        (
            {"teacher_weight": 0.0, "data_weight": 0.0, "adversarial_weight": 0.0},
            "nothing to learn",
        ),
    ],
)
def test_impossible_settings_are_refused(changes: dict, words: str):
    with pytest.raises(ConfigError, match=words):
        replace(TINY, **changes)


# ---------------------------------------------------------------- networks and optimisers


@pytest.mark.parametrize("side", [28, 32, 64, 128])
def test_networks_of_every_size_go_through_a_step(side: int):
    networks = make_networks(TINY, (3, side, 10))
    x, t, labels = torch.zeros(1, 3, side, side), torch.tensor([1]), torch.tensor([10])
    with torch.no_grad():
        assert networks.student(x, t, labels).shape == x.shape
        assert networks.discriminator is not None
        assert networks.discriminator(x, t, labels).shape == (1,)


def test_the_student_starts_from_xavier_and_from_weights_of_its_own():
    networks, same = make_networks(TINY, (1, 8, 2), seed=3), make_networks(TINY, (1, 8, 2), seed=3)
    first, second = networks.teacher.unet.conv_in, networks.student.unet.conv_in
    assert isinstance(first, nn.Conv2d)
    assert isinstance(second, nn.Conv2d)
    assert float(second.weight.detach().abs().max()) <= (6 / (9 * 1 + 9 * 16)) ** 0.5
    assert second.bias is not None
    assert not second.bias.any()
    assert first.bias is not None
    assert first.bias.any()
    assert not torch.equal(first.weight, second.weight)
    for name, tensor in networks.student.state_dict().items():
        assert torch.equal(tensor, same.student.state_dict()[name]), name


def test_the_discriminator_is_shown_pairs_or_nothing_at_all():
    pairs = replace(TINY, concatenation="channels")
    discriminator = make_networks(pairs, (3, 8, 2)).discriminator
    assert discriminator is not None
    assert discriminator.first.in_channels == 6
    assert make_networks(replace(TINY, adversarial_weight=0.0), (3, 8, 2)).discriminator is None


def test_rates_fall_on_a_half_cosine():
    optimiser = make_optimiser(nn.Linear(1, 1), sgd=True)
    expected = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=3e-4)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(expected, T_max=10)
    for done in range(10):
        set_rate(optimiser, 3e-4, done, 10)
        assert optimiser.param_groups[0]["lr"] == pytest.approx(cosine.get_last_lr()[0])
        expected.step()
        cosine.step()
    set_rate(optimiser, 3e-4, 5, 10)
    assert optimiser.param_groups[0]["lr"] == pytest.approx(3e-4 * (1 + math.cos(math.pi / 2)) / 2)


def test_adam_with_a_divisor_is_adam_on_divided_gradients():
    results = []
    for divisor, scale in ((1.0, 1.0), (1e-6, 1e-6)):
        layer = nn.Linear(3, 1, bias=False)
        with torch.no_grad():
            layer.weight.fill_(0.5)
        optimiser = make_optimiser(layer, divisor)
        set_rate(optimiser, 1e-2, 0, 2)
        for gradient in ([1.0, -2e-8, 0.3], [0.5, 1e-8, -0.1]):
            layer.weight.grad = scale * torch.tensor([gradient])
            optimiser.step()
        results.append(layer.weight.detach().clone())
    torch.testing.assert_close(results[0], results[1], rtol=1e-5, atol=0.0)
