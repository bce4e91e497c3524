import re
import sys
from dataclasses import replace

import pytest

from fedtranscribe.config import TranscribeSettings
from fedtranscribe.errors import ConfigError
from fedtranscribe.privacy.accountant import epsilon
from fedtranscribe.privacy.release_plan import NoisePlan
from fedtranscribe.privacy.units import Adjacency, NoiseMode, Unit
from fedtranscribe.questions.capabilities import Capabilities
from fedtranscribe.questions.question import Kind
from fedtranscribe.rounds.plan import Asked, Plan
from fedtranscribe.rounds.planning import make_plan
from fedtranscribe.runs.picking import default_shards, kind_of, training_mode
from fedtranscribe.runs.preparation import prepare

OWN = Capabilities(
    name="own",
    classes=10,
    channels=1,
    size=28,
    shards=250,
    positional_ids=False,
    records=4_000,
    kinds=tuple(Kind),
    noise=NoiseMode.LOCAL,
    rows_per_message=sys.maxsize,
    rows_per_run=sys.maxsize,
)


def plan(shards: int = 250, records: int = 4_000, **changes) -> Plan:
    settings = TranscribeSettings(**changes)
    asked = Asked(settings, kind_of(settings), by_formula=settings.calibrate_by == "published")
    return make_plan(asked, {"own": replace(OWN, shards=shards, records=records)})


def cost(made: Plan) -> float:
    events = [release.event(Unit.RECORD, Adjacency.ZERO_OUT) for release in made.releases("own")]
    return epsilon(events, 1e-5)


@pytest.mark.parametrize("privacy", ["data", "vote", "label"])
@pytest.mark.parametrize("target", [1.0, 10.0])
def test_a_sound_plan_costs_at_most_what_was_asked(privacy: str, target: float):
    made = plan(privacy=privacy, epsilon=target)
    assert cost(made) <= target * (1 + 1e-6)
    assert cost(made) >= target * (0.5 if privacy == "label" else 0.999)


def test_a_published_plan_prints_the_target_and_shows_what_it_really_costs():
    made = plan(privacy="data", calibrate_by="published")
    assert made.published is not None
    assert made.published.epsilon == pytest.approx(10, rel=1e-6)
    assert abs(cost(made) - 10) > 1, "the published formula and the sound figure are not the same"
    # Signal is rows / s², whatever the noise was calibrated by.
    assert made.forecast.signal == pytest.approx(made.rows / made.noise.strength**2, rel=1e-4)


def test_votes_need_less_noise_than_gradients_by_a_factor_of_root_two():
    gradient, vote = plan(privacy="data").noise_std, plan(privacy="vote").noise_std
    assert gradient is not None
    assert vote is not None
    assert gradient == pytest.approx(vote * 2**0.5)


def test_the_unit_holder_needs_as_much_noise_as_one_teacher():
    alone = plan(shards=1).noise_std
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
    with pytest.raises(ConfigError, match="shards=1"):
        plan(privacy="label", unit="holder")


def test_one_class_sets_and_too_many_shards_are_refused(tiny_data):
    with pytest.raises(ConfigError, match="top-k=1"):
        plan(top_k=1)
    with pytest.raises(ConfigError, match=r"shards=5000 <= \d+ records"):
        prepare(TranscribeSettings(data=str(tiny_data), teacher="cnn-small", shards=5_000))


@pytest.mark.parametrize(
    ("records", "target", "verdict"),
    [(4_000, 10, "fine"), (4_000, 0.1, "poor"), (60_000, 0.1, "fine"), (60, 0.1, "hopeless")],
)
def test_the_forecast_of_moments_knows_records_and_noise(records: int, target: float, verdict: str):
    made = plan(source="moments", epsilon=target, records=records, shards=0)
    assert made.forecast.verdict.value == verdict
    assert cost(made) == pytest.approx(target, rel=1e-6)


