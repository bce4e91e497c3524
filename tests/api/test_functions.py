"""The functions do what the commands do: same settings, same ledger, same bytes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import fedtranscribe as ft
from fedtranscribe import cli
from fedtranscribe.errors import (
    BudgetExhaustedError,
    ConfigError,
    DataNotFoundError,
    HopelessPlanError,
    InvalidDataError,
    StorageError,
)
from fedtranscribe.holder import answering
from fedtranscribe.noise.sources import SeededNoise
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.results.result import Result
from fedtranscribe.results.run_directory import GENERATOR, STUDENT, RunDirectory
from tests.conftest import TINY_DPSD, TINY_TEACHERS

TEACHERS: dict[str, Any] = {
    "teacher": "cnn-small",
    "student": "cnn-small",
    "shards": 20,
    "rows": 40,
}
TEACHERS |= {"dpsd": TINY_DPSD, "teachers": TINY_TEACHERS}
SUMS: dict[str, Any] = {"epsilon": 50.0, "budget": 60.0, "descent_rounds": 1, "mixture_share": 0}
SUMS |= {"dpsd": {"moments_steps": 2, "latent_dim": 8, "generator_width": 4, "pretrain_steps": 2}}


@pytest.fixture
def scans(tiny_data: Path) -> dict[str, Any]:
    """What `tiny_data` holds, as keyword arguments; images are 28x28."""
    with np.load(tiny_data) as arrays:
        images, labels, ids = (arrays[name] for name in ("images", "labels", "ids"))
    return {"images": images, "labels": labels, "ids": ids, "classes": 3, "data_id": "scans"}


@pytest.fixture
def same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of one name with noise from a seed: two of them can be compared byte by byte."""
    create = RunDirectory.create
    monkeypatch.setattr(answering, "OsNoise", lambda: SeededNoise(3))
    monkeypatch.setattr(
        RunDirectory, "create", lambda path, chosen: create(path, chosen, "run-fixed")
    )


def ledger_of(place: Path, data_id: str = "scans") -> Path:
    return place / ".fedtranscribe" / "ledgers" / f"{data_id}.ledger.sqlite"


def as_toml(settings: dict[str, Any], path: Path) -> Path:
    import tomli_w

    plain = {k: getattr(v, "model_dump", lambda v=v: v)() for k, v in settings.items()}
    plain = {k: {n: x for n, x in v.items() if x is not None} if isinstance(v, dict) else v
             for k, v in plain.items()}  # fmt: skip
    path.write_text(tomli_w.dumps(plain))
    return path


# ---------------------------------------------------------------- the same as the command line


@pytest.mark.long
@pytest.mark.parametrize("settings", [SUMS, TEACHERS], ids=["sums", "teachers"])
@pytest.mark.usefixtures("same_noise")
def test_python_and_the_command_line_give_the_same_bytes(
    settings: dict[str, Any],
    tiny_data: Path,
    scans: dict[str, Any],
    own_place: Path,
):
    file = as_toml(settings, own_place / "settings.toml")
    typed = ["transcribe", "--force", "--data", str(tiny_data), "--config", str(file)]
    assert cli.run([*typed, "--out", "typed", "--ledger", "typed.sqlite"]) == 0
    ways = {
        "named": {"data": tiny_data, "ledger": own_place / "named.sqlite"},
        "passed": {**scans, "data_id": "npz:tiny"},
    }
    # Three ledgers of one data id: the data lie in another folder each time, as far as it knows.
    tiny_data.with_name("npz%3Atiny.ledger.place").unlink()
    for out, data in ways.items():
        run = ft.transcribe(**data, **settings, out=out, force=True, progress=False)
        assert run.result.settings["data"] == (
            "memory:npz:tiny" if out == "passed" else str(tiny_data)
        )
        for name in (STUDENT, GENERATOR):
            assert (own_place / out / name).read_bytes() == (
                own_place / "typed" / name
            ).read_bytes()
        marker = tiny_data.with_name("npz%3Atiny.ledger.place")
        marker.unlink(missing_ok=True)
    results = [Result.read(own_place / out) for out in ("typed", "named", "passed")]
    assert len({(result.guarantee.epsilon, result.rows) for result in results}) == 1


