"""Sharpening a mixture's images by second moments of features, class by class."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedtranscribe.config import DpsdSettings
from fedtranscribe.methods.method import Combined, run_training_steps
from fedtranscribe.methods.mixture import MixtureMethod
from fedtranscribe.methods.moments import MomentsMethod
from fedtranscribe.methods.sharpening import ClassMomentsMethod, Sharpening, targets_of
from fedtranscribe.methods.sums import SumsMethod
from fedtranscribe.models import Classifier, build
from fedtranscribe.models.fixed_features import SCATTER, unit_rows_of
from fedtranscribe.models.mixture import GaussianMixture
from fedtranscribe.models.scattering import NormalisedScattering
from fedtranscribe.models.sharpener import Sharpener
from fedtranscribe.questions.class_moments import ClassMoments, ClassMomentsQuery
from fedtranscribe.questions.kinds import of_records
from fedtranscribe.questions.mixture import Mixture, block_matrices
from fedtranscribe.questions.moments import SUM_BITS, Moments
from tests.methods.test_mixture import CLASSES, SIZE, shown

Parts = tuple[Classifier, GaussianMixture, ClassMomentsQuery, Combined]


def answered(statistic, query, noise: float) -> Combined:
    rng = torch.Generator().manual_seed(len(query.id))
    exact = statistic.values(query).double() * 2.0**-SUM_BITS
    return Combined(query.id, exact + noise * torch.randn(exact.shape, generator=rng), noise)


@pytest.fixture(scope="module")
def parts() -> Parts:
    """Everything that is learned from 600 small images with hardly any noise."""
    records, noise = shown(n=600), 1e-3
    student = build(SCATTER, CLASSES, 1, SIZE, seed=0)
    moments = Moments(records, torch.device("cpu"))
    rng = torch.Generator().manual_seed(0)
    first = MomentsMethod(student, None, settings=DpsdSettings(), rng=rng, run="run")
    mixture = MixtureMethod(1, SIZE, CLASSES, 0, "run")
    last = ClassMomentsMethod(first, CLASSES, "run")
    turns = (
        (first, moments),
        (mixture, Mixture(records)),
        (last, ClassMoments(moments.rows)),
    )
    for method, statistic in turns:
        while not method.finished:
            query = method.ask()
            method.learn(query, answered(statistic, query, noise))
    assert [query.id for query in (last.learned[0],)] == ["run/class-moments"]
    again = ClassMomentsMethod(first, CLASSES, "run")
    again.load_state(last.state())
    assert again.finished
    assert again.learned[0].digest() == last.learned[0].digest()
    return student, mixture.mixture, *last.learned


def training(parts: Parts, steps: int = 30) -> tuple[Sharpening, Sharpener, torch.Generator]:
    student, mixture, query, answer = parts
    sharpener, rng = Sharpener(1, SIZE, CLASSES), torch.Generator().manual_seed(0)
    return Sharpening(sharpener, mixture, student, query, answer, steps, rng), sharpener, rng


def distance(mixture: GaussianMixture, query: ClassMomentsQuery, targets: torch.Tensor) -> float:
    """Of the second moments of many images from those that were answered, in terms of those."""
    total = 0.0
    for label, target in enumerate(targets):
        images = mixture.draw(torch.full((600,), label), torch.Generator().manual_seed(5))
        with torch.no_grad():
            rows = unit_rows_of(NormalisedScattering(1)(images), query.centre, query.map)
        total += float((rows.T @ rows / 600 - target).square().sum() / target.square().sum())
    return total / len(targets)


def test_targets_are_the_mean_second_moments_of_each_class_and_their_size(parts):
    _, _, query, answer = parts
    counts, means, sizes = targets_of(query, answer)
    torch.testing.assert_close(counts, torch.full((CLASSES,), 300.0).double(), rtol=0.01, atol=0)
    traces = means.diagonal(dim1=1, dim2=2).sum(1)
    torch.testing.assert_close(traces, torch.ones(CLASSES), rtol=0.01, atol=0)
    torch.testing.assert_close(sizes, means.square().sum((1, 2)), rtol=0.01, atol=0)
    loud = Combined(answer.query_id, answer.values, 300 / query.entries)
    quieter = targets_of(query, loud)[2]
    lost = sizes - (1 + 1 / query.entries) / 2
    torch.testing.assert_close(quieter, lost.clamp_min(1 / query.entries), rtol=0.05, atol=1e-3)


def test_sharpened_images_have_the_records_second_moments(parts):
    student, whole, query, answer = parts
    # Noise hides how far the images spread, so that all of a class are alike at first.
    mixture = replace(whole, roots=torch.zeros_like(whole.roots)).smooth
    steps, sharpener, _ = training((student, mixture, query, answer), 60)
    _, means, _ = targets_of(query, answer)
    before = distance(mixture, query, means)
    while steps.done < steps.steps:
        steps.step()
    sharpened = replace(mixture, sharpener=sharpener.eval())
    assert distance(sharpened, query, means) < 0.5 * before
    wanted = torch.arange(200) % CLASSES
    sharp, smooth = (m.draw(wanted, torch.Generator().manual_seed(1)) for m in (sharpened, mixture))
    assert float((sharp.mean((1, 2, 3)) - smooth.mean((1, 2, 3))).abs().mean()) < 0.03
    assert student.head.weight.grad is None, "it only judges"


def test_an_interrupted_training_goes_on_to_the_same_weights(parts):
    class Store:
        kept = None

        def load(self):
            return self.kept

        def save(self, state):
            self.kept = {**state, "generator": dict(state["generator"])}

    def run(store, stop: int | None = None) -> Sharpener:
        steps, sharpener, rng = training(parts, 6)

        def show(name, done, total):
            assert (name, total) == ("sharpening", 6)
            if done == stop:
                store.save(
                    {
                        "course": 0,
                        "state": steps.state(),
                        "generator": {k: v.clone() for k, v in sharpener.state_dict().items()},
                        "rng": rng.get_state(),
                    }
                )
                raise KeyboardInterrupt

        run_training_steps([lambda: steps], sharpener, rng, show, store)
        return sharpener

    whole, interrupted = run(Store()), Store()
    with pytest.raises(KeyboardInterrupt):
        run(interrupted, stop=3)
    for name, tensor in run(interrupted).state_dict().items():
        assert torch.equal(tensor, whole.state_dict()[name]), name


@pytest.mark.parametrize("noise", [1e-3, 300.0])
def test_a_stored_method_has_the_same_generator(noise: float):
    """Teachers that are asked after sums see the same images after an interrupt."""
    records = shown(n=200)
    moments = Moments(records, torch.device("cpu"))

    def fresh() -> SumsMethod:
        student = build(SCATTER, CLASSES, 1, SIZE, seed=0)
        rng, settings = torch.Generator().manual_seed(0), DpsdSettings()
        first = MomentsMethod(student, None, settings=settings, rng=rng, run="run")
        mixture = MixtureMethod(1, SIZE, CLASSES, 0, "run")
        return SumsMethod(first, None, mixture, ClassMomentsMethod(first, CLASSES, "run"), 2)

    class Nothing:
        def load(self):
            return None

        def save(self, state):
            pass

    method, statistics = fresh(), of_records(records, torch.device("cpu"), Path(), moments)
    while not method.finished:
        query = method.ask()
        method.learn(query, answered(statistics[query.kind], query, noise))
    method.finish_generator(lambda *_: None, Nothing())
    again = fresh()
    again.load_state(method.state())
    generators = method.generator, again.generator
    assert all(isinstance(made, GaussianMixture) for made in generators)
    assert [made.sharpener is None for made in generators] == [noise > 1] * 2
    drawn = [made.sample(5, torch.Generator().manual_seed(1))[0] for made in generators]
    assert torch.equal(*drawn)


def test_a_class_that_noise_hides_stays_as_it_is(parts):
    student, mixture, query, answer = parts
    matrices = block_matrices(answer.values[0], query.entries, CLASSES)
    rows, columns = torch.triu_indices(query.entries, query.entries)
    rarer = torch.cat([matrices[0, rows, columns] / 100, matrices[1, rows, columns]])
    # Ten times the noise's largest eigenvalue lies between the two classes, of 3 records and 300.
    loud = Combined(answer.query_id, rarer[None], 10 / (10 * (2 * query.entries) ** 0.5))
    rng, sharpener = torch.Generator().manual_seed(0), Sharpener(1, SIZE, CLASSES)
    steps = Sharpening(sharpener, mixture, student, query, loud, 20, rng)
    assert sharpener.known.tolist() == [False, True]
    while steps.done < steps.steps:
        steps.step()
    wanted = torch.tensor([0, 1])
    sharp, smooth = (
        m.draw(wanted, torch.Generator().manual_seed(1))
        for m in (replace(mixture, sharpener=sharpener), mixture.smooth)
    )
    assert torch.equal(sharp[0], smooth[0])
    assert not torch.equal(sharp[1], smooth[1])
    silent = Combined(answer.query_id, answer.values, 1e6)
    nothing = Sharpening(sharpener, mixture, student, query, silent, 20, rng)
    assert (nothing.steps, sharpener.known.any()) == (0, False)


def test_a_class_without_records_is_left_out(parts):
    student, mixture, query, answer = parts
    only = replace(mixture, counts=torch.tensor([0.0, 300.0]).double())
    rng, sharpener = torch.Generator().manual_seed(0), Sharpener(1, SIZE, CLASSES)
    steps = Sharpening(sharpener, only, student, query, answer, 2, rng)
    assert sharpener.known.tolist() == [False, True]
    assert 0 < steps.step() < 10
