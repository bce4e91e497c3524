"""Attacks on networks: a student that learned records by heart is caught, a blind one is not."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedtranscribe.config.evaluation import CanaryKind
from fedtranscribe.data import DataSplit, ImageSet, load
from fedtranscribe.errors import AuditError, ConfigError, InvalidDataError
from fedtranscribe.evaluation.canaries import (
    Canaries,
    by_canaries,
    check_planted,
    plant,
    save_planted,
)
from fedtranscribe.evaluation.findings import Claim, expect_sound
from fedtranscribe.evaluation.inversion import Inversions, by_inversion, invert
from fedtranscribe.evaluation.membership import (
    Suspects,
    by_loss,
    by_references,
    by_samples,
    confidences,
)
from fedtranscribe.models import Classifier, Generator, build
from fedtranscribe.noise.sources import SeededBits

CLAIM = Claim(1.0, 1e-5)
CLASSES = 4


def noise(n: int, seed: int, name: str = "noise") -> ImageSet:
    """Images without any meaning under labels without any: only memory can help."""
    rng = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (n, 1, 28, 28), generator=rng).to(torch.uint8)
    return ImageSet(name, f"npz:{name}", images, torch.randint(0, CLASSES, (n,), generator=rng), 4)


def learned_by_heart(images: torch.Tensor, labels: torch.Tensor, steps: int = 60) -> Classifier:
    network = build("cnn-small", CLASSES, 1, 28, seed=3)
    optimiser = torch.optim.Adam(network.parameters(), lr=3e-3)
    network.train()
    for _ in range(steps):
        loss = F.cross_entropy(network(images.float() / 255), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return network.eval()


@pytest.fixture(scope="module")
def split() -> DataSplit:
    return DataSplit(noise(120, 1), noise(150, 2))


@pytest.fixture(scope="module")
def leaky(split) -> Classifier:
    return learned_by_heart(split.train.images, split.train.labels)


@pytest.fixture(scope="module")
def blind() -> Classifier:
    return build("cnn-small", CLASSES, 1, 28, seed=4).eval()


@pytest.fixture(scope="module")
def suspects(split) -> Suspects:
    return Suspects.of(split, 2_000, np.random.default_rng(0), SeededBits(5))


class Words:
    """A source of coins that a test has written down."""

    private = False

    def __init__(self, coins) -> None:
        # Whatever the other bits of a word say, its lowest one is the coin.
        self.written = np.array(coins, dtype=np.uint64) + np.uint64(6)

    def for_query(self, query_id):
        return self

    def words(self, count):
        assert count == len(self.written), "a word of its own for every coin"
        return self.written


def suspected(split, coins) -> Suspects:
    return Suspects.of(split, len(coins), np.random.default_rng(0), Words(coins))


def test_each_suspect_is_picked_from_a_pair_by_a_coin_of_its_own(split):
    private, held_out = (
        {image.numpy().tobytes() for image in part.images} for part in (split.train, split.test)
    )
    coins = [1, 0, 0, 1, 0, 0, 0]
    some = suspected(split, coins)
    assert some.used.tolist() == [bool(coin) for coin in coins]
    for image, used in zip(some.images, some.used, strict=True):
        assert image.numpy().tobytes() in (private if used else held_out)
    for turned in range(len(coins)):
        other = suspected(split, [coin ^ (i == turned) for i, coin in enumerate(coins)])
        changed = (other.images != some.images).flatten(1).any(1)
        assert changed.tolist() == [i == turned for i in range(len(coins))]
    for same in (0, 1):
        assert suspected(split, [same] * 7).used.tolist() == [bool(same)] * 7
    with pytest.raises(ConfigError, match="records=1"):
        Suspects.of(split, 1, np.random.default_rng(0))


def test_how_many_suspects_are_members_is_left_to_the_coins(split):
    counts = [
        int(Suspects.of(split, 100, np.random.default_rng(0), SeededBits(seed)).used.sum())
        for seed in range(400)
    ]
    # Of 100 fair coins: mean 50, variance 25; a fixed half would have none.
    assert np.mean(counts) == pytest.approx(50, abs=1.0)
    assert np.var(counts) == pytest.approx(25, rel=0.25)
    drawn = [Suspects.of(split, 100, np.random.default_rng(0)).used for _ in range(2)]
    assert (drawn[0] != drawn[1]).any(), "by default nobody can repeat the coins"


def test_coins_that_all_fall_alike_prove_nothing_and_break_nothing(split, blind):
    made = invert(blind, None, starts=1, steps=1, seed=0)
    for same in (0, 1):
        few = suspected(split, [same] * 3)
        found = [by_loss(blind, few, CLAIM, 0.99), by_inversion(made, few, CLAIM, 0.99)]
        assert [finding.lower for finding in found] == [0.0, 0.0]
        assert found[0].figures["auc"] == 0.5
        json.dumps([finding.to_json() for finding in found], allow_nan=False)


def test_confidences_are_the_log_odds_of_the_true_class(blind, split):
    some, labels = split.test.images[:5], split.test.labels[:5]
    p = blind(some.float() / 255).double().softmax(-1).gather(1, labels[:, None]).squeeze(1)
    expected = (p / (1 - p)).log().detach().numpy()
    assert confidences(blind, some, labels) == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_the_loss_attack(leaky, blind, suspects):
    found = by_loss(leaky, suspects, CLAIM, 0.99)
    assert found.private
    assert found.figures["auc"] > 0.95
    low, high = found.figures["auc_interval"]
    assert 0.8 < low < high <= 1
    at = found.figures["true_positive_rate_at"]["0.1"]
    assert 0.8 < at["low"] <= at["rate"] <= at["high"]
    assert "0.001" not in found.figures["true_positive_rate_at"]
    assert found.lower > 1.0
    with pytest.raises(AuditError, match="loss"):
        expect_sound([found])
    nothing = by_loss(blind, suspects, CLAIM, 0.99)
    assert nothing.lower < 0.3
    assert 0.35 < nothing.figures["auc"] < 0.65
    expect_sound([nothing])
    # What promises nothing cannot be contradicted.
    expect_sound([by_loss(leaky, suspects, Claim(None, 1e-5), 0.99)])


def test_the_reference_attack(leaky, blind, suspects):
    seen = []
    options = {
        "references": 4,
        "steps": 20,
        "seed": 0,
        "progress": lambda done, total: seen.append((done, total)),
    }
    found = by_references(leaky, suspects, CLAIM, 0.99, **options)
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert found.lower > 1.0
    assert by_references(blind, suspects, CLAIM, 0.99, **options).lower < 0.3
    with pytest.raises(ConfigError, match="references=3"):
        by_references(blind, suspects, CLAIM, 0.99, references=3, steps=1, seed=0)


def test_a_generator_that_repeats_records_is_caught(split, suspects):
    repeated = by_samples(split.train.images, suspects, CLAIM, 0.99)
    assert repeated.figures["auc"] == 1.0
    assert repeated.contradicts
    assert by_samples(noise(300, 9).images, suspects, CLAIM, 0.99).lower < 0.3


# ---------------------------------------------------------------- canaries


@pytest.mark.parametrize("kind", list(CanaryKind))
def test_planting(split, kind):
    planted, canaries = plant(split.train, 400, kind, coins=SeededBits(1))
    used = int(canaries.used.sum())
    assert 150 < used < 250
    assert len(planted) == 120 + used
    assert (planted.images[:120] == split.train.images).all()
    assert planted.ids[:2] == ("row-0", "row-1")
    kept = torch.from_numpy(canaries.used)
    assert (planted.images[120:] == canaries.images[kept]).all()
    assert (planted.labels[120:] == canaries.labels[kept]).all()
    assert planted.data_id == split.train.data_id
    check_planted(canaries, planted)
    with pytest.raises(ConfigError, match="give the file that was written with the data"):
        check_planted(canaries, split.train)
    if kind is CanaryKind.MISLABELLED:
        originals = {
            i.numpy().tobytes(): int(y)
            for i, y in zip(planted.images[:120], planted.labels, strict=False)
        }
        assert all(
            originals[i.numpy().tobytes()] != int(y)
            for i, y in zip(canaries.images, canaries.labels, strict=True)
        )
    # By default nobody can repeat the coins.
    assert (plant(split.train, 200, kind)[1].used != plant(split.train, 200, kind)[1].used).any()
    with pytest.raises(ConfigError, match="canaries=1"):
        plant(split.train, 1)


def test_a_planted_set_is_data_that_transcribe_takes(split, tmp_path):
    planted, canaries = plant(split.train, 60, coins=SeededBits(2))
    save_planted(split, planted, canaries, tmp_path / "p")
    again = load(str(tmp_path / "p" / "planted.npz"))
    assert again.train.ids == planted.ids
    assert again.train.data_id == "npz:noise"
    assert (again.test.images == split.test.images).all()
    secret = Canaries.load(tmp_path / "p" / "canaries.npz")
    assert (secret.used == canaries.used).all()
    assert (secret.images == canaries.images).all()
    with pytest.raises(InvalidDataError, match=r"canaries\.npz that"):
        Canaries.load(tmp_path / "p" / "planted.npz")


def test_canaries_in_a_student_that_learned_them_by_heart(split, blind):
    planted, canaries = plant(split.train, 200, coins=SeededBits(3))
    student = learned_by_heart(planted.images, planted.labels)
    found = by_canaries(student, canaries, CLAIM, 0.95)
    assert found.lower > 1.5
    assert found.figures["right"] / found.figures["guesses"] > 0.9
    assert "which proves ε ≥" in found.words
    with pytest.raises(AuditError, match="canaries"):
        expect_sound([found])
    nothing = by_canaries(blind, canaries, CLAIM, 0.95)
    assert nothing.lower < 0.3
    expect_sound([nothing])


# ---------------------------------------------------------------- inversion


@pytest.mark.parametrize("with_generator", [True, False])
def test_inversions_are_what_the_student_is_sure_of(leaky, suspects, with_generator):
    generator = Generator(8, 1, 28, 4, seed=0).eval() if with_generator else None
    made = invert(leaky, generator, starts=2, steps=25, seed=0)
    assert made.images.shape == made.before.shape == (2 * CLASSES, 1, 28, 28)
    assert made.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]

    def sure(images):
        return float(confidences(leaky, images, made.labels).mean())

    assert sure(made.images) > sure(made.before)
    found = by_inversion(made, suspects, CLAIM, 0.95)
    assert 0 < found.figures["guesses"] <= 8
    assert found.figures["rmse_to_class_mean"] > 0
    assert found.lower < 1
    again = invert(leaky, generator, starts=2, steps=25, seed=0)
    assert (again.images == made.images).all()


def test_inversions_that_are_private_records_are_caught(split, suspects):
    members = torch.from_numpy(suspects.used)
    records, labels = suspects.images[members][:40], suspects.labels[members][:40]
    stolen = Inversions(records, split.test.images[:40], labels, 1.0)
    found = by_inversion(stolen, suspects, CLAIM, 0.95)
    assert found.figures["right"] == found.figures["guesses"] == 40
    assert found.figures["rmse_to_nearest_member"] < found.figures["rmse_to_nearest_held_out"]
    assert found.contradicts


@pytest.mark.parametrize("bad", [{"starts": 0}, {"steps": 0}])
def test_searches_that_are_none_are_refused(blind, bad):
    with pytest.raises(ConfigError, match=">= 1"):
        invert(blind, None, **{"starts": 1, "steps": 1, "seed": 0, **bad})