@pytest.mark.long
@pytest.mark.usefixtures("same_noise")
def test_every_form_of_the_data_gives_the_same_bytes(scans: dict[str, Any], own_place: Path):
    facts = {name: scans[name] for name in ("classes", "ids")}
    tensors = torch.from_numpy(scans["images"])[:, None] / 255, torch.from_numpy(scans["labels"])
    forms: dict[str, tuple[Any, ...]] = {
        "arrays": (scans["images"], scans["labels"]),
        "tensors": tensors,
        "dataset": (TensorDataset(*tensors),),
    }
    students = {
        ft.transcribe(*data, **facts, data_id=form, **SUMS, out=form, force=True, progress=False)
        .path.joinpath(STUDENT)
        .read_bytes()
        for form, data in forms.items()
    }
    assert len(students) == 1


# ---------------------------------------------------------------- what comes back


def test_a_run_says_what_it_has_cost_and_can_do(scans: dict[str, Any], own_place: Path):
    run = ft.transcribe(**scans, **SUMS, out="run", progress=False, force=True)
    assert repr(run).startswith("<Run run (moments): ε = ")
    assert run.epsilon == run.result.guarantee.epsilon
    assert str(run.guarantee) == f"ε = {run.epsilon:.4g} at δ = 1e-05 (record, zero-out)"
    assert run.not_private == ("student", "confusion")
    assert 0 <= (run.accuracy["student"] or 0) <= 1
    images = scans["images"]
    assert run.predict(images).equal(run.predict(torch.from_numpy(images)[:, None]))
    assert run.predict(images).equal(run.predict(images[..., None]))
    assert run.probabilities(images[:2] / 255).shape == (2, 3)
    drawn, labels = run.sample(5, seed=1)
    assert (drawn.shape, labels.shape) == ((5, 1, 28, 28), (5,))
    again = ft.Run.open("run")
    assert again.predict(drawn).equal(labels)
    with pytest.raises(ConfigError, match="does not name its classes"):
        again.predict(drawn, names=True)


def test_nothing_private_leaves_its_folder(scans: dict[str, Any], own_place: Path):
    ft.transcribe(**scans, **SUMS, out="run", progress=False, force=True)
    secret = json.loads((own_place / "run/private/records.json").read_text())["digest"]
    config = (own_place / "run/config.toml").read_text()
    assert 'data = "memory:scans"' in config
    assert "patient" not in config
    for path in (own_place / "run").rglob("*"):
        if path.is_file() and "private" not in path.parts:
            assert secret.encode() not in path.read_bytes(), path
            assert b"patient-" not in path.read_bytes(), path


@pytest.mark.long
def test_the_ledger_is_kept_under_the_data_id(scans: dict[str, Any], own_place: Path):
    settings = {**SUMS, "epsilon": 5.0, "budget": 6.0, "progress": False, "force": True}
    ft.transcribe(**scans, **settings, out="run")
    with Ledger.open(ledger_of(own_place), "scans") as ledger:
        assert ledger.budget is not None
        assert ledger.budget.epsilon == 6
        assert len(ledger.releases()) > 0
    with pytest.raises(BudgetExhaustedError):
        ft.transcribe(scans["images"][::-1], scans["labels"][::-1], classes=3, data_id="scans",
                      ids=scans["ids"][::-1], **settings, out="again")  # fmt: skip
    with pytest.raises(ConfigError, match="now they come with no ids"):
        ft.transcribe(scans["images"], scans["labels"], classes=3, data_id="scans",
                      **settings, out="again")  # fmt: skip
    assert not (own_place / "again/config.toml").exists()
    assert not (own_place / "again/private").exists()
    ft.transcribe(**{**scans, "data_id": "others"}, **settings, out="again")


def test_a_run_goes_on_with_the_same_data_only(scans: dict[str, Any], own_place: Path):
    stops = {**TEACHERS, "out": "run", "force": True}

    def stop(stage: str, done: int, total: int) -> None:
        if stage == "rows answered" and done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ft.transcribe(**scans, **stops, progress=stop)
    goes_on = {**stops, "resume": True, "progress": False}
    changed = scans["images"].copy()
    changed[0, 0, 0] ^= 1
    for other in ({"images": changed}, {"ids": None}, {"labels": scans["labels"][::-1]}):
        with pytest.raises(ConfigError, match="not those that the run in run began with"):
            ft.transcribe(**{**scans, **other}, **goes_on)
    with pytest.raises(ConfigError, match="has data='memory:scans', not 'memory:others'"):
        ft.transcribe(**{**scans, "data_id": "others"}, **goes_on)
    with pytest.raises(DataNotFoundError, match="'scans' were passed in memory"):
        ft.transcribe(**goes_on)
    assert cli.run(["transcribe", "--resume", "--out", "run"]) == DataNotFoundError.exit_code
    assert ft.transcribe(**scans, **goes_on).result.rows == 40


