"""What a release holds, what it says, and what it refuses."""

import json
import os

import pytest
import torch

from fedtranscribe.errors import ConfigError, PrivacyError, StorageError
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.releases import make_release, onnx_export, verify, writing
from fedtranscribe.releases.loading import sha256
from fedtranscribe.releases.statement import LOUD, SCHEMA_FILE, read_statement, schema
from fedtranscribe.runs.finished import FinishedRun

EVERYTHING = {
    "student.safetensors",
    "generator.safetensors",
    "generator.onnx",
    "student.onnx",
    "card.md",
    "privacy.json",
}


def test_it_is_whole_and_says_what_the_run_says(made_once, own):
    assert {entry.name for entry in made_once.iterdir()} == EVERYTHING
    said = read_statement(made_once)
    result = json.loads((own.run / "metrics.json").read_text())
    assert said.epsilon == pytest.approx(result["epsilon"], rel=1e-9)
    assert {a.value: e for a, e in said.sound.items()} == pytest.approx(result["sound"])
    assert said.units[Unit.RECORD] == said.sound[Adjacency.ZERO_OUT] == said.epsilon
    assert said.run == result["run"]
    assert (said.method, said.noise_mode, said.answers) == ("dpsd", "local", "vote")
    assert said.teachers == 20
    assert said.holders == 1
    assert said.private
    assert said.stamp is None
    assert said.ledger is not None
    assert said.ledger.booked == pytest.approx(said.epsilon, rel=1e-3)
    assert said.ledger.limit is not None
    assert said.ledger.limit.epsilon == 20
    assert said.published is not None
    assert not said.published.used_for_calibration
    assert sum(event.release.rows for event in said.events) == said.rows == 40
    lines = (own.run / "events.jsonl").read_text().splitlines()
    told = [event.release.model_dump(mode="json") for event in said.events]
    assert told == [json.loads(line) for line in lines]
    assert said.files == {name: sha256(made_once / name) for name in EVERYTHING - {"privacy.json"}}


def test_the_schema_in_the_package_is_that_of_the_types():
    assert json.loads(SCHEMA_FILE.read_text(encoding="utf-8")) == schema()


def test_the_card_has_a_header_and_the_headline(made_once):
    card = (made_once / "card.md").read_text(encoding="utf-8")
    said = read_statement(made_once)
    assert card.startswith("---\nlibrary_name: fedtranscribe\n")
    assert f"**ε = {said.epsilon:.6g}** at δ = 1e-05" in card
    assert "Not stated" in card
    assert LOUD not in card


def test_onnx_answers_as_the_student_does_whatever_the_batch(made_once, own):
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(made_once / "student.onnx")
    student = FinishedRun.open(own.run).student
    for n in (1, 2, 7):
        images = torch.rand(n, 1, 28, 28)
        with torch.no_grad():
            expected = student(images).numpy()
        (logits,) = session.run(["logits"], {"images": images.numpy()})
        assert logits == pytest.approx(expected, abs=1e-4)


