"""Phase I as printed gives private images away; the sound one does not, and learns the same."""

import math

import pytest
import torch
from steps import NoNoise
from torch import Tensor, nn

from fedtranscribe.models.diffusion import Schedule, to_pixels, to_signed
from fedtranscribe.noise.sources import SeededBits, SeededNoise
from fedtranscribe.trainers.dp_promise import (
    DpPromise,
    DpPromiseSettings,
    NoisyImages,
    NoisyRecords,
    PhaseOne,
    published_regression,
    sound_regression,
)
from fedtranscribe.trainers.records import RecordImages
from fedtranscribe.trainers.stages import TrainingInputs

SIDE, S = 6, 900
PIXELS = SIDE * SIDE
SCHEDULE = Schedule()


class Affine(nn.Module):
    """z_θ(x) = W x + b: the smallest network that gives its input away through its gradient."""

    channels, size, classes, null_label = 1, SIDE, 0, 0

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.weight = nn.Parameter(0.1 * torch.randn(PIXELS, PIXELS, generator=generator))
        self.bias = nn.Parameter(torch.zeros(PIXELS))

    def forward(self, x: Tensor, t: Tensor, labels: Tensor) -> Tensor:
        return (x.flatten(1) @ self.weight.T + self.bias).view_as(x)


def private_image(seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (1, 1, SIDE, SIDE), generator=generator, dtype=torch.uint8)


def one_gradient(phase1: PhaseOne, image: Tensor, noise=None) -> tuple[Tensor, Tensor]:
    """What the first step of Phase I on a single record hands to Adam: (of W, of b), float64."""
    network = Affine()
    method = DpPromise(
        network,  # type: ignore[arg-type]
        DpPromiseSettings(1.0, boundary=S, phase1=phase1, phase1_batch=1, phase2_batch=1),
        TrainingInputs(
            images=to_signed(image),
            labels=None,
            public=None,
            noise=noise or SeededNoise(0),
            bits=SeededBits(0),
            rng=torch.Generator().manual_seed(11),
        ),
    )
    method.train(1)
    assert network.weight.grad is not None
    assert network.bias.grad is not None
    return network.weight.grad.double(), network.bias.grad.double()


