"""Every file and every key outside `private/`, of each kind of run, is on the list of what may be.

All runs are on a benchmark, where most may be told, and some on a user's own records as well.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedtranscribe.config import (
    DpPromiseOptions,
    DpSadOptions,
    SynthesizeSettings,
    TrackingOptions,
    TranscribeSettings,
)
from fedtranscribe.config.evaluation import AuditSettings, EvaluationSettings
from fedtranscribe.data import DataSplit, load
from fedtranscribe.data.registry import PACKAGED
from fedtranscribe.errors import PrivacyError
from fedtranscribe.evaluation import fidelity as features
from fedtranscribe.evaluation.audit import audit
from fedtranscribe.evaluation.comparison import compare
from fedtranscribe.evaluation.evaluate import evaluate
from fedtranscribe.evaluation.report import write_report
from fedtranscribe.flower.apps import settings_from
from fedtranscribe.flower.simulate import report_mistake
from fedtranscribe.flower.simulated import _serve, simulated_client_app
from fedtranscribe.releases import make_release
from fedtranscribe.results.allowed import KEYS, Why, expect_allowed, keys_of, why, why_file
from fedtranscribe.results.parts import Accuracy
from fedtranscribe.results.progress import Tracker
from fedtranscribe.results.result import METRICS, REASONS
from fedtranscribe.results.run_directory import RunDirectory
from fedtranscribe.runs.finished import FinishedRun
from fedtranscribe.runs.preparation import prepare
from fedtranscribe.runs.transcription import transcribe
from fedtranscribe.trainers.preparation import prepare as prepare_synthesis
from fedtranscribe.trainers.synthesize import synthesize
from tests.conftest import TINY_DPSD, TINY_TEACHERS
from tests.federation.local_grid import LocalGrid
from tests.results import result_of

# No run arrives at these, and no other figure looks like them.
MARKED = {"single_teacher": 0.7319482612, "ensemble": 0.9173645528}

# What runs wrote into metrics.json before it had a version: scripts read these keys.
UNNUMBERED = {
    **{"moments": "transcribe-moments", "teachers, vote": "transcribe-votes"},
    **{"dp-promise": "dp-promise", "dp-sad": "dp-sad", "simulated, local": "feddpsd"},
    **{"fedavg": "fedavg", "dp-promise at a holder": "dp-promise-at-a-holder"},
}

# Keys by file: of the result its type says them.
LISTED = {**KEYS, METRICS: REASONS}


@pytest.fixture
def benchmark(tiny_data: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The tiny images under the name of a packaged benchmark."""
    split = load(str(tiny_data))
    parts = (replace(part, name="digits", data_id="digits") for part in (split.train, split.test))
    named = DataSplit(*parts)
    monkeypatch.setitem(PACKAGED, "digits", lambda: named)
    return "digits"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What networks have learned is not what is tested."""
    train = features.train_features
    monkeypatch.setattr(features, "train_features", lambda public: train(public, steps=2))
    features.registered.cache_clear()
    monkeypatch.setattr("fedtranscribe.runs.pooled._JUDGED", 30)


# ---------------------------------------------------------------- kinds of runs


def transcribed(data: str, out: Path, **options: Any) -> None:
    settings = TranscribeSettings(
        data=data,
        device="cpu",
        dpsd=TINY_DPSD.model_copy(update={"moments_steps": 1}),
        teachers=TINY_TEACHERS,
        tensorboard=True,
        **options,
    )
    transcribe(prepare(settings), out, force=True)


def from_teachers(data: str, out: Path, privacy: str) -> None:
    asked = {"teacher": "cnn-small", "student": "cnn-small", "shards": 20, "rows": 40}
    transcribed(data, out, privacy=privacy, **asked)


def synthesized(data: str, out: Path, **options: Any) -> None:
    settings = SynthesizeSettings(
        data=data,
        epsilon=1.0,
        size="tiny",
        sampling_steps=2,
        samples=60,
        physical_batch=4,
        **options,
    )
    synthesize(prepare_synthesis(settings), out, judge=lambda *_: 0.25)


def dp_promise(data: str, out: Path) -> None:
    steps = {"boundary": 980, "phase1_batch": 4, "phase1_epochs": 0.25, "copies": 2}
    options = DpPromiseOptions(**steps, phase2_batch=4, phase2_epochs=0.25)
    synthesized(data, out, dp_promise=options)


def started(data: str, out: Path) -> None:
    steps = {"phase1": False, "phase2_batch": 4, "phase2_epochs": 0.25, "copies": 1}
    synthesized(
        data,
        out,
        start="mixture",
        start_share=0.5,
        pretrain_epochs=0.004,
        dp_promise=DpPromiseOptions(**steps),
    )


def dp_sad(data: str, out: Path) -> None:
    options = DpSadOptions(
        teacher="dp", batch=6, epochs=0.25, time_steps=20, copies=1, synthetic_images=8
    )
    synthesized(data, out, method="dp-sad", dp_sad=options)


def simulated(data: str, out: Path, **options: Any) -> None:
    config = {
        "data": data,
        "holders": 3,
        "alpha": 10.0,
        "shards": 2,
        "teacher": "cnn-small",
        "student": "cnn-small",
        "rows": 20,
        "force": True,
        "device": "cpu",
        "out": str(out),
        "tensorboard": True,
        "teachers.steps": 2,
        "dpsd.round-rows": 10,
        "dpsd.batch": 8,
        "dpsd.latent-dim": 8,
        "dpsd.generator-width": 4,
        "dpsd.pretrain-steps": 2,
        "dpsd.generator-steps": 1,
        "dpsd.student-steps": 1,
        "dpsd.finish-steps": 1,
        "baseline.rounds": 1,
        "baseline.local-steps": 2,
        "baseline.batch": 8,
        "baseline.distil-steps": 2,
        "baseline.pool": 8,
        **options,
    }
    grid = LocalGrid(simulated_client_app("toy"), {1: {}, 2: {}, 3: {}}, config)
    _serve(grid, settings_from(config), out)


def trained_by_every_holder(data: str, out: Path) -> None:
    trained_by_a_holder(data, out, trainer="all", holders=2)


def trained_by_a_holder(data: str, out: Path, **others: Any) -> None:
    steps = {"phase1": False, "phase2-batch": 4, "phase2-epochs": 0.3, "copies": 1}
    options = {f"training.dp-promise.{name}": value for name, value in steps.items()}
    shape = {"training.size": "tiny", "training.sampling-steps": 2, "holders": 1, "shards": 1}
    shape["training.pretrain-epochs"] = 0.004
    simulated(data, out, method="dp-promise", **{**shape, **options, **others})


KINDS: dict[str, Callable[[str, Path], None]] = {
    "moments": transcribed,
    **{
        f"teachers, {privacy}": lambda data, out, privacy=privacy: from_teachers(data, out, privacy)
        for privacy in ("vote", "data", "label")
    },
    "dp-promise": dp_promise,
    "dp-sad": dp_sad,
    **{
        f"simulated, {noise}": lambda data, out, noise=noise: simulated(data, out, noise=noise)
        for noise in ("local", "central", "secagg")
    },
    **{
        method: lambda data, out, method=method: simulated(data, out, method=method)
        for method in ("fedavg", "feddf")
    },
    "dp-promise at a holder": trained_by_a_holder,
    "dp-promise at every holder": trained_by_every_holder,
    "dp-promise after a mixture": started,
}


# ---------------------------------------------------------------- what they leave


def outside(folder: Path) -> Iterator[str]:
    """Every file that is not under `private/`, by its path in the folder.

    Each folder under `holders/` is a run of its own, and looked at as such.
    """
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not name.startswith(("private/", "holders/")):
            yield name


def not_listed(folder: Path) -> list[str]:
    """Files, and keys of files, that nothing allows."""
    found = []
    for name in outside(folder):
        if name not in LISTED:
            found += [] if why_file(name) else [name]
            continue
        text = (folder / name).read_text(encoding="utf-8")
        contents = text.splitlines() if name.endswith("l") else [text]
        keys = {key for content in contents for key in keys_of(json.loads(content))}
        found += [
            f"{name}: {'.'.join(key)}" for key in sorted(keys) if why(LISTED[name], key) is None
        ]
    return found


def looked_at(run: Path, folder: Path) -> None:
    """Everything that writes into the folder of a finished run, or writes of it elsewhere."""
    finished = FinishedRun.open(run)
    evaluate(
        finished, EvaluationSettings(samples=60, classifiers=("mlp", "lda"), epochs=1, device="cpu")
    )
    tiny = {"trials": 1_000, "records": 20, "references": 2, "reference_steps": 2, "samples": 20}
    audit(finished, AuditSettings(**tiny, starts=1, inversion_steps=2, device="cpu"))
    make_release(run, stamp_not_private=True)
    write_report(run)
    compare([run]).write(folder)


def leaks(folder: Path) -> list[str]:
    """Files outside `private/` that hold an accuracy of a teacher or of an ensemble."""
    marks = [f"{value:.5f}" for value in MARKED.values()]
    marks += [f"{100 * value:.3f}" for value in MARKED.values()]
    contents = {name: (folder / name).read_bytes() for name in outside(folder)}
    return [name for name, told in contents.items() if any(m.encode() in told for m in marks)]


@pytest.fixture
def lines_drawn(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of lines in accuracy.png; teachers get marked accuracies."""
    drawn: list[str] = []
    monkeypatch.setattr(
        "fedtranscribe.runs.learning.draw_curve",
        lambda answered, values, lines, path, what: drawn.extend(lines),
    )
    for place in ("runs.transcription", "flower.simulated"):
        monkeypatch.setattr(f"fedtranscribe.{place}.ensemble_accuracy", lambda *_: MARKED)
    return drawn


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_run_on_a_benchmark_leaves_is_listed(kind, benchmark, tmp_path, lines_drawn):
    run = tmp_path / "run"
    KINDS[kind](benchmark, run)
    owns = sorted(run.glob("holders/*"))
    assert len(owns) == (2 if kind == "dp-promise at every holder" else 0)
    for folder in (run, *owns):
        assert not_listed(folder) == []
        assert leaks(folder) == []
    assert set(lines_drawn) <= {"public set alone"}
    scores = json.loads((run / "private" / "accuracy.json").read_text())
    if kind.startswith(("teachers", "simulated")):
        assert MARKED.items() <= scores.items()
    told = json.loads((run / "metrics.json").read_text())
    assert told["accuracy"] == {k: v for k, v in scores.items() if k not in MARKED}
    if "confusion" in told:
        kept = json.loads((run / "private" / "confusion.json").read_text())
        assert told["confusion"] == kept
    if kind in UNNUMBERED:
        before = Path(__file__).parent / "unnumbered_results" / f"{UNNUMBERED[kind]}.json"
        added = told.keys() - json.loads(before.read_text()).keys()
        assert (
            {"version"}
            <= added
            <= {
                *("mixture", "start", "version"),
                "sums_stds",
                "abandoned_rows",
                "confusion",
                "declared_teachers",
                "features",
                "logit_scale",
                "private_start",
            }
        )
        assert not json.loads(before.read_text()).keys() - told.keys()


