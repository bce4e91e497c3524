import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch

from fedtranscribe.config import TeacherSettings, TranscribeSettings
from fedtranscribe.data import ImageSet, assign_shards, load
from fedtranscribe.errors import CorruptWeightsError, ModelError, ModelMismatchError, StorageError
from fedtranscribe.evaluation.canaries import plant
from fedtranscribe.models import build, load_state, save
from fedtranscribe.models.ensemble import Ensemble
from fedtranscribe.models.teacher_training import shard_file, train_teachers
from fedtranscribe.models.teachers import Manifest, load_manifest
from fedtranscribe.runs.preparation import make_manifest

CPU = torch.device("cpu")


def manifest_for(
    images: ImageSet, shards: int, arch: str = "cnn-small", mode: str = "full", steps: int = 40
) -> Manifest:
    settings = TranscribeSettings(
        data=images.name, teacher=arch, teachers=TeacherSettings(steps=steps, batch=4, copies=2)
    )
    return make_manifest(settings, images, shards, mode)


def train(images: ImageSet, manifest: Manifest, folder: Path) -> list[int]:
    seen: list[int] = []
    train_teachers(
        images, manifest, folder, device=CPU, progress=lambda done, total: seen.append(done)
    )
    return seen


@pytest.fixture
def images(tiny_data: Path) -> ImageSet:
    return load(str(tiny_data)).train


def states(folder: Path, shards: int) -> list[dict[str, torch.Tensor] | None]:
    paths = [shard_file(folder, shard) for shard in range(shards)]
    return [load_state(path) if path.exists() else None for path in paths]


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(
    ("arch", "mode"),
    [("cnn-small", "full"), pytest.param("resnet18", "heads", marks=pytest.mark.long)],
)
def test_one_record_reaches_one_teacher(images: ImageSet, tmp_path: Path, arch: str, mode: str):
    manifest = manifest_for(images, 4, arch, mode)
    train(images, manifest, tmp_path / "a")
    pixels, labels = images.images.clone(), images.labels.clone()
    pixels[7], labels[7] = 255 - pixels[7], (labels[7] + 1) % images.classes
    train(replace(images, pixels=pixels, labels=labels), manifest, tmp_path / "b")
    touched = int(assign_shards(images.ids, 4, bytes.fromhex(manifest.key))[7])
    before, after = states(tmp_path / "a", 4), states(tmp_path / "b", 4)
    for shard, (one, other) in enumerate(zip(before, after, strict=True)):
        assert one is not None
        assert other is not None
        assert same(one, other) is (shard != touched)


def test_leaving_a_record_out_moves_no_other_one(images: ImageSet, tmp_path: Path):
    manifest = manifest_for(images, 4)
    train(images, manifest, tmp_path / "a")
    train(images.subset([i for i in range(len(images)) if i != 7]), manifest, tmp_path / "b")
    touched = int(assign_shards(images.ids, 4, bytes.fromhex(manifest.key))[7])
    pairs = zip(states(tmp_path / "a", 4), states(tmp_path / "b", 4), strict=True)
    for shard, (one, other) in enumerate(pairs):
        assert one is not None
        assert other is not None
        if shard != touched:
            assert same(one, other)