def seen_by_the_attacker(gradient: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """x_t and the residual, up to the weight of the loss.

    The loss is |W x_t + b − target|²/d: grad_b = 2 residual/d, grad_W = grad_b ⊗ x_t.
    """
    of_weight, of_bias = gradient
    loudest = int(of_bias.abs().argmax())
    return of_weight[loudest] / of_bias[loudest], of_bias * PIXELS / 2


def guess_of(x_t: Tensor) -> Tensor:
    """The attacker knows the network as it was before the step."""
    with torch.no_grad():
        return Affine()(x_t.float().view(1, 1, SIDE, SIDE), None, None).double().flatten()


def published_attack(gradient: tuple[Tensor, Tensor]) -> dict[int, Tensor]:
    """x_0 = (x_t − √(1 − ᾱ_t) z)/√ᾱ_t for each t that Phase I may have drawn."""
    x_t, residual = seen_by_the_attacker(gradient)
    z = guess_of(x_t) - residual
    found: dict[int, Tensor] = {}
    for t in range(S, SCHEDULE.steps + 1):
        kept = float(SCHEDULE.alpha_bar[t])
        found[t] = (x_t - math.sqrt(1 - kept) * z) / math.sqrt(kept)
    return found


def off_the_pixel_grid(image: Tensor) -> float:
    pixels = (image + 1) * 127.5
    return float((pixels - pixels.round().clamp(0, 255)).abs().max())


@pytest.mark.parametrize("seed", range(3))
def test_one_gradient_of_phase_i_as_printed_gives_the_private_image_back(seed: int):
    secret = private_image(seed)
    candidates = published_attack(one_gradient(PhaseOne.PUBLISHED, secret))
    # The time step is not in the gradient, yet only the right one gives pixels.
    best = min(candidates.values(), key=off_the_pixel_grid)
    assert off_the_pixel_grid(best) < 0.05
    assert torch.equal(to_pixels(best.view(1, 1, SIDE, SIDE)), secret)


def test_the_same_attack_on_the_sound_phase_i_finds_noise():
    secret = to_signed(private_image()).double().flatten()
    noise_level = math.sqrt((1 - SCHEDULE.alpha_bar[S]) / SCHEDULE.alpha_bar[S])
    assert noise_level > 60  # against pixels in [-1, 1]
    candidates = published_attack(one_gradient(PhaseOne.SOUND, private_image()))
    errors = [float((c - secret).square().mean().sqrt()) for c in candidates.values()]
    # No better than the noise on x_S at any t, within what 36 pixels can tell: a tenth is one
    # standard deviation, and the best of 101 time steps is taken.
    assert min(errors) > 0.6 * noise_level


def test_all_that_an_attacker_gets_from_the_sound_phase_i_is_x_s():
    secret = to_signed(private_image()).double().flatten()
    x_t, weighted = seen_by_the_attacker(one_gradient(PhaseOne.SOUND, private_image()))
    kept = float(SCHEDULE.alpha_bar[S])
    added = SeededNoise(0).for_query("phase I/0").gaussian((PIXELS,), math.sqrt(1 - kept))
    released = math.sqrt(kept) * secret + added

    def recovered_x_s(t: int) -> Tensor:
        """The attack made for the sound target: z′ = √w target, then x_S."""
        now, ratio = float(SCHEDULE.alpha_bar[t]), float(SCHEDULE.alpha_bar[t]) / kept
        weight = (1 - ratio) / (1 - now)
        fresh = math.sqrt(weight) * (guess_of(x_t) - weighted / weight)
        return (x_t - math.sqrt(1 - ratio) * fresh) / math.sqrt(ratio)

    steps = range(S + 1, SCHEDULE.steps + 1)
    best = min((recovered_x_s(t) for t in steps), key=lambda x: float((x - released).norm()))
    # x_S comes back, to within the public grid it was rounded to …
    assert float((best - released).abs().max()) < 2**-9 + 1e-3
    # … and what it says about the image is off by exactly its noise.
    error = best / math.sqrt(kept) - secret
    torch.testing.assert_close(error, added / math.sqrt(kept), rtol=0.01, atol=0.3)
    assert float(error.square().mean().sqrt()) > 0.75 * math.sqrt((1 - kept) / kept)


class Compensating:
    """Noise that hides which image it lies on: x_S is the same for every image."""

    private = False

    def __init__(self, image: Tensor) -> None:
        x_s = torch.linspace(-2, 2, PIXELS).double().view(1, 1, SIDE, SIDE)
        self._noise = x_s - SCHEDULE.alpha_bar[S].sqrt() * to_signed(image).double()

    def for_query(self, query_id: str) -> "Compensating":
        return self

    def uniform(self, shape) -> Tensor:
        raise AssertionError

    def gaussian(self, shape, std: float) -> Tensor:
        return self._noise.reshape(shape)


def test_the_sound_gradient_is_a_function_of_x_s_alone():
    images = private_image(0), private_image(1)
    sound = [one_gradient(PhaseOne.SOUND, i, Compensating(i)) for i in images]
    printed = [one_gradient(PhaseOne.PUBLISHED, i, Compensating(i)) for i in images]
    for one, other in zip(*sound, strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(printed[0][0], printed[1][0])


# ---------------------------------------------------------------- what is learnt


@pytest.mark.parametrize("t", [9, 13, 20])
def test_the_best_guess_of_the_sound_target_is_the_mean_of_z_given_x_t(t: int):
    # x_0 ~ N(0, v): E[z | x_t] = √(1 − ᾱ_t)/(ᾱ_t v + 1 − ᾱ_t) x_t, and a linear guess finds it.
    schedule, s, variance, n = Schedule(20, 0.01, 0.2), 8, 0.5, 400_000
    rng = torch.Generator().manual_seed(t)

    def normal() -> Tensor:
        return torch.randn(n, 1, 1, 1, generator=rng, dtype=torch.float64)

    x_0 = variance**0.5 * normal()
    x_s = schedule.noisy(x_0, torch.full((n,), s), normal())
    sound = sound_regression(schedule, x_s, s, torch.full((n,), t), normal())
    printed = published_regression(schedule, x_0, torch.full((n,), t), normal())
    kept = float(schedule.alpha_bar[t])
    expected = math.sqrt(1 - kept) / (kept * variance + 1 - kept)
    for regression in (sound, printed):
        slope = (regression.target * regression.x_t).mean() / regression.x_t.square().mean()
        assert float(slope) == pytest.approx(expected, rel=0.03)
    # The target is no guess of z, only its mean is: it is noisier than z.
    assert float(sound.target.var()) > 1.05


def test_the_weighted_loss_is_that_of_a_guess_of_the_fresh_noise():
    x_s, z, t = (
        torch.randn(4, 1, 2, 2),
        torch.randn(4, 1, 2, 2),
        torch.tensor([901, 902, 950, 1000]),
    )
    regression = sound_regression(SCHEDULE, x_s, S, t, z)

    class Half:
        null_label = 0

        def __call__(self, x: Tensor, t: Tensor, labels: Tensor) -> Tensor:
            return x / 2

    root = regression.weight.sqrt().float().view(-1, 1, 1, 1)
    expected = (z - root * regression.x_t / 2).square().flatten(1).mean(1)
    torch.testing.assert_close(regression.loss(Half()), expected)  # type: ignore[arg-type]
    # Targets grow towards S: sevenfold at S + 1. Weighted, none is louder than z′ itself.
    assert float(1 / root[0]) > 7
    assert float(1 / root[3]) < 1.1


def test_at_s_itself_nothing_can_be_learnt():
    weight = sound_regression(
        SCHEDULE, torch.zeros(1, 1, 1, 1), S, torch.tensor([S]), torch.ones(1, 1, 1, 1)
    ).weight
    assert float(weight) == 0
    settings = DpPromiseSettings(1.0, boundary=S)
    assert settings.phase1_range == range(901, 1001)
    assert settings.phase2_range == range(1, 901)


# ---------------------------------------------------------------- x_S


def test_x_s_has_the_moments_of_the_forward_process_and_lies_on_a_public_grid():
    images = torch.full((500, 1, 8, 8), 0.8)
    records = RecordImages(images, torch.zeros(500).long())
    drawn = NoisyRecords(records, SCHEDULE, 500, cached=False).draw(
        torch.arange(500), SeededNoise(1), b"key"
    )
    kept = float(SCHEDULE.alpha_bar[500])
    assert float(drawn.mean()) == pytest.approx(0.8 * math.sqrt(kept), abs=0.03)
    assert float(drawn.var()) == pytest.approx(1 - kept, rel=0.04)
    steps = drawn.double() * 512
    assert torch.equal(steps, steps.round())
    assert drawn.dtype == torch.float32


def test_fresh_x_s_differ_at_each_inclusion_and_cached_ones_never():
    images = RecordImages(torch.zeros(6, 1, 2, 2), torch.zeros(6).long())
    picked = torch.tensor([1, 4])
    for cached in (False, True):
        records = NoisyRecords(images, SCHEDULE, S, cached=cached)
        first = records.draw(picked, SeededNoise(0).for_query("0"), b"0")
        again = records.draw(picked, SeededNoise(0).for_query("1"), b"1")
        assert torch.equal(first, again) is cached
        assert (records.cache is not None) is cached


def test_a_run_with_cached_x_s_draws_noise_once():
    class Counting(SeededNoise):
        draws = 0

        def for_query(self, query_id: str) -> SeededNoise:
            return self

        def gaussian(self, shape, std: float) -> Tensor:
            Counting.draws += 1
            return super().gaussian(shape, std)

    method = DpPromise(
        Affine(),  # type: ignore[arg-type]
        DpPromiseSettings(
            0.0, noisy_images=NoisyImages.CACHED, phase1_batch=2, phase1_epochs=5, phase2_batch=2
        ),
        TrainingInputs(
            images=to_signed(torch.cat([private_image(i) for i in range(4)])),
            labels=None,
            public=None,
            noise=Counting(0),
            bits=SeededBits(0),
            rng=torch.Generator().manual_seed(0),
        ),
    )
    method.train(10)
    assert Counting.draws == 1


# ---------------------------------------------------------------- a batch is a set


class _Ordered(SeededBits):
    """Seeded bits, but the order of Phase I's batch comes from a seed of its own."""

    def __init__(self, order: int) -> None:
        super().__init__(0)
        self._order = order

    def for_query(self, query_id: str) -> SeededBits:
        if query_id.endswith("/order"):
            return SeededBits(self._order).for_query(query_id)
        return super().for_query(query_id)


def phase1_step(order: int, seen: list[Tensor]) -> Tensor:
    """The gradient of one step over 8 of 8 records; keeps the rows as the network saw them."""
    network = Affine()
    network.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    method = DpPromise(
        network,  # type: ignore[arg-type]
        DpPromiseSettings(1.0, boundary=S, phase1_batch=8, phase2_batch=1),
        TrainingInputs(
            images=to_signed(torch.cat([private_image(i) for i in range(8)])),
            labels=None,
            public=None,
            noise=NoNoise(),
            bits=_Ordered(order),
            rng=torch.Generator().manual_seed(0),
        ),
    )
    method.train(1)
    assert network.weight.grad is not None
    return network.weight.grad.double()


def test_the_sum_of_phase_i_is_symmetric_in_its_rows():
    """A row keeps its own t and z′ wherever it stands, and its place is drawn in secret."""
    seen: list[Tensor] = []
    one, other = phase1_step(0, seen), phase1_step(1, seen)
    first, second = (rows.flatten(1) for rows in seen)
    assert not torch.allclose(first, second)
    nearest = torch.cdist(first, second).argmin(1)
    assert sorted(nearest.tolist()) == list(range(8))
    assert nearest.tolist() != list(range(8))
    torch.testing.assert_close(first, second[nearest], rtol=0, atol=1e-6)
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-7)