@pytest.mark.long
@pytest.mark.parametrize("kind", ["teachers, vote", "dp-promise", "simulated, central"])
def test_what_is_written_of_a_finished_run_is_listed(kind, benchmark, tmp_path, lines_drawn):
    run, compared = tmp_path / "run", tmp_path / "compared"
    KINDS[kind](benchmark, run)
    looked_at(run, compared)
    assert {"release/privacy.json", "report.html", "audit.json"} <= set(outside(run))
    assert not_listed(run) == []
    assert leaks(run) == leaks(compared) == []


@pytest.mark.long
@pytest.mark.parametrize("kind", ["teachers, vote", "simulated, central"])
def test_what_a_run_on_own_records_leaves_is_listed(kind, tiny_data, tmp_path):
    run = tmp_path / "run"
    KINDS[kind](str(tiny_data), run)
    looked_at(run, tmp_path / "compared")
    assert not_listed(run) == []
    result = json.loads((run / "metrics.json").read_text())
    assert not result["accuracy"]
    assert result.get("confusion") is None
    assert json.loads((run / "private" / "confusion.json").read_text())["counts"]
    assert not result.get("curve", {}).get("accuracy")
    evaluated = json.loads((run / "evaluation.json").read_text())
    assert Why.BENCHMARK not in {why(LISTED["evaluation.json"], key) for key in keys_of(evaluated)}


