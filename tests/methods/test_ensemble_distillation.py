import copy

import pytest
import torch

from fedtranscribe.config import BaselineSettings
from fedtranscribe.methods import baselines as ensemble_distillation
from fedtranscribe.methods.baselines import dense, distil, mean_logits
from fedtranscribe.models import Classifier, Generator, build

SETTINGS = BaselineSettings(batch=16, distil_steps=40, pool=40, augment=0.0, distil_lr=5e-3)


def stripes(n: int, rng: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Images whose class is where their bright band lies."""
    labels = torch.randint(0, 3, (n,), generator=rng)
    images = torch.randint(0, 60, (n, 1, 28, 28), generator=rng)
    for i, label in enumerate(labels.tolist()):
        images[i, :, 9 * label : 9 * label + 9] += 150
    return images.to(torch.uint8), labels


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ensemble_distillation, "_DENSE_ROUNDS", 4)
    monkeypatch.setattr(ensemble_distillation, "_GENERATOR_STEPS", 3)


@pytest.fixture(scope="module")
def networks() -> list[Classifier]:
    rng = torch.Generator().manual_seed(0)
    trained = []
    for seed in range(2):
        images, labels = stripes(200, rng)
        network = build("cnn-small", 3, 1, 28, seed=seed)
        optimiser = torch.optim.Adam(network.parameters(), lr=5e-3)
        for _ in range(40):
            loss = torch.nn.functional.cross_entropy(network(images.float() / 255), labels)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        trained.append(network.eval())
    return trained


def score(network: Classifier) -> float:
    images, labels = stripes(300, torch.Generator().manual_seed(9))
    with torch.no_grad():
        return float((network.eval()(images.float() / 255).argmax(-1) == labels).float().mean())


def test_mean_logits_is_the_plain_mean(networks):
    images = torch.rand(5, 1, 28, 28)
    expected = (networks[0](images) + networks[1](images)) / 2
    assert torch.allclose(mean_logits(networks, images), expected)


def test_a_student_learns_from_unlabelled_images_alone(networks):
    rng = torch.Generator().manual_seed(1)
    student = build("cnn-small", 3, 1, 28, seed=5)
    images, _ = stripes(200, rng)
    distil(student, networks, images, SETTINGS, 60, rng)
    assert score(student) > 0.9


def test_the_networks_are_left_as_they_were(networks):
    before = [{k: v.clone() for k, v in n.state_dict().items()} for n in networks]
    rng = torch.Generator().manual_seed(1)
    student = build("cnn-small", 3, 1, 28, seed=5)
    dense(student, Generator(8, 1, 28, 4), networks, SETTINGS, rng, lambda *_: None)
    for network, state in zip(networks, before, strict=True):
        assert all(torch.equal(v, state[k]) for k, v in network.state_dict().items())


def test_data_free_training_moves_generator_and_student_and_tells_progress(networks):
    rng = torch.Generator().manual_seed(1)
    student, generator = build("cnn-small", 3, 1, 28, seed=5), Generator(8, 1, 28, 4)
    before = [copy.deepcopy(network.state_dict()) for network in (student, generator)]
    seen = []
    dense(student, generator, networks, SETTINGS, rng, lambda *step: seen.append(step))
    for network, state in zip((student, generator), before, strict=True):
        assert not all(torch.equal(p, state[k]) for k, p in network.named_parameters())
    assert seen[-1][1] == seen[-1][2] == len(seen)


def test_a_pool_smaller_than_the_rounds_still_has_an_image_per_round(networks):
    settings = SETTINGS.model_copy(update={"pool": 1, "distil_steps": 20, "batch": 2})
    student = build("cnn-small", 3, 1, 28, seed=5)
    before = copy.deepcopy(student.state_dict())
    rng = torch.Generator().manual_seed(1)
    dense(student, Generator(8, 1, 28, 4), networks, settings, rng, lambda *_: None)
    after = dict(student.named_parameters())
    assert all(bool(p.isfinite().all()) for p in after.values())
    assert not all(torch.equal(p, before[k]) for k, p in after.items())
