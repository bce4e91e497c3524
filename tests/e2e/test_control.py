"""Does the student learn from the answers, and from nothing else?

The same run three times over, and once more with every answer replaced by pure noise. On the
packaged digits, at a record-level sound ε of 10, the student must reach three times chance in
each; on noise it must stay where the public set alone stands.
"""

from pathlib import Path

import pytest
import torch

from fedtranscribe.config import DpsdSettings, TeacherSettings, TranscribeSettings
from fedtranscribe.holder.answering import Holder
from fedtranscribe.noise.mechanisms import Mechanism
from fedtranscribe.questions.rows import ImageQuery
from fedtranscribe.runs.preparation import prepare
from fedtranscribe.runs.transcription import transcribe

CHANCE = 0.1


def go(out: Path, teachers: Path | None, seed: int) -> dict:
    settings = TranscribeSettings(
        teacher=str(teachers) if teachers else "cnn",
        shards=None if teachers else 150,
        rows=2_000,
        seed=seed,
        budget=50.0,  # four runs on one data set
        teachers=TeacherSettings(steps=80),
        dpsd=DpsdSettings(
            student_steps=60, finish_steps=200, pretrain_steps=200, generator_width=16
        ),
    )
    return transcribe(prepare(settings), out).to_json()


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_students_learn_from_answers_and_from_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    runs = [go(tmp_path / "0", None, 0)]
    teachers = tmp_path / "0" / "private" / "teachers"
    runs += [go(tmp_path / str(seed), teachers, seed) for seed in (1, 2)]
    for run in runs:
        assert run["epsilon"] == pytest.approx(10, rel=1e-4)
        assert run["accuracy"]["student"] >= 3 * CHANCE

    def only_noise(self: Holder, query: ImageQuery, mechanism: Mechanism) -> torch.Tensor:
        empty = torch.zeros(query.index_sets.shape)
        return mechanism.privatise(empty, self.noise.for_query(query.id))

    monkeypatch.setattr(Holder, "_privatised", only_noise)
    noise = go(tmp_path / "noise", teachers, 0)["accuracy"]
    assert noise["student"] <= noise["public_set_alone"] + 0.1