def test_the_search_finds_a_file_and_a_key_that_are_on_no_list(tmp_path):
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "accuracy.json").write_text('{"ensemble": 0.9}')
    assert not_listed(tmp_path) == []
    (tmp_path / "teachers.png").touch()
    (tmp_path / "metrics.json").write_text('{"accuracy": {"student": 0.5, "ensemble": 0.9}}')
    (tmp_path / "audit.json").write_text('{"findings": [{"attack": "loss"}, {"auc": 0.7}]}')
    (tmp_path / "progress.jsonl").write_text('{"done": 1}\n{"done": 2, "private_loss": 0.1}\n')
    assert not_listed(tmp_path) == [
        "audit.json: findings.auc",
        "metrics.json: accuracy.ensemble",
        "progress.jsonl: private_loss",
        "teachers.png",
    ]


# ---------------------------------------------------------------- writers refuse


def test_a_writer_refuses_a_key_that_is_not_listed(tiny_settings, tmp_path):
    run = RunDirectory.create(tmp_path / "run", tiny_settings)
    with pytest.raises(PrivacyError, match=r"events\.jsonl must not hold 'answers'"):
        run.write_events([{"mechanism": "mean-votes", "rows": 1, "answers": [1, 2]}])
    assert not (run.path / "events.jsonl").exists()