@pytest.mark.ways
def test_evaluate_and_release(scans: dict[str, Any], own_place: Path, monkeypatch: Any):
    monkeypatch.setattr("fedtranscribe.releases.writing.export_onnx", lambda student: None)
    run = ft.transcribe(**scans, **SUMS, out="run", progress=False, force=True)
    settings: dict[str, Any] = {"classifiers": "lda", "samples": 60, "fidelity": False}
    found = run.evaluate(**settings, progress=False)
    assert "lda" in found["private"]["downstream"]
    assert json.loads((own_place / "run/evaluation.json").read_text())["data"] == "memory:scans"
    with pytest.raises(DataNotFoundError, match="passed in memory"):
        ft.evaluate("run", **settings, progress=False)
    given = {name: scans[name] for name in ("images", "labels", "ids")}
    again = ft.evaluate(Path("run"), **given, **settings, progress=False)
    assert {**again, "date": 0} == {**found, "date": 0}
    with pytest.raises(ConfigError, match="not those that the run"):
        ft.evaluate("run", given["images"], 2 - given["labels"], progress=False)
    release = run.release()
    assert release.path == own_place / "run/release" or release.path == Path("run/release")
    assert release.privacy.epsilon == pytest.approx(run.epsilon)
    assert "scans" not in (own_place / "run/release/privacy.json").read_text()
    assert ft.load("run/release").predict(scans["images"]).equal(run.predict(scans["images"]))
    said = {"choices": ["the better of two"], "stamp_not_private": True}
    with pytest.warns(UserWarning, match="the better of two"):
        other = ft.release("run", "handed-over", **said)
    assert other.path == Path("handed-over")


def test_evaluate_takes_no_images_for_a_run_that_read_its_own(tiny_data: Path, scans: Any):
    run = ft.transcribe(data=tiny_data, **SUMS, out="run", progress=False, force=True)
    with pytest.raises(ConfigError, match="Expected no images"):
        ft.evaluate(run, scans["images"], scans["labels"])


# ---------------------------------------------------------------- refused before anything is spent


@pytest.mark.parametrize(
    ("arguments", "kind", "named"),
    [
        ({"epsilonn": 5}, ConfigError, r"Unknown setting epsilonn; did you mean epsilon\?"),
        ({"dpsd": {"round_row": 5}}, ConfigError, r"dpsd\.round_row; did you mean round_rows\?"),
        ({"epsilon": -1}, ConfigError, "epsilon=-1"),
        ({"data_id": None}, ConfigError, "Expected data_id"),
        ({"data_id": 7}, ConfigError, "Expected data_id"),
        ({"data_id": ""}, InvalidDataError, "data id"),
        ({"classes": None}, ConfigError, "Expected classes=N"),
        ({"classes": 2}, InvalidDataError, r"within 0\.\.1"),
        ({"class_names": ["a", "b"]}, ConfigError, "name classes=3, got 2"),
        ({"labels": None}, ConfigError, "Expected labels"),
        ({"data": "digits"}, ConfigError, "images or data='digits', not both"),
        ({"images": None}, ConfigError, "Expected images with labels"),
        ({"images": "digits", "labels": None}, ConfigError, "Expected data='digits'"),
        ({"ids": Path("ids.csv")}, ConfigError, "one id per image"),
        ({"resume": True}, ConfigError, "Expected out with resume=True"),
        ({"shards": 1, "epsilon": 1.0}, HopelessPlanError, "force=True"),
    ],
)
def test_mistakes_are_found_first(
    arguments: dict[str, Any],
    kind: type[Exception],
    named: str,
    scans: dict[str, Any],
    own_place: Path,
):
    with pytest.raises(kind, match=named):
        ft.transcribe(**{**scans, **arguments}, progress=False)
    assert not ledger_of(own_place).exists()
    assert not (own_place / "runs").exists()