def test_moments_hide_no_holder():
    with pytest.raises(ConfigError, match="unit=record"):
        plan(source="moments", unit="holder")


def test_a_run_of_teachers_says_in_figures_what_a_start_would_add():
    alone = prepare(TranscribeSettings(data="digits", teacher="cnn", epsilon=1))
    said = alone.words[0]
    assert "--start moments would begin with two noisy sums over all 4,000 records" in said
    assert "sums would be fine, teachers poor" in said
    assert "400 records (n / 10) is 1.4 times as strong as the noise" in said


@pytest.mark.long
@pytest.mark.parametrize(
    "typed",
    [{"privacy": "label"}, {"unit": "holder", "shards": 1}, {"calibrate_by": "published"}],
    ids=str,
)
def test_no_start_is_offered_where_there_can_be_none(typed: dict):
    settings = TranscribeSettings(data="digits", teacher="cnn", epsilon=10, **typed)
    assert prepare(settings).words[0] == "teachers alone are asked"


# ---------------------------------------------------------------- sums over records


def sums(records: int, epsilon: float, mode: NoiseMode = NoiseMode.LOCAL, **changes) -> Plan:
    """The plan of two holders."""
    holders = ("one", "other")
    facts = {"records": records // 2, **changes}
    roster = {name: replace(OWN, name=name, **facts) for name in holders}
    asked = Asked(TranscribeSettings(epsilon=epsilon), Kind.MOMENTS, mode)
    return make_plan(asked, roster)


@pytest.mark.parametrize("mode", list(NoiseMode))
@pytest.mark.parametrize("target", [1.0, 10.0])
def test_moments_and_mixture_cost_what_was_asked(mode: NoiseMode, target: float):
    made = sums(60_000, target, mode)
    found = [r.event(Unit.RECORD, Adjacency.ZERO_OUT) for r in made.releases("one")]
    assert len(found) == len(made.parts) >= 5
    assert 0.999 * target < epsilon(found, 1e-5) <= target * (1 + 1e-6)


def components(made: Plan) -> int:
    return max(part.classes or 0 for part in made.mixture) // 10


def test_more_components_only_where_the_noise_allows_them():
    assert components(sums(1_000_000, 10.0)) == 8, "there are never more"
    assert components(sums(4_000, 10.0)) == 1
    assert components(sums(60_000, 1.0)) == 1
    assert 1 < components(sums(60_000, 10.0)) < 8
    assert components(sums(0, 10.0)) == 1, "who declares nothing gets none"
    few, many = sums(4_000, 10.0), sums(1_000_000, 10.0)
    assert len(few.mixture) == 3
    assert len(many.mixture) == 4
    assert "a mixture of 8 Gaussians per class" in many.words


def test_the_student_gives_what_it_can_spare():
    assert sums(60_000, 10.0).mixture_share == 0.5
    assert sums(60_000, 1.0).mixture_share == 0.3
    assert sums(4_000, 10.0).mixture_share == 0.3
    assert sums(0, 10.0).mixture_share == 0.3, "nothing is known of records that are not declared"
    assert sums(60_000, 10.0, channels=3).mixture_share == 0.1, "colour shows less of itself"


def test_where_noise_would_hide_the_pictures_the_student_has_the_budget():
    made = sums(4_000, 0.3)
    assert made.shows_nothing
    assert not made.mixture
    assert made.mixture_share == 0
    assert "in pictures a class would be only" in made.words
    student = TranscribeSettings(epsilon=0.3, with_generator=False, mixture_share=0.0)
    alone = make_plan(Asked(student, Kind.MOMENTS, NoiseMode.LOCAL), made.roster)
    assert made.parts == alone.parts
    wanted = TranscribeSettings(epsilon=0.3, mixture_share=0.3)
    asked = make_plan(Asked(wanted, Kind.MOMENTS, NoiseMode.LOCAL), made.roster)
    assert asked.mixture
    assert not asked.shows_nothing
    assert not sums(4_000, 1.0).shows_nothing
    assert not sums(0, 0.3).shows_nothing, "nothing is known of records that are not declared"


@pytest.mark.parametrize(("channels", "size"), [(1, 28), (1, 64), (1, 128), (3, 32)])
def test_the_plan_says_what_sharpening_takes(channels: int, size: int):
    made = sums(60_000, 10.0, channels=channels, size=size)
    assert made.sharpened
    (found,) = re.findall(r"takes about (\d+) minutes of one core and ([0-9.]+) GB", made.words)
    minutes, memory = map(float, found)
    pixels = channels * size**2 / 28**2
    assert minutes == pytest.approx(4 * pixels, rel=0.7)
    assert memory == pytest.approx(0.5 * pixels, rel=0.7)


def test_only_sums_weigh_classes():
    balanced = TranscribeSettings(balanced=True, teacher="cnn-small", shards=50)
    with pytest.raises(ConfigError, match="Expected balanced=false where teachers are asked"):
        make_plan(Asked(balanced, Kind.VOTE), {"own": replace(OWN, shards=50)})
    sums_alone = TranscribeSettings(balanced=True)
    made = make_plan(Asked(sums_alone, Kind.MOMENTS), {"own": OWN})
    plain = make_plan(Asked(TranscribeSettings(), Kind.MOMENTS), {"own": OWN})
    assert made.parts == plain.parts, "it costs nothing"


def test_a_holder_without_mixtures_leaves_all_to_the_student():
    made = sums(60_000, 10.0, kinds=(Kind.MOMENTS,))
    assert not made.mixture
    assert made.words == (
        "no gradients are asked for: holder one does not allow them; "
        "no mixture is asked for: holder one does not allow it"
    )
    asked = Asked(TranscribeSettings(mixture_share=0.2), Kind.MOMENTS)
    with pytest.raises(ConfigError, match="Holder own allows no mixture; set mixture_share=0"):
        make_plan(asked, {"own": replace(OWN, kinds=(Kind.MOMENTS,))})


def test_noise_that_cannot_be_added_is_refused_before_anything_is_spent():
    tiny = TranscribeSettings(mixture_share=1e-12, epsilon=0.01)
    with pytest.raises(ConfigError, match="noise"):
        make_plan(Asked(tiny, Kind.MOMENTS), {"own": OWN})


@pytest.mark.parametrize("records", [0, 10**12])
def test_a_mixture_whose_sums_would_be_too_long_is_not_planned(records):
    asked = Asked(TranscribeSettings(epsilon=1e4), Kind.MOMENTS)
    many = replace(OWN, classes=9_800, records=records)
    made = make_plan(asked, {"own": many})
    assert made.mixture_share == 0
    assert "9,800 classes are too many" in made.words
    fewer = make_plan(asked, {"own": replace(many, classes=3_000)})
    assert all((part.classes or 0) <= 9_749 for part in fewer.mixture)
    assert fewer.mixture
    share = asked.settings.model_copy(update={"mixture_share": 0.3})
    with pytest.raises(ConfigError, match="mixture_share=0"):
        make_plan(replace(asked, settings=share), {"own": many})


@pytest.mark.parametrize("delta", [1e-12, 1e-11])
def test_labels_at_a_tiny_delta_cost_what_was_asked(delta):
    made = plan(shards=1, privacy="label", epsilon=30.0, delta=delta)
    stated = made.guarantee({"own": [made.rows]}, Unit.RECORD, Adjacency.ZERO_OUT)
    assert stated is not None
    assert stated.epsilon <= 30 * (1 + 1e-6)


def test_a_plan_that_would_state_more_than_was_asked_is_refused(monkeypatch):
    weak = NoisePlan(NoiseMode.CENTRAL, 0.01, 1)
    monkeypatch.setattr("fedtranscribe.rounds.planning.row_noise", lambda *_: weak)
    with pytest.raises(ConfigError, match="Expected a plan of epsilon=10"):
        plan(privacy="vote")
