"""The cost of a generator's training travels with it, from its run folder to the student's card."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from synthesis_settings import TINY

from fedtranscribe.config import DpPromiseOptions, SynthesizeSettings, TranscribeSettings
from fedtranscribe.errors import StorageError
from fedtranscribe.evaluation.comparison import compare
from fedtranscribe.evaluation.report_facts import read_facts
from fedtranscribe.privacy.accountant import epsilon
from fedtranscribe.privacy.release_plan import MechanismRelease
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.releases import make_release, verify
from fedtranscribe.runs.preparation import prepare
from fedtranscribe.runs.transcription import transcribe
from fedtranscribe.trainers.preparation import prepare as prepare_synthesis
from fedtranscribe.trainers.samples import ExistingGenerator, open_generator
from fedtranscribe.trainers.synthesize import synthesize

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a data set, `scans.npz`, with the run of a generator that was trained on it."""
    folder = tmp_path_factory.mktemp("trained")
    labels = np.arange(60) % 3
    images = np.random.default_rng(0).integers(0, 80, (60, 28, 28)) + 60 * labels[:, None, None]
    np.savez(folder / "scans.npz", images=images.astype(np.uint8), labels=labels, classes=3)
    settings = SynthesizeSettings(
        data=str(folder / "scans.npz"),
        epsilon=1.0,
        size="tiny",
        sampling_steps=2,
        samples=60,
        physical_batch=4,
        dp_promise=DpPromiseOptions(**TINY),
    )
    synthesize(prepare_synthesis(settings), folder / "generator")
    open_generator(folder / "generator", 12, CPU)  # draws the samples, which are kept
    return folder


@pytest.fixture
def place(trained_once: Path, tmp_path: Path) -> Path:
    """A copy of that folder."""
    return shutil.copytree(trained_once, tmp_path / "place")


@pytest.fixture
def trained(place: Path) -> Path:
    return place / "generator"


@pytest.fixture
def asked(tiny_settings: TranscribeSettings, place: Path) -> TranscribeSettings:
    data = str(place / "scans.npz")
    return tiny_settings.model_copy(update={"data": data, "rows": 10, "shards": 5})


def opened(path: Path) -> ExistingGenerator:
    return open_generator(path, 12, CPU)


def changed(path: Path, **changes: object) -> None:
    """Rewrite a result; a value of `...` removes its key."""
    metrics = path / "metrics.json"
    result = {**json.loads(metrics.read_text()), **changes}
    metrics.write_text(json.dumps({k: v for k, v in result.items() if v is not ...}))


@pytest.mark.long
def test_another_spelling_costs_the_same_in_every_file(
    trained: Path,
    place: Path,
    asked: TranscribeSettings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """`./scans.npz` after a generator of `/somewhere/scans.npz`, down to privacy.json."""
    monkeypatch.chdir(place)
    assert opened(trained).data_id == "npz:scans"
    spelled = asked.model_copy(update={"data": "./scans.npz"})
    result = transcribe(prepare(spelled, opened(trained)), tmp_path / "run", force=True).to_json()
    lines = (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    events = [
        MechanismRelease.from_json(json.loads(line)).event(Unit.RECORD, Adjacency.ZERO_OUT)
        for line in lines
    ]
    assert len(events) == 2
    total = pytest.approx(epsilon(events, asked.delta), rel=1e-6)
    assert result["epsilon"] == total
    assert result["epsilon"] > asked.epsilon * 1.001
    made = make_release(tmp_path / "run")
    assert made.statement.epsilon == total
    assert len(made.statement.events) == 2
    assert verify(made.folder).ok
    assert f"{made.statement.epsilon:.6g}" in (made.folder / "card.md").read_text(encoding="utf-8")
    assert read_facts(tmp_path / "run").epsilon == total
    (group,) = compare([tmp_path / "run"]).groups
    assert group.epsilon == total


def test_a_folder_that_does_not_say_which_data_it_saw_is_counted(
    trained: Path, asked: TranscribeSettings
):
    """As earlier versions left it: a path, and no id."""
    changed(trained, data_id=..., data="elsewhere.npz")
    assert opened(trained).data_id is None
    assert prepare(asked, opened(trained)).before


def test_the_name_of_a_benchmark_is_its_id_in_older_folders(
    trained: Path, asked: TranscribeSettings
):
    changed(trained, data_id=..., data="digits")
    assert opened(trained).data_id == "digits"
    assert not prepare(asked, opened(trained)).before
    # What a server fetched from a holder names the server's test images, not the records.
    changed(trained, holder="ward-7", holders=1)
    assert opened(trained).data_id is None
    assert prepare(asked, opened(trained)).before
    changed(trained, data_id=None)
    assert prepare(asked, opened(trained)).before


def test_public_images_travel_with_the_generator(trained: Path):
    assert opened(trained).public is None
    changed(trained, public_data="shapes", public_data_id="shapes")
    assert opened(trained).public is None
    changed(trained, public_data="uci-digits", public_data_id=...)
    public = opened(trained).public
    assert public is not None
    assert public.data_id == "uci-digits"
    changed(trained, public_data="scans.npz", public_data_id="npz:scans")
    public = opened(trained).public
    assert public is not None
    assert (public.spec, public.data_id) == ("scans.npz", "npz:scans")
    changed(trained, public_data_id=...)
    with pytest.raises(StorageError, match=r"scans\.npz.*Train it again"):
        opened(trained)
