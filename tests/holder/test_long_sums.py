"""Sums over records on disk, and sums that are interrupted: the same numbers, charged once."""

import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedtranscribe.data import ImageSet, load
from fedtranscribe.errors import ConfigError, StorageError
from fedtranscribe.holder.answering import Holder
from fedtranscribe.models.fixed_features import PATCHES, SCATTER, coefficient_count
from fedtranscribe.models.mixture import frequency_count
from fedtranscribe.models.scattering import Scattering
from fedtranscribe.noise.sources import SeededNoise
from fedtranscribe.privacy.budget import Budget
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.questions import records as record_sums
from fedtranscribe.questions.descent import DescentQuery
from fedtranscribe.questions.kinds import of_records
from fedtranscribe.questions.mixture import MixtureQuery
from fedtranscribe.questions.moments import Moments, MomentsQuery
from fedtranscribe.questions.question import Kind, Query
from fedtranscribe.questions.records import FULL_WEIGHT, PARTIAL_SUM, SEGMENT, RecordSums
from tests.mechanisms_for import local

RAW, CLASSES, N, SHORT = coefficient_count(SCATTER, 1, 8), 3, 500, 200
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that some hundred records are many."""
    assert SEGMENT % 200 == SEGMENT % 256 == 0, "whole blocks of every statistic"
    # A multiple of 200, as blocks of features have to be; of frequencies none is looked at again.
    monkeypatch.setattr(record_sums, "SEGMENT", SHORT)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("data") / "ward.npz"
    np.savez(
        path,
        images=rng.integers(0, 256, (N + 10, 8, 8), dtype=np.uint8)[:N],
        labels=rng.integers(0, CLASSES, N),
        ids=np.array([f"patient-{i}" for i in rng.integers(0, N // 2, N)]),
        classes=CLASSES,
        test_images=np.zeros((2, 8, 8), dtype=np.uint8),
        test_labels=np.zeros(2, dtype=np.int64),
    )
    with zipfile.ZipFile(path) as whole:
        whole.extractall(path.with_suffix(""))
    return path


@pytest.fixture
def records(archive: Path) -> ImageSet:
    return load(str(archive)).train


def queries() -> list[Query]:
    rng = torch.Generator().manual_seed(1)
    centre, mapped = torch.zeros(RAW), torch.randn(RAW, 4, generator=rng)
    d = frequency_count(1, 8)
    axes = torch.linalg.qr(torch.randn(d, 4, generator=rng)).Q
    cuts = torch.randn(CLASSES, 1, 5, generator=rng)
    head = torch.randn(5, CLASSES, generator=rng)
    return [
        MomentsQuery("r/moments", Kind.MOMENTS, centre, mapped, SCATTER, CLASSES),
        DescentQuery("r/descent", Kind.DESCENT, centre, mapped, SCATTER, head, torch.ones(CLASSES)),
        MixtureQuery("r/mixture", Kind.MIXTURE, torch.zeros(d), axes, cuts, 0.0, 0),
    ]


def values(images: ImageSet, query: Query, scratch: Path, **options: Any) -> torch.Tensor:
    return of_records(images, CPU, scratch, **options)[query.kind].values(query)


class Killed(BaseException):
    """As Ctrl-C, or the machine."""


def killed_after(records: int):
    def look(stage: str, done: int, total: int) -> None:
        if done >= records:
            raise Killed

    return look


@pytest.mark.parametrize("query", queries(), ids=lambda query: query.kind.value)
def test_records_on_disk_have_the_same_sums(
    archive: Path, records: ImageSet, query: Query, tmp_path: Path
):
    stored = load(str(archive.with_suffix(""))).train
    assert torch.equal(values(stored, query, tmp_path), values(records, query, tmp_path))


@pytest.mark.parametrize("query", queries(), ids=lambda query: query.kind.value)
@pytest.mark.parametrize("done", [SHORT, 2 * SHORT, N])
def test_an_interrupted_sum_goes_on_to_the_same_numbers(
    records: ImageSet, query: Query, done: int, tmp_path: Path
):
    whole = values(records, query, tmp_path / "whole")
    with pytest.raises(Killed):
        values(records, query, tmp_path, progress=killed_after(done))
    assert [path.name for path in tmp_path.glob("*.npz")] == [PARTIAL_SUM]
    assert (tmp_path / PARTIAL_SUM).stat().st_mode & 0o077 == 0
    seen: list[int] = []
    found = values(records, query, tmp_path, progress=lambda _, done, total: seen.append(done))
    assert torch.equal(found, whole)
    first = min(done, 2 * SHORT) + SHORT
    assert seen == [*range(first, N, SHORT), N]
    assert not (tmp_path / PARTIAL_SUM).exists()


def edited(images: ImageSet, **changes: Any) -> ImageSet:
    facts = {"pixels": images.images, "labels": images.labels, "record_ids": tuple(images.ids)}
    return ImageSet(**{**vars(images), **facts, **changes})


@pytest.mark.parametrize(
    "what", ["image", "label", "id", "moved", "query", "damaged", "floats", "junk"]
)
def test_another_sum_or_a_damaged_one_is_not_taken_up(records: ImageSet, what: str, tmp_path: Path):
    asked, other = queries()[0], records
    with pytest.raises(Killed):
        values(records, asked, tmp_path, progress=killed_after(2 * SHORT))
    pixels, labels, ids = records.images.clone(), records.labels.clone(), list(records.ids)
    if what == "image":
        pixels[7, 0, 0, 0] ^= 1
        other = edited(records, pixels=pixels)
    elif what == "label":
        labels[7] = (labels[7] + 1) % CLASSES
        other = edited(records, labels=labels)
    elif what == "id":  # of a record that is not summed yet: others of that patient weigh less
        ids[-1] = ids[0]
        other = edited(records, record_ids=tuple(ids))
    elif what == "moved":
        other = records.subset(torch.arange(1, N))
    elif what == "query":
        asked = queries()[1]
    elif what == "damaged":
        content = dict(np.load(tmp_path / PARTIAL_SUM))
        content["sum"][3] += 1
        np.savez(tmp_path / PARTIAL_SUM, **content)
    elif what == "floats":
        content = dict(np.load(tmp_path / PARTIAL_SUM))
        np.savez(tmp_path / PARTIAL_SUM, **content | {"sum": content["sum"].view(np.float64)})
    else:
        (tmp_path / PARTIAL_SUM).write_bytes(b"junk")
    seen: list[int] = []
    found = values(other, asked, tmp_path, progress=lambda _, done, total: seen.append(done))
    assert seen[0] == SHORT, "from the beginning"
    assert torch.equal(found, values(other, asked, tmp_path / "whole"))


@pytest.mark.parametrize("what", ["threads", "processor", "device", "kernels", "code"])
def test_a_sum_of_another_machine_is_not_taken_up(
    records: ImageSet, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # There a record may be rounded otherwise, so that a sum of both would depend on its place.
    asked = queries()[0]
    with pytest.raises(Killed):
        values(records, asked, tmp_path, progress=killed_after(2 * SHORT))
    seen: list[int] = []
    moments = Moments(records, CPU, tmp_path, progress=lambda _, done, total: seen.append(done))
    if what == "threads":
        more = torch.get_num_threads() + 1
        monkeypatch.setattr(torch, "get_num_threads", lambda: more)
    elif what == "processor":
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "another")
    elif what == "device":
        moments.rows.sums.device = torch.device("mps")
    elif what == "kernels":
        monkeypatch.setattr(Scattering, "forward", rounded_otherwise)
    else:
        monkeypatch.setattr(record_sums, "_CODE", "another")
    found = moments.values(asked)
    assert seen[0] == SHORT, "from the beginning"
    assert torch.equal(found, values(records, asked, tmp_path / "whole"))


def rounded_otherwise(
    self: Scattering, images: torch.Tensor, forward: Any = Scattering.forward
) -> torch.Tensor:
    """As other kernels would: one number of a block differs by a few units in the last place."""
    found = forward(self, images)
    found[3, 5] *= 1 + 2**-20
    return found


def test_what_other_threads_computed_is_not_used_again(
    records: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    moments, asked = Moments(records, CPU, tmp_path / "kept"), queries()[0]
    first = moments.values(asked)
    more = torch.get_num_threads() + 1
    monkeypatch.setattr(torch, "get_num_threads", lambda: more)
    monkeypatch.setattr(Scattering, "forward", lambda self, images: torch.ones(len(images), RAW))
    assert not torch.equal(moments.values(asked), first)


def test_a_query_that_another_overtakes_keeps_its_own_features(records: ImageSet, tmp_path: Path):
    rows, asked = Moments(records, CPU, tmp_path).rows, queries()[0]
    whole = [found for found, _, _ in rows.blocks(asked, range(N))]
    raw = coefficient_count(PATCHES, 1, 8)
    facts = {"centre": torch.zeros(raw), "map": torch.ones(raw, 4), "features": PATCHES}
    other, again = replace(asked, **facts), replace(asked, map=2 * asked.map)
    under_way = rows.blocks(again, range(N))
    found = [next(under_way)[0]]
    assert len(list(rows.blocks(other, range(N)))) == len(whole)
    found += [block for block, _, _ in under_way]
    assert all(map(torch.equal, found, whole)), "powers of two change no row"


def test_a_number_of_threads_that_may_change_is_refused(
    records: ImageSet, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OMP_DYNAMIC", "TRUE")
    with pytest.raises(ConfigError, match="OMP_DYNAMIC=TRUE"):
        Moments(records, CPU)


def test_an_interrupted_question_is_charged_once(records: ImageSet, tmp_path: Path):
    query, plan = queries()[0], local(50.0)
    budget = Budget(1.0, 1e-5, Unit.RECORD, Adjacency.ZERO_OUT)

    def holder(ledger: Ledger, folder: Path, **options: Any) -> Holder:
        statistics = of_records(records, CPU, folder, **options)
        return Holder(statistics, ledger, "run", positional_ids=False, noise=SeededNoise(0))

    with Ledger.open(tmp_path / "once.sqlite", "ward", budget) as ledger:
        whole = holder(ledger, tmp_path / "a").answer(query, plan).values
        spent = ledger.total(1e-5, Unit.RECORD, Adjacency.ZERO_OUT)
    path = tmp_path / "twice.sqlite"
    with Ledger.open(path, "ward", budget) as ledger, pytest.raises(Killed):
        holder(ledger, tmp_path / "b", progress=killed_after(2 * SHORT)).answer(query, plan)
    with Ledger.open(path, "ward", budget) as ledger:
        assert torch.equal(holder(ledger, tmp_path / "b").answer(query, plan).values, whole)
        assert ledger.usage("run").queries == 1
        assert ledger.total(1e-5, Unit.RECORD, Adjacency.ZERO_OUT) == spent
    assert not (tmp_path / "b" / PARTIAL_SUM).exists()


def test_few_records_leave_nothing_on_the_way(records: ImageSet, tmp_path: Path):
    few, seen = records.subset(torch.arange(SHORT)), []
    values(few, queries()[2], tmp_path, progress=lambda *step: seen.append(step))
    assert not seen
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("folder", ["file/private", "x" * 300])
@pytest.mark.parametrize("n", [SHORT, N])
def test_a_folder_that_cannot_be_written_costs_the_way_only(
    records: ImageSet, n: int, folder: str, tmp_path: Path
):
    (tmp_path / "file").write_text("")
    query, images = queries()[2], records.subset(torch.arange(n))
    found = values(images, query, tmp_path / folder)
    assert torch.equal(found, values(images, query, tmp_path))


@pytest.mark.parametrize("n", [SHORT, N])
def test_nothing_of_an_answered_sum_stays(
    records: ImageSet, n: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    query = queries()[2]
    with pytest.raises(Killed):
        values(records, query, tmp_path, progress=killed_after(SHORT))
    (tmp_path / f".{PARTIAL_SUM}.x1y2").write_bytes(b"of a write that was killed")

    def full(path: Path, content: bytes) -> None:
        raise StorageError("disk full")

    monkeypatch.setattr(record_sums, "write_atomically", full)
    values(records.subset(torch.arange(n)), query, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_code_is_told_apart_by_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fedtranscribe.__file__", str(tmp_path / "__init__.py"))
    assert record_sums._code() != record_sums._code(), "of no files nothing is known"
    (tmp_path / "a.py").write_text("1")
    (tmp_path / ".#a.py").symlink_to("an-editor's-lock")
    first = record_sums._code()
    assert record_sums._code() == first
    (tmp_path / "a.py").write_text("2")
    assert record_sums._code() != first


def test_features_are_computed_once_after_an_interrupt_too(
    records: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    first, second, _ = queries()
    with pytest.raises(Killed):
        values(records, first, tmp_path, progress=killed_after(SHORT))
    blocks: list[int] = []
    forward = Scattering.forward

    def counted(self: Scattering, images: torch.Tensor) -> torch.Tensor:
        blocks.append(len(images))
        return forward(self, images)

    monkeypatch.setattr(Scattering, "forward", counted)
    statistics = of_records(records, CPU, tmp_path)
    statistics[first.kind].values(first)
    left = -(-(N - SHORT) // 200) + 1
    assert len(blocks) == left, "of records that are not summed yet, and of public images"
    statistics[second.kind].values(second)
    assert len(blocks) == left + SHORT // 200, "and of the others when they are asked for"
    statistics[second.kind].values(second)
    assert len(blocks) == left + SHORT // 200


def test_images_are_read_a_few_at_a_time(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from fedtranscribe.data.stored import StoredPixels

    read: list[int] = []
    taken = StoredPixels.__getitem__

    def counted(self: StoredPixels, rows: Any) -> torch.Tensor:
        found = taken(self, rows)
        read.append(len(found))
        return found

    monkeypatch.setattr(StoredPixels, "__getitem__", counted)
    stored = load(str(archive.with_suffix(""))).train
    for query in queries():
        values(stored, query, tmp_path)
    assert max(read) <= 256


def by_count(ids: list[str]) -> Iterator[int]:
    for place, record in enumerate(ids):
        share = FULL_WEIGHT // ids.count(record)
        yield share or int(ids[: place + 1].count(record) <= FULL_WEIGHT)


def test_weights_are_those_that_counting_gives():
    rng = np.random.default_rng(2)
    pixels = torch.zeros(1, 1, 8, 8, dtype=torch.uint8).expand(2_000, 1, 8, 8)
    labels = torch.zeros(2_000, dtype=torch.int64)
    ids = [*(str(i) for i in rng.integers(0, 300, 700)), *["much"] * 1_100, *["é", "a\0", "a"] * 66]
    ids += [f"alone-{i}" for i in range(2_000 - len(ids))]
    images = ImageSet("x", "x", pixels, labels, 2, tuple(ids))
    assert RecordSums(images).weights.tolist() == list(by_count(ids))
    unknown = ImageSet("x", "x", pixels, labels, 2)
    assert RecordSums(unknown).weights.tolist() == [FULL_WEIGHT] * 2_000