def test_a_result_has_no_place_for_what_is_not_listed(tmp_path):
    scores = {"student": 0.5, "ensemble": 0.9}
    result_of(
        accuracy=scores, ensemble=0.9, published={"epsilon": 1.0, "reason": "", "of": 3}
    ).write(tmp_path)
    told = json.loads((tmp_path / METRICS).read_text())
    assert told["accuracy"] == Accuracy.of(scores).to_json() == {"student": 0.5}
    assert told["published"] == {"epsilon": 1.0, "reason": ""}
    assert "ensemble" not in told
    assert not_listed(tmp_path) == []


def test_a_tracker_hears_nothing_that_is_not_listed(tmp_path, monkeypatch):
    heard: list[Any] = []
    monkeypatch.setattr(
        "fedtranscribe.results.progress._found", lambda name: lambda folder: heard.append
    )
    track = Tracker(tmp_path, TrackingOptions(tracker="other"))
    with pytest.raises(PrivacyError, match=r"progress\.jsonl must not hold 'loss_on_records'"):
        track({"stage": "rows answered", "done": 1, "total": 2, "loss_on_records": 0.3})
    assert heard == []
    assert not (tmp_path / "progress.jsonl").exists()


def test_a_mistake_that_a_simulation_writes_down_is_listed(tmp_path):
    report_mistake(tmp_path, PrivacyError("no budget"))
    assert not_listed(tmp_path) == []


def test_names_and_trees_of_keys():
    assert why(REASONS, ("shards", "ward.seven")) is Why.SETTING
    assert why(REASONS, ("settings", "dpsd", "rows")) is Why.SETTING
    assert why(REASONS, ("settings",)) is None
    assert why(REASONS, ("shards",)) is None
    assert why(REASONS, ("accuracy", "single_teacher")) is None
    assert list(keys_of({"a": [{"b": 1}, {"c": [1, 2]}], "d": None, "e": {}, "f": []})) == [
        ("a", "b"),
        ("a", "c"),
    ]
    expect_allowed("events.jsonl", {"rows": 1, "costs": {"record": {"replace": {"mu": [1.0]}}}})
