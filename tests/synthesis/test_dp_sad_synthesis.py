"""DP-SAD through the same host: booked once, interrupted, resumed."""

import json
from pathlib import Path

import pytest
import torch

from fedtranscribe.config import DpSadOptions, SynthesizeSettings
from fedtranscribe.privacy.chain import EntryKind
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.trainers.dp_sad import DpSad
from fedtranscribe.trainers.preparation import prepare
from fedtranscribe.trainers.samples import chosen_labels, open_run
from fedtranscribe.trainers.synthesize import synthesize


@pytest.fixture
def tiny_sad(tiny_synthesis: SynthesizeSettings) -> SynthesizeSettings:
    """A private teacher and a student, two steps each."""
    options = DpSadOptions(
        teacher="dp", batch=6, epochs=0.25, time_steps=20, copies=1, synthetic_images=8
    )
    return tiny_synthesis.model_copy(update={"method": "dp-sad", "dp_sad": options})


@pytest.mark.long
def test_an_interrupted_distillation_goes_on_under_its_one_reservation(
    tiny_sad: SynthesizeSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    prepared = prepare(tiny_sad)
    assert prepared.plan.steps == {"teacher": 2, "student": 2}
    real, taken = DpSad._one_step, []

    def breaks(self: DpSad) -> None:
        if len(taken) == 3:
            raise KeyboardInterrupt
        taken.append(self.stage.value)
        real(self)

    with monkeypatch.context() as patch:
        patch.setattr(DpSad, "_one_step", breaks)
        with pytest.raises(KeyboardInterrupt):
            synthesize(prepared, tmp_path / "run")
    result = synthesize(prepared, tmp_path / "run", resume=True).to_json()
    assert taken == ["teacher", "teacher", "student"]
    assert result["private"] is True
    assert 0.99 < result["epsilon"] <= 1
    assert set(result["sound"]) == {"zero-out", "replace", "add-remove"}
    assert tiny_sad.ledger is not None
    with Ledger.open_read_only(tiny_sad.ledger) as ledger:
        assert sum(entry.kind == EntryKind.RESERVE for entry in ledger.entries()) == 1
    model, _ = open_run(tmp_path / "run", torch.device("cpu"))
    assert model.schedule.steps == 20
    assert len(model.draw(chosen_labels("all", 3, model.classes, 0), seed=0)) == 3


def test_a_student_without_labels_is_sampled_without(tiny_sad: SynthesizeSettings, tmp_path: Path):
    options = tiny_sad.dp_sad.model_copy(update={"student_conditioning": False})
    settings = tiny_sad.model_copy(update={"noise": False, "dp_sad": options})
    result = synthesize(prepare(settings), tmp_path / "run", judge=lambda *_: 1 / 0).to_json()
    assert (result["classes"], result["private"]) == (0, False)
    model, _ = open_run(tmp_path / "run", torch.device("cpu"))
    assert (model.classes, model.denoiser.classes) == (0, 3)


def test_equation_17_as_printed_has_no_guarantee(tiny_sad: SynthesizeSettings, tmp_path: Path):
    options = tiny_sad.dp_sad.model_copy(update={"clip": 1e-2})
    settings = tiny_sad.model_copy(update={"calibrate_by": "published", "dp_sad": options})
    result = synthesize(prepare(settings), tmp_path / "run").to_json()
    assert result["epsilon"] is None
    assert result["published"]["epsilon"] <= 1
    assert any("Eq. 17" in caveat for caveat in result["caveats"])
    assert not list(tmp_path.glob("*.sqlite"))
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["private"] is False
