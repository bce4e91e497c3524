"""A finished synthesis measured, attacked, shown and handed over, as a transcription is."""

import json
from pathlib import Path

import pytest
import torch

import fedtranscribe
from fedtranscribe.config import SynthesizeSettings
from fedtranscribe.config.evaluation import AuditSettings, EvaluationSettings
from fedtranscribe.errors import ConfigError, PrivacyError
from fedtranscribe.evaluation.audit import audit
from fedtranscribe.evaluation.comparison import compare
from fedtranscribe.evaluation.evaluate import evaluate
from fedtranscribe.evaluation.findings import expect_sound
from fedtranscribe.evaluation.membership import denoising_losses
from fedtranscribe.evaluation.report import write_report
from fedtranscribe.models.diffusion import Synthesizer
from fedtranscribe.releases import make_release, verify
from fedtranscribe.runs.finished import FinishedRun
from fedtranscribe.trainers.preparation import prepare
from fedtranscribe.trainers.synthesize import synthesize

pytestmark = pytest.mark.usefixtures("figures")

EVALUATION = EvaluationSettings(classifiers=("lda", "cnn"), epochs=1, fidelity=False, device="cpu")
AUDIT = AuditSettings(records=12, trials=1_000, device="cpu")


def finished(settings: SynthesizeSettings, path: Path, **changes: object) -> FinishedRun:
    synthesize(prepare(settings.model_copy(update=changes)), path)
    return FinishedRun.open(path)


def read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.long
def test_a_private_run_from_its_figures_to_its_release(
    tiny_synthesis: SynthesizeSettings, tmp_path: Path
):
    run = finished(tiny_synthesis, tmp_path / "run")
    assert run.student is None

    result = evaluate(run, EVALUATION)
    assert result["samples"] == 60  # what the run itself drew
    assert set(result["private"]["downstream"]) >= {"lda", "cnn"}
    assert "downstream" not in read(run.path / "evaluation.json")
    assert (run.path / "samples.png").stat().st_size > 0
    assert (run.private / "neighbours.png").stat().st_size > 0

    done = audit(run, AUDIT)
    expect_sound(done.findings, done.checks)
    assert [finding.attack for finding in done.findings] == ["loss", "generator"]
    assert [check.ok for check in done.checks] == [True, True]
    assert read(run.path / "audit.json")["findings"] == []

    page = write_report(run.path, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "dp-promise" in page
    assert "tested on the holder&#39;s own records, is not shown" in page
    assert "training steps" in page
    assert "rows answered" not in page
    assert "student" not in page.replace("student_", "")
    assert "synthetic images of class 2" in page

    made = make_release(run.path)
    assert made.statement.epsilon == pytest.approx(run.result.guarantee.epsilon)
    assert made.statement.private
    assert set(made.statement.files) == {"denoiser.safetensors", "card.md"}
    checked = verify(made.folder)
    assert checked.ok, checked.first_failure
    card = (made.folder / "card.md").read_text(encoding="utf-8")
    assert "A differentially private diffusion model" in card
    assert "classifier of" not in card
    assert str(tiny_synthesis.data) not in card

    release = fedtranscribe.load(made.folder)
    images, labels = release.sample(6, seed=3)
    assert labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert torch.equal(images, run.synthesise(6, seed=3)[0])
    with pytest.raises(ConfigError, match="no student"):
        release.predict(images)


def test_a_changed_network_or_event_is_found(tiny_synthesis: SynthesizeSettings, tmp_path: Path):
    finished(tiny_synthesis, tmp_path / "run")
    folder = make_release(tmp_path / "run").folder
    privacy, network = folder / "privacy.json", folder / "denoiser.safetensors"
    said, weights = read(privacy), network.read_bytes()
    network.write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    failure = verify(folder).first_failure
    assert failure is not None
    assert failure.name == "files"
    network.write_bytes(weights)
    parts = said["events"][0]["release"]["costs"]["record"]["zero-out"]["parts"]
    second = next(part for part in parts if part["kind"] == "poisson-gaussian")
    second["noise_multiplier"] *= 2
    privacy.write_text(json.dumps(said))
    failure = verify(folder).first_failure
    assert failure is not None
    assert failure.name == "epsilon"


def test_without_noise_only_a_stamped_release(tiny_synthesis: SynthesizeSettings, tmp_path: Path):
    run = finished(tiny_synthesis, tmp_path / "run", noise=False)
    with pytest.raises(PrivacyError, match="no guarantee at all"):
        make_release(run.path)
    made = make_release(run.path, stamp_not_private=True)
    assert made.statement.epsilon is None
    failure = verify(made.folder).first_failure
    assert failure is not None
    assert failure.name == "stamp"
    with pytest.warns(UserWarning, match="NOT PRIVATE"):
        fedtranscribe.load(made.folder)


def test_images_without_labels(tiny_synthesis: SynthesizeSettings, tmp_path: Path):
    run = finished(tiny_synthesis, tmp_path / "run", noise=False, conditional=False)
    assert not run.labelled
    result = evaluate(run, EVALUATION)
    assert "labels" in result["note"]
    assert "downstream" not in result["private"]
    assert "by label" not in (
        make_release(run.path, stamp_not_private=True).folder / "card.md"
    ).read_text(encoding="utf-8")
    with pytest.raises(ConfigError, match="canaries"):
        audit(run, AUDIT.model_copy(update={"attacks": ("canaries",)}))


def test_runs_with_and_without_a_student_side_by_side(
    tiny_synthesis: SynthesizeSettings, tmp_path: Path
):
    run = finished(tiny_synthesis, tmp_path / "run")
    (group,) = compare([run.path]).groups
    assert group.epsilon == run.result.guarantee.epsilon
    assert group.to_json()["accuracy"] is None


def test_the_loss_of_a_record_is_its_own(tiny_synthesis: SynthesizeSettings, tmp_path: Path):
    run = finished(tiny_synthesis, tmp_path / "run", noise=False)
    assert isinstance(run.generator, Synthesizer)
    images, labels = run.synthesise(7)
    together = denoising_losses(run.generator, images, labels)
    alone = [
        denoising_losses(run.generator, images[i : i + 1], labels[i : i + 1])[0] for i in range(7)
    ]
    assert together == pytest.approx(alone, rel=1e-4)
    noise = torch.randint(0, 256, images.shape, dtype=torch.uint8)
    assert denoising_losses(run.generator, noise, labels).mean() != pytest.approx(together.mean())
