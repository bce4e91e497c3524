"""A run's result as a type: what is written is read again, and folders of before still open."""

import json
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtranscribe.errors import StorageError
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.results.allowed import Why
from fedtranscribe.results.parts import (
    FLAT,
    Accuracy,
    AccuracyCurve,
    Answers,
    CountedGenerator,
    Diffusion,
    Federation,
    LedgerFacts,
    LedgerLimit,
    PublishedFigure,
    ResultPart,
    StatedGuarantee,
    Whole,
    listed,
)
from fedtranscribe.results.result import (
    METRICS,
    REASONS,
    SCORES,
    VERSION,
    Result,
    TrainedFacts,
    with_private_scores,
)
from tests.results import result_of

# Literally what runs wrote before results had a number, one of each kind.
UNNUMBERED = {path.stem: path for path in Path(__file__).parent.glob("unnumbered_results/*.json")}
PARTS = {
    "transcribe-moments": {"answers"},
    "transcribe-votes": {"answers"},
    "feddpsd": {"answers", "federation"},
    "fedavg": {"federation"},
    "dp-promise": {"diffusion"},
    "dp-sad": {"diffusion"},
    "dp-promise-at-a-holder": {"diffusion", "federation"},
}


def folder(path: Path, content: Any) -> Path:
    """A finished run's folder, as far as its result goes."""
    (path / "config.toml").touch()
    (path / METRICS).write_text(content if isinstance(content, str) else json.dumps(content))
    return path


# ---------------------------------------------------------------- folders of before


@pytest.mark.parametrize("kind", PARTS)
def test_a_folder_of_before_opens_and_loses_nothing(kind: str, tmp_path: Path):
    stored = json.loads(UNNUMBERED[kind].read_text())
    assert "version" not in stored
    result = Result.read(folder(tmp_path, stored))
    assert result.to_json() == {"version": 1, **stored}
    parts = ("answers", "federation", "diffusion")
    assert {name for name in parts if getattr(result, name) is not None} == PARTS[kind]
    assert (result.run, result.rows) == (stored["run"], stored["rows"])
    stated = result.guarantee
    assert (stated.epsilon, stated.held) == (stored["epsilon"], stored["epsilon"])
    assert (stated.unit, stated.adjacency) == (Unit.RECORD, Adjacency.ZERO_OUT)
    assert result.asked.data == "digits"


def test_every_kind_of_before_is_tried():
    assert set(UNNUMBERED) == set(PARTS)


def test_teachers_are_counted_over_all_holders(tmp_path: Path):
    def read(kind: str) -> Result:
        return Result.model_validate_json(UNNUMBERED[kind].read_text())

    assert read("transcribe-votes").teachers == 20
    assert read("feddpsd").teachers == sum(read("feddpsd").shards.values()) == 6
    assert read("dp-promise").teachers is None


def test_whether_the_data_id_is_named_is_more_than_which():
    assert result_of(data_id=None).says_data_id
    assert result_of(holders=1).says_data_id
    assert not result_of(data="digits").says_data_id


# ---------------------------------------------------------------- folders that do not open


def test_what_is_no_finished_run_is_said(tmp_path: Path):
    with pytest.raises(StorageError, match="No run in"):
        Result.read(tmp_path / "absent")
    (tmp_path / "config.toml").touch()
    with pytest.raises(StorageError, match="is not finished"):
        Result.read(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", "3", '"text"', "{}", '{"settings": {}}'])
def test_a_file_that_is_no_result_is_damaged(tmp_path: Path, content: str):
    with pytest.raises(StorageError, match=r"metrics\.json is damaged"):
        Result.read(folder(tmp_path, content))


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        ({"unit": "patient"}, "unit"),
        ({"private": "yes"}, "private"),
        ({"epsilon": "small"}, "epsilon"),
        ({"class_names": [1, 2]}, "class_names"),
        ({"sampling": {}}, "sigma"),
        ({"settings": {"seed": "x"}}, "settings"),
        ({"version": "one"}, "version"),
    ],
    ids=str,
)
def test_a_value_of_another_type_is_named(tmp_path: Path, wrong: dict[str, Any], where: str):
    stored = {**result_of().to_json(), **wrong}
    with pytest.raises(StorageError, match=rf"is damaged.*{where}"):
        Result.read(folder(tmp_path, stored))


def test_a_newer_version_is_said_and_not_called_damaged(tmp_path: Path):
    newer = {"version": VERSION + 1, "outcome": {}}
    with pytest.raises(StorageError, match=r"has version 2, .* reads up to 1; use the version"):
        Result.read(folder(tmp_path, newer))


# ---------------------------------------------------------------- what is written is read again

_texts, _counts = st.text(max_size=20), st.integers(0, 10**9)
_figures = st.floats(0, 1e6) | st.none()
_trees = st.dictionaries(_texts, _counts | _texts | st.none(), max_size=3)
_rates = st.floats(0, 1)