def test_a_student_that_cannot_be_exported_is_released_without_onnx(own, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("secret/path: no such operator")

    monkeypatch.setattr(torch.onnx, "export", fail)
    folder = make_release(own.run, tmp_path / "release").folder
    assert {entry.name for entry in folder.iterdir()} == EVERYTHING - {
        "student.onnx",
        "generator.onnx",
    }
    card = (folder / "card.md").read_text(encoding="utf-8")
    assert "`cnn-small` cannot be exported" in card
    assert "secret" not in card
    assert verify(folder).ok


@pytest.mark.long
def test_an_export_that_answers_otherwise_is_left_out(own, monkeypatch):
    monkeypatch.setattr(onnx_export, "agrees", lambda *_: False)
    student = onnx_export.student_as_exportable(FinishedRun.open(own.run).student)
    assert onnx_export.export_onnx(student) is None


def test_a_missing_extra_is_named(own, tmp_path, monkeypatch):
    monkeypatch.setitem(writing._NEEDED, "no_such_module", "no-such-package")
    with pytest.raises(ConfigError, match=r"needs no-such-package: pip .*\[release\]"):
        make_release(own.run, tmp_path / "release")


# ---------------------------------------------------------------- where it goes


@pytest.mark.usefixtures("without_onnx")
def test_it_lies_in_the_run_unless_told_otherwise_and_replaces_only_itself(run):
    folder = make_release(run).folder
    assert folder == run / "release"
    again = make_release(run, stamp_not_private=True, choices=["the better of two"])
    assert again.folder == folder
    assert read_statement(folder).stamp is not None
    assert not [entry for entry in run.iterdir() if entry.name.startswith(".")]
    (folder / "README.md").write_text("mine")
    with pytest.raises(StorageError, match=r"README\.md.*would be lost"):
        make_release(run)


@pytest.mark.usefixtures("without_onnx")
def test_what_is_not_an_earlier_release_of_the_run_stays(run, seeded, tmp_path):
    other = make_release(seeded.run, tmp_path / "other", stamp_not_private=True).folder
    with pytest.raises(StorageError, match="another run"):
        make_release(run, other)
    assert read_statement(other).run != read_statement(make_release(run).folder).run
    full = tmp_path / "full"
    full.mkdir()
    (full / "thesis.tex").write_text("x")
    with pytest.raises(StorageError, match="not empty"):
        make_release(run, full)
    assert [entry.name for entry in full.iterdir()] == ["thesis.tex"]
    with pytest.raises(StorageError, match="no folder"):
        make_release(run, full / "thesis.tex")
    (full / "privacy.json").write_text("{")
    with pytest.raises(StorageError, match="another run"):
        make_release(run, full)


@pytest.mark.usefixtures("without_onnx")
def test_an_empty_folder_and_folders_to_be_made_will_do(run, tmp_path):
    (tmp_path / "empty").mkdir()
    assert verify(make_release(run, tmp_path / "empty").folder).ok
    assert verify(make_release(run, tmp_path / "a" / "b").folder).ok


@pytest.mark.usefixtures("without_onnx")
def test_a_failure_half_way_leaves_what_was_there(run, monkeypatch):
    before = make_release(run).folder
    stood = sha256(before / "privacy.json")

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writing, "render_card", full)
    with pytest.raises(StorageError, match="No space left"):
        make_release(run)
    assert sha256(before / "privacy.json") == stood
    assert sorted(entry.name for entry in run.iterdir() if "release" in entry.name) == ["release"]


@pytest.mark.usefixtures("without_onnx")
def test_a_folder_that_cannot_be_put_in_place_leaves_the_old_one(run, monkeypatch):
    folder = make_release(run).folder
    rename = type(folder).rename

    def refuse(self, target):
        if self.name.startswith(".release") and not self.name.endswith(".old"):
            raise OSError(18, "Invalid cross-device link")
        return rename(self, target)

    monkeypatch.setattr(type(folder), "rename", refuse)
    with pytest.raises(StorageError, match="cross-device"):
        make_release(run)
    assert verify(folder).ok


def test_places_that_cannot_be_written_are_named(run):
    for place in ("/dev/full", "/dev/full/release", "/proc/release"):
        with pytest.raises(StorageError, match=r"/dev/full|/proc/release"):
            make_release(run, run.__class__(place))


@pytest.mark.usefixtures("without_onnx")
def test_others_may_read_it_as_any_new_file(run):
    before = os.umask(0o022)
    try:
        folder = make_release(run).folder
    finally:
        os.umask(before)
    assert {entry.stat().st_mode & 0o777 for entry in folder.iterdir()} == {0o644}


# ---------------------------------------------------------------- stamps


@pytest.mark.usefixtures("without_onnx")
def test_seeded_noise_needs_a_stamp(seeded, tmp_path):
    with pytest.raises(PrivacyError, match=r"came from a seed.*--stamp-not-private"):
        make_release(seeded.run, tmp_path / "release")
    assert not (tmp_path / "release").exists()
    made = make_release(seeded.run, tmp_path / "release", stamp_not_private=True)
    assert made.statement.stamp is not None
    assert made.statement.stamp.startswith(LOUD)
    assert not made.statement.private
    card = (made.folder / "card.md").read_text(encoding="utf-8")
    assert card.index(made.statement.stamp) < card.index("A student")
    assert "private: false" in card.split("---")[1]


@pytest.mark.usefixtures("without_onnx")
def test_an_uncharged_choice_needs_a_stamp(run):
    with pytest.raises(PrivacyError, match="the better of two runs"):
        make_release(run, choices=["the better of two runs"])
    made = make_release(run, choices=["the better of two runs"], stamp_not_private=True)
    choice = made.statement.data_dependent_choices[0]
    assert (choice.choice, choice.charged, choice.stated) == (
        "the better of two runs",
        False,
        True,
    )
    assert made.statement.stamp is not None
    assert "the better of two runs" in made.statement.stamp
    assert "the better of two runs: NOT charged" in (made.folder / "card.md").read_text("utf-8")


@pytest.mark.parametrize("text", ["", "  ", "two\nlines", "x" * 301])
def test_a_choice_is_one_line(run, text):
    with pytest.raises(ConfigError, match="--choice"):
        make_release(run, choices=[text])


