import math

import numpy as np
import pytest
import torch
from dpsgd_nets import (
    denoising_loss,
    gradients_one_by_one,
    plan_for,
    squared_loss,
    tiny_unet,
    unet_inputs,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor, nn
from torch.optim import SGD

from fedtranscribe.errors import ConfigError, PrivacyError
from fedtranscribe.noise.sources import OsNoise, SeededBits, SeededNoise
from fedtranscribe.privacy.accountant import epsilon
from fedtranscribe.privacy.units import Adjacency
from fedtranscribe.trainers.per_sample import Backend
from fedtranscribe.trainers.private_steps import DpSgdStep, PoissonBatches, add_clipped

BACKENDS = list(Backend)
EVERYONE = torch.arange(8)


def drawing(*inputs: Tensor):
    return lambda indices: tuple(x[indices] for x in inputs)


def taken(net: nn.Module, plan, loss, draw, indices, *, noise=None, **options) -> list[Tensor]:
    """The gradients that one step hands to its optimiser."""
    backend = options.pop("backend", Backend.CONTRACTED)
    step = DpSgdStep(net, plan, loss, backend, noise or SeededNoise(0), **options)
    optimizer = SGD([p for p in net.parameters() if p.requires_grad], lr=0.0)
    assert step.step(optimizer, draw, indices) is None
    return [p.grad for p in net.parameters() if p.requires_grad]


def norm(gradients: list[Tensor]) -> float:
    return math.sqrt(sum(float(g.double().square().sum()) for g in gradients))


def regression(seed: int = 0, records: int = 8, copies: int = 2):
    rng = torch.Generator().manual_seed(seed)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=rng, dtype=torch.float64))
    x = torch.randn(records, copies, 3, generator=rng, dtype=torch.float64)
    y = torch.randn(records, copies, 2, generator=rng, dtype=torch.float64)
    return net, x, y


# ---------------------------------------------------------------- the sum


def test_a_step_is_the_clipped_sum_over_the_expected_batch():
    net, x, y = regression()
    plan = plan_for(batch=5, clip=0.7, multiplicity=2)
    rows = gradients_one_by_one(net, squared_loss, (x[:3], y[:3]))
    norms = sum(g.flatten(1).square().sum(1) for g in rows).sqrt()
    factors = (0.7 / norms).clamp(max=1)
    # Divided by 5 for 3 records that happened to be in.
    wanted = [torch.einsum("b,b...->...", factors, g) / 5 for g in rows]
    for physical in (1, 2, 3, 100, None):
        for backend in BACKENDS:
            found = taken(
                net,
                plan,
                squared_loss,
                drawing(x, y),
                EVERYONE[:3],
                backend=backend,
                physical_batch=physical,
            )
            for f, w in zip(found, wanted, strict=True):
                torch.testing.assert_close(f, w, rtol=2e-6, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_physical_batches_change_nothing_for_a_unet(backend):
    inputs = unet_inputs(5, 2)
    plan = plan_for(clip=0.1, multiplicity=2, noise_multiplier=1.0)
    whole, split = (
        taken(
            tiny_unet(),
            plan,
            denoising_loss,
            drawing(*inputs),
            torch.arange(5),
            backend=backend,
            physical_batch=physical,
        )
        for physical in (5, 2)
    )
    for w, s in zip(whole, split, strict=True):
        torch.testing.assert_close(w, s, atol=1e-6, rtol=1e-4)


def test_the_norm_is_over_all_parameters_together():
    net, x, y = regression()
    plan = plan_for(batch=1, clip=1e-3, multiplicity=2)
    for i in range(8):
        found = taken(net, plan, squared_loss, drawing(x, y), EVERYONE[i : i + 1])
        assert 1e-3 * (1 - 2e-6) < norm(found) <= 1e-3
        assert all(float(g.abs().max()) > 0 for g in found)


def test_copies_are_averaged_before_clipping():
    net = nn.Linear(1, 1, bias=False).double()
    # Opposite gradients of one record: nothing is left to clip.
    x = torch.tensor([[[100.0], [-100.0]]], dtype=torch.float64)
    plan = plan_for(records=1, batch=1, multiplicity=2)
    for backend in BACKENDS:
        found = taken(
            net, plan, lambda n, x: n(x)[:, 0], drawing(x), torch.tensor([0]), backend=backend
        )
        assert norm(found) == 0


def test_frozen_parameters_take_no_part():
    net, x, y = regression()
    net[0].requires_grad_(False)
    frozen = net[0].weight.clone()
    plan = plan_for(noise_multiplier=1.0, multiplicity=2)
    step = DpSgdStep(net, plan, squared_loss, Backend.CONTRACTED, SeededNoise(0))
    step.step(SGD(net[2].parameters(), lr=0.1), drawing(x, y), EVERYONE[:3])
    assert torch.equal(net[0].weight, frozen)
    assert net[0].weight.grad is None
    assert net[2].weight.grad is not None


# ---------------------------------------------------------------- sensitivity


def values(size: int):
    wild = st.sampled_from([math.nan, math.inf, -math.inf, 1e38, -1e38, 1e-45, 0.0])
    return st.lists(st.floats(-1e6, 1e6, width=32) | wild, min_size=size, max_size=size)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(values(20), values(5), st.integers(0, 3), st.floats(1e-6, 1e3))
def test_one_record_moves_the_sum_by_no_more_than_promised(rows, other, place, clip):
    before = torch.tensor(rows, dtype=torch.float32).view(4, 5)
    replaced, nulled = before.clone(), before.clone()
    replaced[place], nulled[place] = torch.tensor(other, dtype=torch.float32), 0
    removed = before[[i for i in range(4) if i != place]]

    def total(gradients: Tensor) -> Tensor:
        sums = [torch.zeros(2, dtype=torch.float64), torch.zeros(3, 1, dtype=torch.float64)]
        parts = [gradients[:, :2].clone(), gradients[:, 2:, None].clone()]
        add_clipped(sums, parts, clip)
        return torch.cat([s.flatten() for s in sums])

    base = total(before)
    assert base.isfinite().all()
    assert float((base - total(replaced)).norm()) <= 2 * clip
    assert float((base - total(nulled)).norm()) <= clip
    assert float((base - total(removed)).norm()) <= clip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e30])
