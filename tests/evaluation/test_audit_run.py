"""`fedtranscribe audit` on whole runs: what is written where, and what stops with an error."""

import json

import pytest

from fedtranscribe.cli import run as cli
from fedtranscribe.config import TranscribeSettings, build
from fedtranscribe.config.evaluation import AuditSettings
from fedtranscribe.data import load
from fedtranscribe.errors import AuditError, ConfigError, PrivacyError
from fedtranscribe.evaluation.audit import STAMP, audit
from fedtranscribe.evaluation.findings import expect_sound
from fedtranscribe.noise.sources import SeededBits
from fedtranscribe.privacy.accountant import guarantee
from fedtranscribe.privacy.calibrate import EnsembleLayout, noise_std
from fedtranscribe.privacy.release_plan import PrivacyPlan
from fedtranscribe.privacy.units import Adjacency, NoiseMode, RowAnswer, Unit
from fedtranscribe.releases import make_release, verify
from fedtranscribe.runs.finished import FinishedRun
from fedtranscribe.runs.preparation import prepare
from fedtranscribe.runs.transcription import transcribe
from tests.conftest import TINY_DPSD
from tests.evaluation.conftest import make_run
from tests.mechanisms_for import noisy_mean_rows


def chosen(words: str) -> tuple[str, ...]:
    return build(AuditSettings, {"attacks": words}).attacks


TINY = AuditSettings(
    trials=20_000,
    records=30,
    references=2,
    reference_steps=2,
    samples=50,
    starts=1,
    inversion_steps=2,
    device="cpu",
)


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture
def told_run(tmp_path) -> FinishedRun:
    """On the packaged digits, with events."""
    layout, answer = EnsembleLayout(50), RowAnswer.VOTE
    std = noise_std(10.0, 1e-5, 100, layout, Unit.RECORD, answer, NoiseMode.LOCAL)
    release = noisy_mean_rows(layout, std, answer).release(100, positional_ids=True)
    stated = guarantee(PrivacyPlan((release,), Unit.RECORD, Adjacency.ZERO_OUT, 1e-5)).epsilon
    result = {"noise_std": std, "teachers": 50, "adjacency": "zero-out", "epsilon": stated}
    run = make_run(tmp_path / "told", run=result)
    (run.path / "events.jsonl").write_text(json.dumps(release.to_json()) + "\n")
    return run


def test_own_records_leave_no_trace_in_what_may_be_told(transcribed):
    done = audit(transcribed, TINY)
    expect_sound(done.findings, done.checks)
    told, private = read(transcribed.path / "audit.json"), read(transcribed.private / "audit.json")
    assert [finding["attack"] for finding in told["findings"]] == ["game"]
    assert told["withheld"] == ["loss", "reference", "generator", "inversion", "teachers"]
    assert told["findings"][0]["epsilon"] > told["findings"][0]["lower_bound"]
    assert private["stamp"] == STAMP
    assert [f["attack"] for f in private["findings"]] == ["game", *told["withheld"][:-1]]
    assert "auc" not in json.dumps(told)
    assert "tiny" not in json.dumps(told)
    assert {check["check"]: check["ok"] for check in told["checks"]} == {"events": True}
    assert {check["check"]: check["ok"] for check in private["checks"]} == {
        "events": True,
        "teachers": True,
    }
    assert told["risk"]["words"].startswith("If a fair coin decides")
    assert (transcribed.path / "inversion.png").exists()


def test_told_figures_do_not_move_with_the_own_records(transcribed, monkeypatch):
    audit(transcribed, TINY)
    told = read(transcribed.path / "audit.json")
    split = load(transcribed.result.asked.data)
    flipped = type(split)(
        type(split.train)(
            split.train.name,
            split.train.data_id,
            255 - split.train.images,
            split.train.labels.flip(0),
            split.train.classes,
            split.train.record_ids,
        ),
        split.test,
    )
    monkeypatch.setattr(FinishedRun, "data", lambda *_: flipped)
    audit(transcribed, TINY)
    again = read(transcribed.path / "audit.json")
    for one in (told, again):
        # The game throws fresh dice.
        one.pop("date")
        one["findings"][0].pop("lower_bound")
        one["findings"][0].pop("words")
    assert told == again


def test_what_rests_on_private_records_stays_private_on_a_published_benchmark_too(told_run):
    done = audit(told_run, TINY)
    told, private = read(told_run.path / "audit.json"), read(told_run.private / "audit.json")
    assert [finding["attack"] for finding in told["findings"]] == ["game"]
    assert told["withheld"] == ["loss", "reference", "generator", "inversion"]
    assert len(private["findings"]) == 5
    assert told["sound"] is private["sound"] is True
    assert private["data"] == "digits"
    assert done.claim.epsilon == pytest.approx(10.0, rel=1e-3)
    for finding in private["findings"]:
        assert {"lower_bound", "confidence", "epsilon", "delta", "words"} <= set(finding)


@pytest.mark.parametrize("attacks", ["game", "loss,inversion", "all"])
def test_all_bounds_of_an_audit_hold_together_with_the_confidence_asked_for(told_run, attacks):
    settings = TINY.model_copy(update={"attacks": chosen(attacks), "confidence": 0.9})
    done = audit(told_run, settings)
    assert len(done.findings) == len(chosen(attacks))
    errors = [1 - finding.confidence for finding in done.findings]
    assert sum(errors) == pytest.approx(0.1)
    assert len(set(errors)) == 1
    assert read(told_run.path / "audit.json")["confidence"] == 0.9


