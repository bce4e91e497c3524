import pytest
import torch

from fedtranscribe.errors import ConfigError
from fedtranscribe.models.diffusion import Schedule, spread

DP_PROMISE, DP_SAD = Schedule(), Schedule(500, 1e-4, 0.028)


def rows(n: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 1, 2, 2, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("schedule", [DP_PROMISE, DP_SAD])
def test_it_is_the_schedule_of_diffusers_one_step_later(schedule: Schedule):
    from diffusers import DDPMScheduler

    other = DDPMScheduler(schedule.steps, schedule.first, schedule.last, beta_schedule="linear")
    torch.testing.assert_close(schedule.betas.float(), other.betas)
    assert schedule.alpha_bar[0] == 1
    assert len(schedule.alpha_bar) == schedule.steps + 1
    torch.testing.assert_close(
        schedule.alpha_bar[1:].float(), other.alphas_cumprod, rtol=2e-5, atol=0
    )


def test_the_first_and_the_last_step_are_where_the_papers_put_them():
    # One off would be 1 - β_1 - β_2 + … at the front, and 2 % too much noise at the end.
    torch.testing.assert_close(DP_PROMISE.alpha_bar[1], torch.tensor(1 - 1e-4).double())
    ratio = DP_PROMISE.alpha_bar[1000] / DP_PROMISE.alpha_bar[999]
    torch.testing.assert_close(ratio, torch.tensor(1 - 2e-2).double())
    # Remark 1 says 0.0004 where the product gives 0.00027.
    assert float(DP_PROMISE.alpha_bar[900]) == pytest.approx(2.7e-4, rel=0.02)
    x, z = rows(2), rows(2, 1)
    first = DP_PROMISE.noisy(x, torch.tensor([1, 0]), z)
    torch.testing.assert_close(first[0], (1 - 1e-4) ** 0.5 * x[0] + 1e-2 * z[0])
    assert torch.equal(first[1], x[1])


def test_noisy_images_agree_with_diffusers():
    from diffusers import DDPMScheduler

    x, z, t = rows(3).float(), rows(3, 1).float(), torch.tensor([1, 500, 1000])
    other = DDPMScheduler(1000, 1e-4, 2e-2, beta_schedule="linear")
    expected = other.add_noise(x, z, t - 1)  # pyright: ignore[reportArgumentType]
    torch.testing.assert_close(DP_PROMISE.noisy(x, t, z), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("s", "t"), [(1, 2), (400, 401), (900, 901), (900, 1000), (500, 500)])
def test_x_t_by_way_of_x_s_has_mean_and_variance_of_x_t(s: int, t: int):
    a = DP_PROMISE.alpha_bar
    one, none = torch.ones(1, 1, 1, 1).double(), torch.zeros(1, 1, 1, 1).double()
    step_t, step_s = torch.tensor([t]), torch.tensor([s])
    # Both maps are linear in (x_0, z_S, z'): put in one unit at a time.
    mean = DP_PROMISE.noisier(DP_PROMISE.noisy(one, step_s, none), s, step_t, none)
    of_z_s = DP_PROMISE.noisier(DP_PROMISE.noisy(none, step_s, one), s, step_t, none)
    of_fresh = DP_PROMISE.noisier(none, s, step_t, one)
    assert float(mean) == pytest.approx(float(a[t].sqrt()), rel=1e-12)
    variance = float(of_z_s.square() + of_fresh.square())
    assert variance == pytest.approx(float(1 - a[t]), rel=1e-12)


def test_x_t_by_way_of_x_s_is_normal_with_those_moments():
    n, x = 40_000, torch.full((1, 1, 2, 2), 0.7).double()
    schedule, t = Schedule(20, 0.01, 0.2), torch.full((n,), 12)
    x_s = schedule.noisy(x, torch.full((n,), 5), rows(n))
    x_t = schedule.noisier(x_s, 5, t, rows(n, 1))
    a = float(schedule.alpha_bar[12])
    standard = (x_t - a**0.5 * 0.7) / (1 - a) ** 0.5
    assert abs(float(standard.mean())) < 5 / (4 * n) ** 0.5
    assert float(standard.var()) == pytest.approx(1, abs=5 * (2 / (4 * n)) ** 0.5)
    assert float(standard.pow(4).mean()) == pytest.approx(3, abs=0.1)


def test_steps_may_differ_by_record_and_copy():
    x, z, t = rows(2), rows(6, 1).view(2, 3, 1, 2, 2), torch.tensor([[1, 2, 3], [10, 500, 1000]])
    mixed = DP_PROMISE.noisy(x.unsqueeze(1), t, z)
    assert mixed.shape == (2, 3, 1, 2, 2)
    for i in range(2):
        for k in range(3):
            alone = DP_PROMISE.noisy(x[i : i + 1], t[i, k : k + 1], z[i, k : k + 1])
            torch.testing.assert_close(mixed[i, k], alone[0])


def test_spreading_keeps_rows_and_takes_over_the_type():
    assert spread(torch.ones(3).double(), torch.zeros(3, 1, 2, 2)).shape == (3, 1, 1, 1)
    assert spread(torch.ones(3).double(), torch.zeros(3)).dtype == torch.float32


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ((0,), "T=0"),
        ((10, 0.0, 0.1), "first=0.0"),
        ((10, 0.2, 0.1), "last=0.1"),
        ((5, 0.1, 1), "1"),
    ],
)
def test_impossible_schedules_are_refused(values: tuple, word: str):
    with pytest.raises(ConfigError, match=word):
        Schedule(*values)
