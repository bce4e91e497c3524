import pytest
import torch
from torch import Tensor

from fedtranscribe.errors import ConfigError
from fedtranscribe.models.diffusion import (
    Sampling,
    Schedule,
    Spacing,
    ddim,
    guided_noise,
    sample,
    visited,
)
from fedtranscribe.models.unet import make_unet

SCHEDULE = Schedule()


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(n: int = 4, seed: int = 0) -> Tensor:
    return torch.randn(n, 1, 4, 4, generator=seeded(seed), dtype=torch.float64)


@pytest.mark.parametrize("spacing", list(Spacing))
@pytest.mark.parametrize("steps", [1, 2, 7, 200, 1000])
def test_every_walk_begins_at_the_last_step_and_goes_down(spacing: Spacing, steps: int):
    walk = visited(SCHEDULE, Sampling(steps, spacing=spacing))
    assert len(walk) == steps
    assert walk[0] == SCHEDULE.steps
    assert walk[-1] >= 1
    assert walk == sorted(set(walk), reverse=True)
    if spacing is Spacing.LINSPACE and steps > 1:
        assert walk[-1] == 1


@pytest.mark.parametrize("spacing", list(Spacing))
def test_steps_are_those_of_diffusers_plus_one(spacing: Spacing):
    from diffusers import DDIMScheduler

    other = DDIMScheduler(timestep_spacing=spacing.value)
    other.set_timesteps(200)
    assert visited(SCHEDULE, Sampling(200, spacing=spacing)) == (other.timesteps + 1).tolist()


@pytest.mark.parametrize("eta", [0.0, 0.5])
@pytest.mark.parametrize("clip", [True, False])
def test_the_walk_agrees_with_diffusers_where_that_is_exact(eta: float, clip: bool):
    from diffusers import DDIMScheduler

    def predict(x: Tensor, t: int) -> Tensor:
        return torch.tanh(x) * (0.5 + t / 2000)

    other = DDIMScheduler(timestep_spacing="trailing", clip_sample=clip)
    other.set_timesteps(50)
    start, rng, expected = noise().float(), seeded(7), noise().float()
    for t in other.timesteps:
        last = int(t) == int(other.timesteps[-1])
        xi = None if last else torch.randn(expected.shape, generator=rng)
        zeros = torch.zeros_like(expected)
        expected = other.step(
            predict(expected, int(t) + 1),
            int(t),
            expected,
            eta=eta,
            use_clipped_model_output=clip,
            variance_noise=zeros if xi is None else xi,
        ).prev_sample
    if eta == 0:
        # No noise is drawn at all then.
        rng = seeded(8)
    found = ddim(predict, start, SCHEDULE, Sampling(50, eta, clip=clip), seeded(7))
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("spacing", list(Spacing))
@pytest.mark.parametrize("eta", [0.0, 1.0])
@pytest.mark.parametrize("steps", [3, 1000])
def test_a_perfect_guess_for_a_single_image_gives_that_image(
    spacing: Spacing, eta: float, steps: int
):
    image = noise(1, seed=5).clamp(-1, 1)

    def predict(x: Tensor, t: int) -> Tensor:
        kept = SCHEDULE.alpha_bar[t]
        return (x - kept.sqrt() * image) / (1 - kept).sqrt()

    sampling = Sampling(steps, eta, spacing=spacing)
    found = ddim(predict, noise(), SCHEDULE, sampling, seeded())
    torch.testing.assert_close(found, image.expand(4, -1, -1, -1), rtol=0, atol=1e-9)


def test_ancestral_sampling_of_a_normal_gives_that_normal():
    # x_0 ~ N(0, 1/4): the perfect guess is linear, and all moments are known.
    variance, n = 0.25, 4000

    def predict(x: Tensor, t: int) -> Tensor:
        kept = SCHEDULE.alpha_bar[t]
        return (1 - kept).sqrt() * x / (kept * variance + 1 - kept)

    sampling = Sampling(1000, 1.0, clip=False)
    found = ddim(predict, noise(n), SCHEDULE, sampling, seeded())
    assert float(found.var()) == pytest.approx(variance, rel=0.03)
    assert abs(float(found.mean())) < 0.02


def test_guidance_leans_away_from_the_unconditional_guess():
    denoiser = make_unet("tiny", 1, 8, 3).eval()
    x, labels = noise().float().repeat(1, 1, 2, 2), torch.tensor([0, 1, 2, 0])
    t = torch.full((4,), 40)
    with torch.no_grad():
        conditional = denoiser(x, t, labels)
        unconditional = denoiser(x, t, torch.full((4,), 3))
        found = guided_noise(denoiser, x, t, labels, 1.8)
        plain = guided_noise(denoiser, x, t, labels, 0.0)
    torch.testing.assert_close(found, 2.8 * conditional - 1.8 * unconditional)
    assert torch.equal(plain, conditional)


def test_samples_are_repeatable_bounded_and_one_per_label():
    denoiser = make_unet("tiny", 1, 8, 3).eval()
    labels, seen = torch.tensor([0, 1, 2, 3, 0]), []
    settings = Sampling(4, guidance=0.5)

    def draw() -> Tensor:
        return sample(
            denoiser,
            SCHEDULE,
            labels,
            settings,
            seeded(),
            batch=2,
            progress=lambda done, total: seen.append((done, total)),
        )

    first = draw()
    assert first.shape == (5, 1, 8, 8)
    assert bool((first.abs() <= 1).all())
    assert seen == [(2, 5), (4, 5), (5, 5)]
    assert torch.equal(first, draw())
    none = sample(denoiser, SCHEDULE, torch.empty(0).long(), settings, seeded())
    assert none.shape == (0, 1, 8, 8)


def test_foreign_labels_are_refused():
    denoiser = make_unet("tiny", 1, 8, 3)
    for label in (-1, 4):
        with pytest.raises(ConfigError, match=r"labels in 0\.\.3"):
            sample(denoiser, SCHEDULE, torch.tensor([label]), Sampling(2), seeded())


@pytest.mark.parametrize(
    ("values", "word"),
    [({"steps": 0}, "steps=0"), ({"eta": 1.5}, "eta=1.5"), ({"guidance": -1}, "guidance=-1")],
)
def test_impossible_samplers_are_refused(values: dict, word: str):
    with pytest.raises(ConfigError, match=word):
        Sampling(**values)


def test_more_sampling_steps_than_there_are_are_refused():
    with pytest.raises(ConfigError, match="T=10"):
        visited(Schedule(10, 0.1, 0.2), Sampling(11))