@pytest.mark.long
def test_suspects_are_held_against_the_cost_of_replacing_a_record(tiny_data, tmp_path):
    """A coin exchanges two records: of moments, that is more than one that comes or goes."""
    dpsd = TINY_DPSD.model_copy(update={"moments_steps": 1})
    settings = TranscribeSettings(data=str(tiny_data), dpsd=dpsd, device="cpu")
    transcribe(prepare(settings), tmp_path / "run", force=True)
    done = audit(FinishedRun.open(tmp_path / "run"), TINY, coins=SeededBits(1))
    claims = {finding.attack: finding.claim for finding in done.findings}
    assert claims.pop("game").adjacency is Adjacency.ADD_REMOVE
    assert set(claims) == {"loss", "generator", "inversion"}
    assert all(claim == done.exchanged for claim in claims.values())
    assert done.exchanged.adjacency is Adjacency.REPLACE
    assert done.claim.adjacency is Adjacency.ADD_REMOVE
    assert done.claim.epsilon is not None
    assert done.exchanged.epsilon is not None
    assert done.exchanged.epsilon > 1.2 * done.claim.epsilon


def test_a_run_whose_noise_is_half_of_what_it_booked_fails_loudly(told_run, capsys):
    metrics = told_run.path / "metrics.json"
    result = read(metrics)
    metrics.write_text(json.dumps({**result, "noise_std": result["noise_std"] / 2}))
    path = str(told_run.path)
    assert cli(["audit", path, "--attacks", "game"]) == AuditError.exit_code == 5
    captured = capsys.readouterr()
    assert "error: The audit contradicts the guarantee (game: at least" in captured.err
    assert "CONTRADICTS" in captured.out
    assert read(told_run.path / "audit.json")["sound"] is False
    metrics.write_text(json.dumps(result))
    assert cli(["audit", path, "--attacks", "game", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sound"] is True


def test_a_result_that_understates_its_events_fails_loudly(told_run, capsys):
    metrics = told_run.path / "metrics.json"
    metrics.write_text(json.dumps({**read(metrics), "epsilon": 3.0}))
    assert cli(["audit", str(told_run.path), "--attacks", "none"]) == 5
    assert "the result says 3" in capsys.readouterr().err


def test_a_baseline_promises_nothing_and_is_attacked_all_the_same(tmp_path, capsys):
    facts = {"method": "fedavg", "epsilon": None, "private": False, "noise_std": None}
    run = make_run(tmp_path / "fedavg", generator=False, run=facts)
    assert cli(["audit", str(run.path), "--attacks", "loss", "--records", "30"]) == 0
    assert "no guarantee" in capsys.readouterr().out
    result = read(run.path / "audit.json")
    assert result["epsilon"] is None
    assert result["risk"] is None
    assert result["checks"] == [
        {"check": "events", "ok": None, "words": "the run states no ε and no events"}
    ]


def test_planting_transcribing_and_guessing(tiny_data, tiny_settings, tmp_path, capsys):
    assert cli(["plant", str(tiny_data), "--out", str(tmp_path / "p"), "--canaries", "20"]) == 0
    settings = tiny_settings.model_copy(update={"data": str(tmp_path / "p" / "planted.npz")})
    transcribe(prepare(settings), tmp_path / "run", force=True)
    secret = str(tmp_path / "p" / "canaries.npz")
    command = ["audit", str(tmp_path / "run"), "--attacks", "canaries"]
    assert cli(command) == ConfigError.exit_code
    assert "plant them first" in capsys.readouterr().err
    assert cli([*command, "--canaries", secret]) == 0
    assert read(tmp_path / "run" / "audit.json")["withheld"] == ["canaries", "teachers"]
    found = read(tmp_path / "run" / "private" / "audit.json")["findings"][0]
    assert found["canaries"] == 20
    assert found["adjacency"] == "add-remove"
    assert cli(["plant", "digits", "--out", str(tmp_path), "--kind", "odd"]) == 2


@pytest.mark.usefixtures("without_onnx")
def test_a_release_tells_what_was_found_and_refuses_what_is_contradicted(transcribed, tmp_path):
    audit(transcribed, TINY)
    statement = make_release(transcribed.path, tmp_path / "release").statement
    assert [found["attack"] for found in statement.audits] == ["game"]
    assert verify(tmp_path / "release").ok
    assert "1; see privacy.json" in (tmp_path / "release" / "card.md").read_text()
    path = transcribed.path / "audit.json"
    told = read(path)
    path.write_text(json.dumps({**told, "sound": False}))
    with pytest.raises(AuditError, match="contradicts the guarantee of the run"):
        make_release(transcribed.path, tmp_path / "other")
    path.write_text(json.dumps(told))
    # A contradiction that may not be told is one all the same.
    private = transcribed.private / "audit.json"
    private.write_text(json.dumps({**read(private), "sound": False}))
    with pytest.raises(AuditError, match=r"private/audit\.json contradicts the guarantee"):
        make_release(transcribed.path, tmp_path / "other")
    path.write_text(json.dumps({**told, "run": "another"}))
    with pytest.raises(PrivacyError, match="of another run"):
        make_release(transcribed.path, tmp_path / "other")


def test_attacks_are_named_and_misspellings_are_answered():
    assert chosen("loss,game") == ("game", "loss")
    assert "canaries" not in chosen("all")
    assert chosen("none") == ()
    with pytest.raises(ConfigError, match="did you mean inversion"):
        build(AuditSettings, {"attacks": "invertion"})
    with pytest.raises(ConfigError, match="references"):
        build(AuditSettings, {"references": 3})
