import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from fedtranscribe.data import ImageSet, load
from fedtranscribe.methods.method import Combined
from fedtranscribe.methods.mixture import MixtureMethod, question_shapes
from fedtranscribe.models.mixture import GaussianMixture, bands_of, frequencies, lowest
from fedtranscribe.privacy.closed_forms import gaussian_mu
from fedtranscribe.questions.mixture import Mixture, MixtureQuery, bound_of, mixture_bound
from fedtranscribe.questions.moments import SUM_BITS

SIZE, CLASSES, N = 8, 2, 4_000


def shown(seed: int = 0, n: int = N) -> ImageSet:
    """Class 0 is a bright column that moves, class 1 a bright row, on the left or on the right."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % CLASSES
    images = torch.full((n, 1, SIZE, SIZE), 0.2)
    strength = 0.4 + 0.1 * torch.randn(n, generator=rng)
    side = torch.randint(0, 2, (n,), generator=rng)
    for i in range(n):
        if labels[i]:
            half = slice(0, 4) if side[i] else slice(4, 8)
            images[i, 0, 5, half] += strength[i]
        else:
            images[i, 0, :, 2] += strength[i]
    pixels = (images.clamp(0, 1) * 255).round().to(torch.uint8)
    return ImageSet("bars", "bars", pixels, labels, CLASSES, None)


def mixture(records: ImageSet, cuts: int, noise: float, seed: int = 0) -> GaussianMixture:
    """Asked with noise of this std on every sum."""
    return asked(records, cuts, [noise] * 4, seed)


def asked(records: ImageSet, cuts: int, stds: Sequence[float], seed: int = 0) -> GaussianMixture:
    """Asked with a noise of its own on each sum."""
    rng = torch.Generator().manual_seed(seed)
    statistic = Mixture(records)
    method = MixtureMethod(records.channels, records.size, records.classes, cuts, "run")
    while not method.finished:
        query, noise = method.ask(), stds[method.round]
        exact = statistic.values(query)[0].double() * 2.0**-SUM_BITS
        drawn = torch.randn(len(exact), generator=rng, dtype=torch.float64)
        values = (exact + drawn * bound_of(query).spread(noise))[None]
        method.learn(query, Combined(query.id, values, noise))
    return method.mixture


def test_samples_have_the_records_means_and_spread():
    records = shown()
    made = mixture(records, cuts=0, noise=0.01)
    images, labels = made.sample(6_000, torch.Generator().manual_seed(1))
    assert images.shape == (6_000, 1, SIZE, SIZE)
    assert images.dtype is torch.float32
    assert 0 <= float(images.min()) <= float(images.max()) <= 1
    assert float(made.counts.sum()) == pytest.approx(N, rel=0.01)
    real = records.images.float() / 255
    for label in range(CLASSES):
        here, there = images[labels == label], real[records.labels == label]
        assert len(here) == pytest.approx(3_000, abs=150)
        assert float((here.mean(0) - there.mean(0)).abs().max()) < 0.03
        assert float((here.std(0) - there.std(0)).abs().max()) < 0.06


def test_components_tell_apart_what_a_single_gaussian_mixes():
    records = shown()
    # Of class 1 a half is lit on each side, never both: with one Gaussian often both are, or none.
    lit = {}
    for cuts in (0, 1):
        images, labels = mixture(records, cuts, noise=0.01).sample(
            4_000, torch.Generator().manual_seed(2)
        )
        row = images[labels == 1][:, 0, 5]
        difference = (row[:, :4].mean(1) - row[:, 4:].mean(1)).abs()
        lit[cuts] = float(((difference - 0.4).abs() < 0.25).double().mean())
    assert lit[1] > 0.9 > lit[0] + 0.1


def test_noise_alone_shows_no_direction():
    made = mixture(shown(), cuts=0, noise=400.0)
    assert not made.roots.any()
    assert mixture(shown(), cuts=0, noise=0.01).roots.any()
    images, _ = made.sample(100, torch.Generator().manual_seed(3))
    assert bool(torch.isfinite(images).all())


def grain(made: GaussianMixture, images: torch.Tensor) -> torch.Tensor:
    """Mean energy of images outside of the axes, by band."""
    found = frequencies(images) - made.centre
    left = found - (found @ made.axes) @ made.axes.T
    where = bands_of(*images.shape[1:3])
    sums = torch.zeros(int(where[-1]) + 1, dtype=torch.float64)
    return sums.index_add_(0, where, left.square().mean(0))


def scans(n: int = 1_200) -> ImageSet:
    """As a small hospital has them: 64 pixels, two classes, two pictures of each patient."""
    rng = torch.Generator().manual_seed(0)
    y, x = torch.meshgrid(torch.linspace(-1, 1, 64), torch.linspace(-1, 1, 64), indexing="ij")
    width = 0.5 + 0.1 * torch.randn(n, 1, 1, 1, generator=rng)
    fine = functional.interpolate(torch.randn(n, 1, 16, 16, generator=rng), 64, mode="bicubic")
    images = torch.exp(-(x**2 + y**2) / width) * (0.7 + 0.1 * fine)
    pixels = (images.clamp(0, 1) * 255).round().to(torch.uint8)
    ids = tuple(str(i // 2) for i in range(n))
    return ImageSet("scans", "scans", pixels, torch.arange(n) // 2 % CLASSES, CLASSES, ids)


def stds_of(records: ImageSet, epsilon: float) -> list[float]:
    """Of a run of one holder that gives a mixture 30 % of its budget."""
    budget = 0.3 * gaussian_mu(epsilon, 1e-5) ** 2
    shapes = question_shapes(records.channels, records.size, records.classes, 0)
    return [1 / math.sqrt(budget * shape.share) for shape in shapes]


@pytest.mark.parametrize(("data", "epsilon"), [("scans", 3.0), ("digits", 1.0)])
def test_grain_has_no_more_energy_than_the_records_have_of_it(data: str, epsilon: float):
    records = scans() if data == "scans" else load("digits").train
    made = asked(records, 0, stds_of(records, epsilon))
    images, _ = made.sample(1_000, torch.Generator().manual_seed(1))
    ours = grain(made, (images * 255).round().to(torch.uint8)).sum()
    assert made.texture.any()
    assert ours < 1.3 * grain(made, records.images).sum()


def test_no_grain_is_made_of_noise():
    # Of pictures without any, as many and as noisy as a small hospital's.
    records = replace(scans(), pixels=torch.full((1_200, 1, 64, 64), 64, dtype=torch.uint8))
    for seed in range(10):
        assert not asked(records, 0, stds_of(records, 3.0), seed).texture.any()


def test_questions_come_in_their_order_and_use_the_answers_before():
    method, statistic = MixtureMethod(1, SIZE, CLASSES, 1, "run"), Mixture(shown(n=100))
    queries: list[MixtureQuery] = []
    while not method.finished:
        query = method.ask()
        queries.append(query)
        values = statistic.values(query).double() * 2.0**-SUM_BITS
        method.learn(query, Combined(query.id, values, 0.01))
    assert [query.id for query in queries] == [f"run/mixture-{i}" for i in range(4)]
    assert [query.blocks for query in queries] == [1, 2, 4, 1]
    assert [bool(query.rest) for query in queries] == [False, False, False, True]
    axes = queries[3].map.double()
    torch.testing.assert_close(axes.T @ axes, torch.eye(40).double(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("cuts", [0, 1, 3])
@pytest.mark.parametrize(("channels", "size"), [(1, SIZE), (3, 40)])
def test_a_plan_knows_the_questions_before_they_are_asked(cuts: int, channels: int, size: int):
    shapes = question_shapes(channels, size, CLASSES, cuts)
    assert math.fsum(shape.share for shape in shapes) == pytest.approx(1)
    method = MixtureMethod(channels, size, CLASSES, cuts, "run")
    rng = torch.Generator().manual_seed(0)
    for shape in shapes:
        query = method.ask()
        bound = bound_of(query)
        assert bound == mixture_bound(shape.width, shape.blocks)
        values = torch.randn(1, bound.width, generator=rng, dtype=torch.float64)
        method.learn(query, Combined(query.id, values, 1.0))
    assert method.finished


def test_where_noise_hides_every_axis_the_lowest_frequencies_are_looked_at():
    method = MixtureMethod(1, 28, CLASSES, 0, "run")
    query = method.ask()
    rng = torch.Generator().manual_seed(0)
    noise = torch.randn(1, query.width, generator=rng, dtype=torch.float64)
    # As many records as would be seen clearly, if they differed at all.
    noise[0, -1] = 1e5
    method.learn(query, Combined(query.id, noise * 1e-3, 1.0))
    asked = method.ask().map.double()
    public = torch.zeros(28 * 28, 40, dtype=torch.float64)
    public[lowest(1, 28, 40), torch.arange(40)] = 1
    overlap = (asked / asked.norm(dim=0)).T @ public
    torch.testing.assert_close(overlap.abs(), torch.eye(40).double(), atol=1e-5, rtol=0)