def _some(kind: type[Any], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(kind, **fields)


_guarantees = _some(
    StatedGuarantee,
    epsilon=_figures,
    delta=st.floats(1e-9, 0.5),
    unit=st.sampled_from(Unit),
    adjacency=st.sampled_from(Adjacency),
    accountant=_texts | st.none(),
    sound=st.dictionaries(st.sampled_from(Adjacency), _figures),
    units=st.dictionaries(st.sampled_from(Unit), _figures),
    published=_some(PublishedFigure, epsilon=_figures, reason=_texts) | st.none(),
    private=st.booleans(),
    caveats=st.lists(_texts, max_size=2).map(tuple),
)
_answers = _some(
    Answers,
    privacy=_texts,
    noise_std=_figures,
    signal=_figures,
    noise=st.sampled_from(["local", "central", "secagg"]),
    teachers=_counts,
)
_federations = _some(
    Federation,
    holders=_counts,
    shards=st.dictionaries(_texts, _counts, max_size=3),
    left=st.dictionaries(_texts, _texts, max_size=3),
    stopped=_texts | st.none(),
)
_diffusions = _some(
    Diffusion,
    sigma=st.floats(0, 100),
    steps=st.dictionaries(_texts, _counts, max_size=3),
    records=_counts,
    classes=_counts,
    channels=_counts,
    size=_counts,
    unet=_texts,
    sampling=_trees,
    sha256=_texts,
    resolved=_trees,
)
_limits = _some(
    LedgerLimit,
    epsilon=_figures,
    delta=_rates,
    unit=st.sampled_from(Unit),
    adjacency=st.sampled_from(Adjacency),
)
_results = _some(
    Result,
    run=_texts,
    method=_texts,
    rows=_counts,
    guarantee=_guarantees,
    answers=_answers | st.none(),
    federation=_federations | st.none(),
    diffusion=_diffusions | st.none(),
    data=_texts | st.none(),
    class_names=st.lists(_texts, max_size=3).map(tuple) | st.none(),
    generator=_some(
        CountedGenerator,
        run=_texts,
        data_id=_texts,
        counted=st.booleans(),
        epsilon_of_answers=_rates,
    )
    | st.none(),
    ledger=_some(LedgerFacts, booked=_figures, accountant=_texts, limit=_limits | st.none())
    | st.none(),
    accuracy=_some(Accuracy, student=_rates, downstream=_rates) | st.none(),
    curve=_some(
        AccuracyCurve,
        rows=st.lists(_counts, max_size=3).map(tuple),
        accuracy=st.lists(_rates, max_size=3).map(tuple),
    )
    | st.none(),
    settings=st.fixed_dictionaries({"data": _texts, "seed": _counts, "dpsd": _trees}),
)


@settings(derandomize=True, deadline=None, max_examples=100)
@given(_results)
def test_what_is_written_is_read_again(result: Result):
    told = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert Result.model_validate(told) == result
    assert Result.model_validate(told).to_json() == told


@settings(derandomize=True, deadline=None, max_examples=50)
@given(_results, _diffusions)
def test_facts_of_a_training_are_told_and_taken(result: Result, diffusion: Diffusion):
    facts = TrainedFacts.of(result.model_copy(update={"diffusion": diffusion}))
    assert TrainedFacts.model_validate_json(json.dumps(facts.to_json())) == facts
    assert not {"settings", "ledger", "data", "accuracy"} & facts.to_json().keys()


def test_a_result_is_written_whole_and_read_from_its_folder(tmp_path: Path):
    result = result_of(epsilon=1.5, private=True, privacy="vote", teachers=3)
    result.write(tmp_path)
    assert json.loads((tmp_path / METRICS).read_text())["version"] == VERSION
    assert Result.read(tmp_path).guarantee.held == 1.5


def test_a_figure_that_is_no_number_is_null():
    published = PublishedFigure(epsilon=float("inf"), reason="")
    assert json.dumps(published.to_json()) == '{"epsilon": null, "reason": ""}'


def test_accuracies_under_private_are_shown_and_named(tmp_path: Path):
    (tmp_path / "private").mkdir()
    (tmp_path / SCORES).write_text('{"ensemble": 0.9, "student": 0.5}')
    shown = with_private_scores(tmp_path, result_of(accuracy={"student": 0.5}))
    assert shown.not_private == ("ensemble",)
    told = shown.to_json()
    assert (told["accuracy"], told["not_private"]) == (
        {"ensemble": 0.9, "student": 0.5},
        ["ensemble"],
    )
    assert shown.result.accuracy == Accuracy(student=0.5)


# ---------------------------------------------------------------- why each key may stand there


def test_no_key_has_two_reasons():
    keys = [pattern for patterns in REASONS.values() for pattern in patterns.split()]
    assert len(keys) == len(set(keys))
    assert {"epsilon", "shards.*", "settings.**", "ledger.limit.unit", "accuracy.student"} <= {
        *keys
    }


def test_a_field_has_to_say_why_it_may_be_told():
    class Careless(ResultPart):
        ensemble: float

    class Twice(ResultPart):
        rows: Annotated[int, Why.COST, Why.PROGRESS]

    for kind in (Careless, Twice):
        with pytest.raises(TypeError, match="has to say once why"):
            listed(kind)


def test_a_part_is_there_if_one_of_its_keys_is():
    class Inner(ResultPart):
        size: Annotated[int | None, Why.SETTING] = None

    class Outer(Whole):
        inner: Annotated[Inner | None, FLAT] = None
        name: Annotated[str, Why.SETTING] = ""

    assert Outer.model_validate({"name": "x"}).inner is None
    assert Outer.model_validate({"size": None}).inner == Inner(size=None)
    assert Outer(inner=Inner(size=3), name="x").to_json() == {"size": 3, "name": "x"}
    assert listed(Outer) == {Why.SETTING: "size name"}