def test_training_leaves_torchs_own_generator_alone(images: ImageSet, tmp_path: Path):
    before = torch.get_rng_state()
    train(images, manifest_for(images, 3), tmp_path / "a")
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.long
def test_interrupted_training_goes_on_and_gives_the_same_teachers(
    images: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    manifest = manifest_for(images, 4)
    train(images, manifest, tmp_path / "whole")

    def interrupt(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_teachers(images, manifest, tmp_path / "b", device=CPU, progress=interrupt)
    with pytest.raises(StorageError, match="interrupted"):
        Ensemble(tmp_path / "b", CPU)
    train(images, manifest, tmp_path / "b")
    pairs = zip(states(tmp_path / "whole", 4), states(tmp_path / "b", 4), strict=True)
    for one, other in pairs:
        assert one is not None
        assert other is not None
        assert same(one, other)
    assert train(images, manifest, tmp_path / "b") == [], "complete: nothing to do"


def workers_left() -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process().children(recursive=True)
        if any("popen_loky" in word for word in child.cmdline())
    ]


@pytest.mark.long
def test_several_processes_train_the_same_teachers_and_end(
    images: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("fedtranscribe.models.teacher_training._STEPS_PER_WORKER", 1)
    manifest = manifest_for(images, 4)
    assert train(images, manifest, tmp_path / "alone") == [0, 1, 2, 3, 4]
    seen: list[tuple[int, int]] = []

    def show(done: int, total: int) -> None:
        seen.append((done, total))

    folder = tmp_path / "together"
    train_teachers(images, manifest, folder, device=CPU, progress=show, workers=2)
    assert seen == [(done, 4) for done in range(5)]
    assert workers_left() == []
    for one, other in zip(states(tmp_path / "alone", 4), states(folder, 4), strict=True):
        assert one is not None
        assert other is not None
        assert same(one, other)


@pytest.mark.parametrize(("steps", "processes"), [(599, 1), (600, 2), (6_000, 2)])
def test_a_process_is_started_only_for_work_that_is_worth_it(
    images: ImageSet,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    steps: int,
    processes: int,
):
    def started(count: int, **options: object) -> None:
        raise InterruptedError(count)

    monkeypatch.setattr("fedtranscribe.models.teacher_training.Parallel", started)
    with pytest.raises(InterruptedError, match=f"^{processes}$"):
        train_teachers(
            images,
            manifest_for(images, 4, steps=steps),
            tmp_path / "teachers",
            device=CPU,
            progress=lambda done, total: None,
            workers=2,
        )


@pytest.mark.long
def test_what_a_process_cannot_write_is_told_as_if_there_were_none(
    images: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("fedtranscribe.models.teacher_training._STEPS_PER_WORKER", 1)
    folder = tmp_path / "gone"

    def put_a_file_in_its_place(done: int, total: int) -> None:
        shutil.rmtree(folder)
        folder.write_text("")

    with pytest.raises(StorageError, match="gone"):
        train_teachers(
            images,
            manifest_for(images, 4),
            folder,
            device=CPU,
            progress=put_a_file_in_its_place,
            workers=2,
        )
    assert workers_left() == []


def test_a_folder_of_other_teachers_is_refused(images: ImageSet, tmp_path: Path):
    train(images, manifest_for(images, 2), tmp_path / "a")
    with pytest.raises(StorageError, match="other teachers"):
        train(images, manifest_for(images, 3), tmp_path / "a")


def test_teachers_that_an_earlier_version_began_are_finished(images: ImageSet, tmp_path: Path):
    manifest = manifest_for(images, 2)
    tmp_path.joinpath("a").mkdir()
    manifest.model_copy(update={"ids_made": None}).save(tmp_path / "a")
    assert train(images, manifest, tmp_path / "a") == [0, 1, 2]
    assert load_manifest(tmp_path / "a").ids_made == images.ids_by


def test_teachers_of_planted_rows_are_not_for_other_ids(images: ImageSet, tmp_path: Path):
    """A planted set numbers the rows of data without ids, for good."""
    planted, _ = plant(replace(images, record_ids=None), 10)
    assert not planted.positional
    manifest = manifest_for(planted, 2)
    manifest.expect_ids(planted.ids_by, tmp_path)
    with pytest.raises(ModelMismatchError, match="no ids: each image counts as a record"):
        manifest.expect_ids(images.ids_by, tmp_path)


@pytest.mark.parametrize(
    ("arch", "mode"),
    [("cnn-small", "full"), pytest.param("mobilenet_v2", "heads", marks=pytest.mark.long)],
)
def test_an_empty_shard_answers_nan_and_counts(
    images: ImageSet, tmp_path: Path, arch: str, mode: str
):
    few = images.subset(range(6))
    manifest = manifest_for(few, 6, arch, mode)
    train(few, manifest, tmp_path / "a")
    empty = set(range(6)) - set(assign_shards(few.ids, 6, bytes.fromhex(manifest.key)).tolist())
    assert empty, "six hashed records leave some of six shards empty"
    teachers = Ensemble(tmp_path / "a", CPU)
    answers = list(teachers.logits(few.images))
    assert len(answers) == teachers.shards == 6
    for shard, logits in enumerate(answers):
        assert logits.shape == (1, 6, 3)
        assert bool(torch.isnan(logits).all()) is (shard in empty)
        assert bool(torch.isfinite(logits).all()) is (shard not in empty)


@pytest.mark.long
def test_heads_on_a_frozen_backbone_learn(images: ImageSet, tmp_path: Path):
    # Three classes that differ in brightness: a head per shard must tell them apart.
    train(images, manifest_for(images, 2, "resnet18", "heads"), tmp_path / "a")
    teachers = Ensemble(tmp_path / "a", CPU)
    votes = torch.cat(list(teachers.logits(images.images))).softmax(-1).mean(0)
    assert (votes.argmax(-1) == images.labels).float().mean() > 0.8


def test_the_manifest_tells_nothing_that_depends_on_records(images: ImageSet, tmp_path: Path):
    train(images, manifest_for(images, 2), tmp_path / "a")
    told = load_manifest(tmp_path / "a")
    pixels = 255 - images.images
    train(replace(images, pixels=pixels), manifest_for(images, 2), tmp_path / "b")
    assert told == load_manifest(tmp_path / "b")


def test_foreign_manifests_and_nan_weights_are_refused(images: ImageSet, tmp_path: Path):
    train(images, manifest_for(images, 2), tmp_path / "a")
    shard = shard_file(tmp_path / "a", 1)
    shard.write_bytes(b"not safetensors")
    with pytest.raises(CorruptWeightsError, match="shard-00001"):
        Ensemble(tmp_path / "a", CPU).verify()
    (tmp_path / "a" / "manifest.json").write_text('{"version": 7}')
    with pytest.raises(ModelError, match="train the teachers again"):
        load_manifest(tmp_path / "a")


@pytest.mark.parametrize(
    "wrong",
    [
        *({name: 10**9} for name in ("classes", "channels", "size", "shards")),
        *({name: 4_000} for name in ("classes", "channels", "size")),
        *({name: value} for name in ("classes", "shards") for value in (0, -1, 1e999)),
    ],
    ids=str,
)
def test_a_manifest_is_held_against_the_weights_beside_it(tmp_path, wrong):
    """A number in a text file must not decide how much memory is taken."""
    folder = tmp_path / "teachers"
    folder.mkdir()
    facts = {
        **{"architecture": "cnn-small", "mode": "full", "classes": 3, "channels": 1, "size": 28},
        **{"shards": 2, "data": "d", "data_root": None, "data_id": "d", "key": "k", "seed": 0},
        **{"record_ids": "persistent", "weights": None, "settings": {}, "complete": True},
    }
    save(build("cnn-small", 3, 1, 28), shard_file(folder, 1))
    (folder / "manifest.json").write_text(json.dumps(facts))
    assert Ensemble(folder, torch.device("cpu")).shards == 2
    (folder / "manifest.json").write_text(json.dumps(facts | wrong))
    with pytest.raises(ModelError):
        Ensemble(folder, torch.device("cpu"))


KILLED = """
import sys, torch
from pathlib import Path
from fedtranscribe.data import load
from fedtranscribe.models.teacher_training import train_teachers
from tests.teachers.test_teachers import manifest_for

if __name__ == "__main__":
    images = load(sys.argv[1]).train
    manifest = manifest_for(images, 40, steps=1_000)
    train_teachers(
        images, manifest, Path(sys.argv[2]), device=torch.device("cpu"), workers=2,
        progress=lambda done, total: print(done, flush=True),
    )
"""


@pytest.mark.long
def test_processes_end_soon_after_the_one_that_started_them_was_killed(
    tiny_data: Path, tmp_path: Path
):
    command = [sys.executable, "-c", KILLED, str(tiny_data), str(tmp_path / "teachers")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        first, second = (int(running.stdout.readline()) for _ in range(2))
        assert second == first + 1
        workers = psutil.Process(running.pid).children(recursive=True)
        running.kill()
    assert len(workers) >= 2
    _, alive = psutil.wait_procs(workers, timeout=120)
    assert alive == []