def test_a_broken_image_moves_a_real_step_by_no_more_than_promised(backend, bad):
    images, *rest = unet_inputs(3, 2)
    broken = images.clone()
    broken[1, 0, 0, 2, 2] = bad
    plan = plan_for(records=3, batch=1, clip=0.5, multiplicity=2)
    options = {"backend": backend, "physical_batch": 2}
    sums = [
        taken(
            tiny_unet().double(),
            plan,
            denoising_loss,
            drawing(first.double(), *rest[:2], rest[2].double()),
            torch.arange(3),
            **options,
        )
        for first in (images, broken)
    ]
    moved = norm([a - b for a, b in zip(*sums, strict=True)])
    assert 0 < moved <= 2 * 0.5
    if not math.isfinite(bad):
        # Null it is: only the record's own gradient is missing.
        assert moved <= 0.5 * (1 + 1e-9)


# ---------------------------------------------------------------- noise


class Silent(nn.Module):
    """Parameters whose gradient is zero whatever comes in."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Embedding(1, size) for size in sizes)

    def forward(self, x: Tensor) -> Tensor:
        return sum(layer(x).sum(1) for layer in self.layers) * 0.0


def silent_loss(net: nn.Module, x: Tensor) -> Tensor:
    return net(x)


@pytest.mark.parametrize("noise", [OsNoise(), SeededNoise(3)])
@pytest.mark.parametrize("present", [0, 3])
def test_the_noise_of_a_step_is_as_planned_whoever_was_in(noise, present):
    plan = plan_for(batch=4, noise_multiplier=1.5, clip=0.02, multiplicity=2)
    x = torch.zeros(8, 2, dtype=torch.int64)
    found = taken(
        Silent(150_000, 50_000),
        plan,
        silent_loss,
        drawing(x),
        EVERYONE[:present],
        noise=noise,
        physical_batch=1,
    )
    drawn = torch.cat([g.flatten() for g in found]).double().numpy()
    std = 1.5 * 0.02 / 4
    low, high = stats.chi2.ppf([1e-7, 1 - 1e-7], len(drawn)) / len(drawn)
    assert low < (drawn**2).mean() / std**2 < high
    assert stats.kstest(drawn / std, "norm").pvalue > 1e-7


def test_an_empty_batch_is_noise_only_and_draws_nothing():
    def draw(indices):
        raise AssertionError("nobody was in")

    net, _, _ = regression()
    plan = plan_for(noise_multiplier=2.0, clip=0.5, multiplicity=2)
    found = taken(net, plan, squared_loss, draw, EVERYONE[:0], noise=SeededNoise(9))
    same = SeededNoise(9)
    for g in found:
        torch.testing.assert_close(g, same.gaussian(g.shape, 1.0) / 4, atol=1 / 1024, rtol=0)


def test_released_sums_lie_on_a_public_grid():
    net, x, y = regression()
    plan = plan_for(batch=4, noise_multiplier=1.0, clip=1.0, multiplicity=2)
    for g in taken(net, plan, squared_loss, drawing(x, y), EVERYONE[:3], noise=OsNoise()):
        assert torch.equal(g * 4 * 256, (g * 4 * 256).round())


def test_a_step_is_private_by_noise_that_nobody_can_repeat():
    net, _, _ = regression()

    def private(sigma, noise):
        plan = plan_for(noise_multiplier=sigma)
        return DpSgdStep(net, plan, squared_loss, Backend.CONTRACTED, noise).private

    assert private(1.0, OsNoise())
    assert not private(0.0, OsNoise())
    assert not private(1.0, SeededNoise(0))


def test_a_distinguisher_does_no_better_than_the_accountant_says():
    """A million plays: the real coins, the real clipped extreme row, the real noisy step."""
    trials, delta = 1_000_000, 1e-5
    plan = plan_for(records=trials, batch=trials // 4, noise_multiplier=1.0, steps=1)
    event = plan.event(Adjacency.REPLACE)
    claimed = epsilon([event], delta)

    def bound(sigma: float, everybody: bool) -> float:
        noisy = plan_for(records=trials, batch=1, noise_multiplier=sigma, steps=1)
        worlds = []
        for world, sign in enumerate((1.0, -1.0)):
            row = [torch.zeros(1, dtype=torch.float64)]
            add_clipped(row, [torch.tensor([[sign * 1e9]])], plan.clip)
            present = torch.zeros(trials, dtype=torch.float64)
            present[PoissonBatches(plan, SeededBits(world)).draw()] = 1
            if everybody:
                present[:] = 1
            silent, nobody = Silent(trials), torch.arange(0)
            (noise,) = taken(
                silent, noisy, silent_loss, drawing(), nobody, noise=SeededNoise(5 + world)
            )
            worlds.append((present * row[0] + noise[0].double()).numpy())
        best = -math.inf
        for threshold in np.linspace(0.5, 3.5, 13):
            hits, falses = (int((world > threshold).sum()) for world in worlds)
            # 13 thresholds, two sides, 1e-3 in all.
            low = stats.beta.ppf(1e-3 / 26, hits, trials - hits + 1)
            high = stats.beta.ppf(1 - 1e-3 / 26, falses + 1, trials - falses)
            best = max(best, math.log(max(low - delta, 1e-300) / high))
        return best

    assert 0.3 * claimed < bound(1.0, everybody=False) < claimed
    assert bound(0.4, everybody=False) > claimed
    assert bound(1.0, everybody=True) > bound(1.0, everybody=False)


# ---------------------------------------------------------------- second opinion


@pytest.mark.parametrize("backend", BACKENDS)
def test_opacus_own_optimiser_takes_the_same_step(backend):
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    def fresh():
        net, x, y = regression(copies=1)
        return net, x, y

    net, x, y = fresh()
    watched = GradSampleModule(net, loss_reduction="mean")
    theirs = DPOptimizer(
        SGD(net.parameters(), lr=0.3),
        noise_multiplier=0.0,
        max_grad_norm=0.8,
        expected_batch_size=4,
        loss_reduction="mean",
    )
    inputs = x[:5, 0].clone().requires_grad_()
    squared_loss(watched, inputs, y[:5, 0]).mean().backward()
    theirs.step()

    ours, x, y = fresh()
    step = DpSgdStep(ours, plan_for(clip=0.8), squared_loss, backend, SeededNoise(0), 2)
    step.step(SGD(ours.parameters(), lr=0.3), drawing(x, y), EVERYONE[:5])
    for a, b in zip(net.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-6, atol=2e-6)


# ---------------------------------------------------------------- bad input and memory


def test_no_more_steps_than_planned():
    net, x, y = regression()
    plan = plan_for(steps=3, noise_multiplier=1.0, multiplicity=2)
    step = DpSgdStep(net, plan, squared_loss, Backend.CONTRACTED, SeededNoise(0), taken=2)
    optimizer = SGD(net.parameters(), lr=0.1)
    step.step(optimizer, drawing(x, y), EVERYONE[:2])
    assert step.taken == 3
    before = [p.clone() for p in net.parameters()]
    with pytest.raises(PrivacyError, match="at most steps=3"):
        step.step(optimizer, drawing(x, y), EVERYONE[:2])
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    with pytest.raises(ConfigError, match="taken=4 between 0 and steps=3"):
        DpSgdStep(net, plan, squared_loss, Backend.CONTRACTED, SeededNoise(0), taken=4)


@pytest.mark.parametrize("indices", [[1, 1], [0, 8], [-1, 2]])
def test_indices_are_distinct_records(indices):
    net, x, y = regression()
    with pytest.raises(ConfigError, match="distinct indices of 8 records"):
        taken(net, plan_for(multiplicity=2), squared_loss, drawing(x, y), torch.tensor(indices))


def test_inputs_have_as_many_copies_as_planned():
    net, x, y = regression()
    with pytest.raises(ConfigError, match=r"multiplicity=3 copies per record.*got \(2, 3\)"):
        taken(net, plan_for(multiplicity=3), squared_loss, drawing(x, y), EVERYONE[:2])
    with pytest.raises(ConfigError, match="physical_batch=0 >= 1"):
        taken(net, plan_for(), squared_loss, drawing(x, y), EVERYONE[:2], physical_batch=0)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
    ],
)
def test_running_out_of_memory_names_the_setting_to_lower(error):
    def draw(indices):
        raise error

    net, _, _ = regression()
    plan = plan_for(multiplicity=2)
    with pytest.raises(ConfigError, match=r"physical_batch=5 .*set physical_batch=2 or lower"):
        taken(net, plan, squared_loss, draw, EVERYONE, physical_batch=5)
    with pytest.raises(ConfigError, match="lower multiplicity=2"):
        taken(net, plan, squared_loss, draw, EVERYONE)


def test_other_errors_pass_unchanged():
    def draw(indices):
        raise RuntimeError("something else")

    net, _, _ = regression()
    with pytest.raises(RuntimeError, match="something else"):
        taken(net, plan_for(multiplicity=2), squared_loss, draw, EVERYONE)


@pytest.mark.long
def test_the_physical_batch_follows_the_memory_and_draws_nobody_twice():
    inputs = unet_inputs(8, 2)
    sizes = {}
    for memory in (1, 2 * 2**20, 20 * 2**20):
        for backend in BACKENDS:
            drawn: list[int] = []

            def draw(indices, drawn=drawn):
                drawn.extend(indices.tolist())
                return drawing(*inputs)(indices)

            net = tiny_unet()
            plan = plan_for(multiplicity=2)
            step = DpSgdStep(net, plan, denoising_loss, backend, SeededNoise(0), memory=memory)
            assert step.physical_batch is None
            optimizer = SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
            step.step(optimizer, draw, EVERYONE)
            assert drawn == list(range(8))
            sizes[memory, backend] = step.physical_batch
    assert all(sizes[1, backend] == 1 for backend in BACKENDS)
    large = {backend: sizes[20 * 2**20, backend] for backend in BACKENDS}
    assert large[Backend.CONTRACTED] > sizes[2 * 2**20, Backend.CONTRACTED] > 1
    # Opacus holds a gradient for each copy.
    assert large[Backend.OPACUS] < large[Backend.CONTRACTED]


def test_what_is_free_bounds_the_memory():
    net, x, y = regression()
    step = DpSgdStep(
        net, plan_for(multiplicity=2), squared_loss, Backend.CONTRACTED, SeededNoise(0)
    )
    step.step(SGD(net.parameters(), lr=0.1), drawing(x, y), EVERYONE[:1])
    assert step.physical_batch is not None
    assert step.physical_batch >= 1
