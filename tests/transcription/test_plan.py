import pytest
from fedtranscribe.transcribe.plan import (
    TaskFacts,
    default_shards,
    make_plan,
    training_mode,
)

from fedtranscribe.config import TranscribeSettings
from fedtranscribe.errors import ConfigError
from fedtranscribe.privacy.accountant import epsilon
from fedtranscribe.privacy.units import Adjacency, Unit

FACTS = TaskFacts(records=4_000, classes=10, channels=1, size=28)


def plan(**changes):
    return make_plan(TranscribeSettings(**changes), FACTS, 250, "full")


@pytest.mark.parametrize("privacy", ["data", "vote", "label"])
@pytest.mark.parametrize("target", [1.0, 10.0])
def test_a_sound_plan_costs_at_most_what_was_asked(privacy: str, target: float):
    made = plan(privacy=privacy, epsilon=target)
    release = made.mechanism.release(made.rows, positional_ids=False)
    cost = epsilon([release.event(Unit.RECORD, Adjacency.ZERO_OUT)], 1e-5)
    assert cost <= target * (1 + 1e-6)
    assert cost >= target * (0.5 if privacy == "label" else 0.999)


def test_a_published_plan_prints_the_target_and_shows_what_it_really_costs():
    made = plan(privacy="data", calibrate_by="published")
    assert made.published.epsilon == pytest.approx(10, rel=1e-6)
    release = made.mechanism.release(made.rows, positional_ids=False)
    sound = epsilon([release.event(Unit.RECORD, Adjacency.ZERO_OUT)], 1e-5)
    assert abs(sound - 10) > 1, "the published formula and the sound figure are not the same"
    # Signal is rows / s², whatever the noise was calibrated by.
    assert made.forecast.signal == pytest.approx(made.rows / made.noise_std**2, rel=1e-4)


def test_votes_need_less_noise_than_gradients_by_a_factor_of_root_two():
    gradient, vote = plan(privacy="data").noise_std, plan(privacy="vote").noise_std
    assert gradient == pytest.approx(vote * 2**0.5)


def test_the_unit_holder_needs_as_much_noise_as_one_teacher():
    alone = make_plan(TranscribeSettings(), FACTS, 1, "full").noise_std
    assert plan(unit="holder").noise_std == pytest.approx(alone)
    assert plan(unit="holder").forecast.hopeless


def test_the_default_plan_is_never_hopeless():
    assert not plan().forecast.hopeless
    assert default_shards(4_000) == 250
    assert default_shards(10) == 1


def test_large_networks_train_heads_and_small_ones_all_of_themselves():
    assert training_mode("cnn", None) == "full"
    assert training_mode("resnet50", None) == "heads"
    assert training_mode("cnn", "weights.safetensors") == "heads"


def test_label_votes_give_a_holder_no_guarantee():
    with pytest.raises(ConfigError, match="--shards 1"):
        plan(privacy="label", unit="holder")


def test_one_class_sets_and_too_many_shards_are_refused():
    with pytest.raises(ConfigError, match="top-k=1"):
        plan(top_k=1)
    with pytest.raises(ConfigError, match="shards=5000 <= 4000"):
        make_plan(TranscribeSettings(), FACTS, 5_000, "full")