@pytest.mark.usefixtures("without_onnx")
def test_a_baseline_has_no_epsilon_and_needs_a_stamp(fedavg, tmp_path):
    with pytest.raises(PrivacyError, match="fedavg gives no guarantee"):
        make_release(fedavg.run, tmp_path / "release")
    made = make_release(fedavg.run, tmp_path / "release", stamp_not_private=True)
    said = read_statement(made.folder)
    assert (said.epsilon, said.accountant, said.noise_mode) == (None, None, "none")
    assert (said.events, said.sound, said.published) == ((), {}, None)
    assert said.trust.startswith("everybody")
    assert not (made.folder / "generator.safetensors").exists()
    card = (made.folder / "card.md").read_text(encoding="utf-8")
    assert "infinite: no guarantee" in card
    failed = verify(made.folder).first_failure
    assert failed is not None
    assert failed.name == "stamp"


@pytest.mark.usefixtures("without_onnx")
def test_who_stamps_what_needs_none_gets_none(run):
    assert make_release(run, stamp_not_private=True).statement.stamp is None


# ---------------------------------------------------------------- kinds of runs


@pytest.mark.usefixtures("without_onnx")
def test_a_federated_release_tells_noise_trust_and_every_holder(central, tmp_path):
    folder = make_release(central.run, tmp_path / "release").folder
    said = read_statement(folder)
    result = json.loads((central.run / "metrics.json").read_text())
    assert said.epsilon == pytest.approx(10.0, rel=1e-6)
    assert said.noise_mode == "central"
    assert said.trust.startswith("the server")
    assert said.shards == result["shards"]
    assert len({event.holder for event in said.events}) == said.holders == 3
    assert said.teachers == 6
    assert {a.value: e for a, e in said.sound.items()} == pytest.approx(
        {a: e for a, e in result["sound"].items() if e is not None}
    )
    assert {u.value: e for u, e in said.units.items()} == pytest.approx(result["units"])
    assert verify(folder).ok


@pytest.mark.usefixtures("without_onnx")
def test_a_benchmark_may_tell_its_name_and_the_students_accuracy(benchmark, tmp_path):
    folder = make_release(benchmark.run, tmp_path / "release").folder
    said = read_statement(folder)
    assert said.data == "digits"
    assert said.data_dependent_choices == ()
    scores = json.loads((benchmark.run / "metrics.json").read_text())["accuracy"]
    card = (folder / "card.md").read_text(encoding="utf-8")
    assert f"| student | {100 * scores['student']:.1f} % |" in card
    # Teachers are no public matter, whatever they were tested on.
    assert "ensemble |" not in card
    assert "teacher |" not in card


@pytest.mark.usefixtures("without_onnx")
def test_noise_chosen_by_the_published_formula_is_said(run):
    metrics = json.loads((run / "metrics.json").read_text())
    metrics["settings"]["calibrate_by"] = "published"
    (run / "metrics.json").write_text(json.dumps(metrics))
    folder = make_release(run).folder
    published = read_statement(folder).published
    assert published is not None
    assert published.used_for_calibration
    assert "(chose the noise)" in (folder / "card.md").read_text("utf-8")


# ---------------------------------------------------------------- runs that do not fit


def test_a_result_and_events_that_disagree_are_refused(run):
    metrics = json.loads((run / "metrics.json").read_text())
    (run / "metrics.json").write_text(json.dumps({**metrics, "epsilon": 1.0}))
    with pytest.raises(PrivacyError, match=r"events .* cost ε = .*, its result says 1\.0"):
        make_release(run)


@pytest.mark.parametrize("content", [None, "{", '{"mechanism": "x"}', '"text"'])
def test_events_that_are_absent_or_damaged_are_named(run, content):
    if content is None:
        (run / "events.jsonl").unlink()
    else:
        (run / "events.jsonl").write_text(content)
    with pytest.raises(StorageError, match=r"events\.jsonl"):
        make_release(run)


@pytest.mark.parametrize("spoilt", [{"unit": "patient"}, {"rows": "many"}, {"private": None}])
def test_a_damaged_result_is_named(run, spoilt):
    metrics = json.loads((run / "metrics.json").read_text()) | spoilt
    if spoilt == {"private": None}:
        del metrics["private"]
    (run / "metrics.json").write_text(json.dumps(metrics))
    with pytest.raises(StorageError, match="damaged"):
        make_release(run)


def test_what_is_no_finished_run_is_named(run, tmp_path):
    with pytest.raises(StorageError, match="No run in"):
        make_release(tmp_path / "absent")
    (run / "metrics.json").unlink()
    with pytest.raises(StorageError, match="not finished"):
        make_release(run)