def test_class_names_count_as_classes(scans: dict[str, Any]):
    for said in ({"classes": ["a", "b", "c"]}, {"classes": 3, "class_names": ("a", "b", "c")}):
        facts = {**scans, **said, "data_id": f"by {[*said]}"}
        run = ft.transcribe(**facts, **SUMS, progress=False, force=True, with_generator=False)
        assert run.class_names == ("a", "b", "c")
        assert set(run.predict(scans["images"], names=True)) <= {"a", "b", "c"}


# ---------------------------------------------------------------- synthesize


TRAINING: dict[str, Any] = {"size": "tiny", "phase1_epochs": 0.2, "phase2_epochs": 0.2}
TRAINING |= {"phase1_batch": 20, "phase2_batch": 20, "copies": 1, "sampling_steps": 2}
TRAINING |= {"evaluate": False, "pretrain_data": "none", "start": "none", "progress": False}


@pytest.mark.long
def test_synthesize_makes_a_generator(scans: dict[str, Any], own_place: Path):
    pytest.importorskip("diffusers")
    run = ft.synthesize(**scans, epsilon=5, **TRAINING, out="run")
    assert run.student is None
    assert run.epsilon == pytest.approx(5, rel=0.01)
    assert run.result.data_id == "scans"
    assert run.result.settings["dp_promise"]["phase2_batch"] == 20
    assert run.sample(2)[0].shape == (2, 1, 28, 28)
    with pytest.raises(ConfigError, match="has no student"):
        run.predict(scans["images"])
    assert ft.synthesize(**scans, epsilon=5, **TRAINING, out="run", resume=True).path == run.path
    with pytest.raises(ConfigError, match="not those that the run"):
        ft.synthesize(**{**scans, "ids": None}, epsilon=5, **TRAINING, out="run", resume=True)
    with pytest.raises(ConfigError, match="method dp-sad only"):
        ft.synthesize(**scans, teacher_weight=1.0)
    public = own_place / "public.npz"
    np.savez(public, images=scans["images"], labels=scans["labels"], classes=3, data_id="scans")
    with pytest.raises(ConfigError, match=r"public images, but its data_id 'scans'"):
        ft.synthesize(**scans, **{**TRAINING, "pretrain_data": str(public)})


# ---------------------------------------------------------------- simulate


def test_simulate_asks_for_what_the_command_asks_for(
    own_place: Path, monkeypatch: pytest.MonkeyPatch, tiny_data: Path
):
    asked: list[Any] = []

    def run_app(app: Any, chosen: Any, federation: Any, show: Any, say: Any) -> Path:
        asked.append((app.name, dict(chosen), federation))
        show("rows", 1, 2, "round 1")
        return ft.transcribe(
            data=tiny_data, **SUMS, out=chosen["out"], resume=len(asked) > 1, progress=False,
            force=True,
        ).path  # fmt: skip

    monkeypatch.setattr("fedtranscribe.api.run_app", run_app)
    monkeypatch.setattr("fedtranscribe.cli.transcribe.simulate", run_app)
    seen: list[Any] = []
    run = ft.simulate(
        "dirichlet_mnist",
        holders=3,
        epsilon=5,
        data_root=Path("here"),
        dpsd={"round_rows": 100},
        out="run",
        progress=lambda *stage: seen.append(stage),
    )
    typed = "dirichlet_mnist epsilon=5 data-root=here dpsd.round-rows=100 --holders 3 --out run"
    assert cli.run(["simulate", *typed.split()]) == 0
    assert asked[0] == asked[1]
    assert asked[0][1]["holders"] == 3
    assert asked[0][1]["data-root"] == str(own_place / "here")
    assert seen == [("rows", 1, 2)]
    assert run.path == own_place / "run"


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"epsilom": 5}, r"did you mean epsilon\?"),
        ({"epsilon": np.zeros(3)}, "by name or path"),
        ({"holders": 0}, "holders=0"),
        ({"cpus": 0}, "Expected cpus 0"),
        ({"resume": True}, "Expected out with resume=True"),
    ],
)
def test_wrong_settings_of_a_simulation_are_named(settings: Any, named: str, own_place: Path):
    with pytest.raises(ConfigError, match=named):
        ft.simulate("dirichlet_mnist", **settings)
    assert list(own_place.iterdir()) == []


def test_a_run_that_is_not_there_is_no_run():
    with pytest.raises(StorageError, match="No run in"):
        ft.Run.open("nowhere")
