"""Networks that somebody else trained: what is refused, what is accepted, on whose word."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

from fedtranscribe.cli import run as command
from fedtranscribe.config import OwnData, TranscribeSettings
from fedtranscribe.config import build as build_settings
from fedtranscribe.data import load
from fedtranscribe.errors import (
    ConfigError,
    CorruptWeightsError,
    FedtranscribeError,
    HopelessPlanError,
    InvalidDataError,
    ModelMismatchError,
    StorageError,
    UnknownArchitectureError,
    WeightsNotFoundError,
)
from fedtranscribe.evaluation.audit_checks import check_teachers
from fedtranscribe.holder.holder_file import HolderFile
from fedtranscribe.holder.readiness import examine
from fedtranscribe.holder.service import HolderService, Journal
from fedtranscribe.models import build, save
from fedtranscribe.models.ensemble import Ensemble
from fedtranscribe.models.teacher_import import (
    DECLARATION,
    TEMPLATE,
    Declaration,
    import_networks,
    read_networks,
)
from fedtranscribe.models.teachers import load_manifest
from fedtranscribe.privacy.budget import OWN, UNSTATED
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.release_plan import NoisePlan
from fedtranscribe.privacy.units import NoiseMode
from fedtranscribe.questions import messages as wire
from fedtranscribe.questions import query_messages as queries
from fedtranscribe.questions.messages import pack, unpack
from fedtranscribe.questions.question import Kind
from fedtranscribe.questions.rows import ImageQuery
from fedtranscribe.releases import make_release, verify
from fedtranscribe.releases.describe import THE_HOLDER
from fedtranscribe.releases.statement import CARD, read_statement
from fedtranscribe.runs.preparation import prepare
from fedtranscribe.runs.transcription import transcribe
from tests.conftest import TINY_DPSD

WHO = "J. Doe, Example *Hospital*"
SHARDS = 4


def declaration(networks: int = SHARDS, **changed: object) -> str:
    said = {"declared_by": WHO, "disjoint": True, "assigned_by": "id", "own_shard_alone": True}
    said |= {"architecture": "cnn-small", "classes": 3, "channels": 1, "size": 28}
    said |= {"data_id": "npz:tiny", **changed}
    lines = [f"{key} = {json.dumps(value)}" for key, value in said.items() if value is not None]
    for number in range(networks):
        lines += ["[[networks]]", f'file = "n{number}.safetensors"', f'ids = "n{number}.txt"']
    return "\n".join(lines)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four networks, each with the ids of its shard."""
    home = tmp_path / "networks"
    home.mkdir()
    for number in range(SHARDS):
        save(build("cnn-small", 3, 1, 28, seed=number), home / f"n{number}.safetensors")
        ids = [f"patient-{i}" for i in range(60) if i % SHARDS == number]
        (home / f"n{number}.txt").write_text("\n".join(ids))
    (home / DECLARATION).write_text(declaration())
    return home


def imported(folder: Path, out: Path, data: Path | None = None) -> Path:
    split = None if data is None else load(str(data))
    settings = TranscribeSettings(data=None if data is None else str(data))
    import_networks(read_networks(folder, split, settings), out, lambda done, total: None)
    return out


# ---------------------------------------------------------------- one network


@pytest.fixture
def one(folder: Path) -> Path:
    return folder / "n0.safetensors"


def test_one_network_is_refused_with_the_forecast_and_three_ways_out(
    one, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    arguments = ["teacher", "import", str(one), "--arch", "cnn-small", "--json"]
    assert command(arguments) == HopelessPlanError.exit_code
    captured = capsys.readouterr()
    told = json.loads(captured.out)
    assert (told["verdict"], told["teachers"], told["classes"]) == ("hopeless", 1, 3)
    assert "nobody can learn from that" in told["forecast"]
    train, leave, features = told["ways"].values()
    assert train.startswith("fedtranscribe teacher train")
    assert leave.startswith("fedtranscribe transcribe --data")
    assert f"--features-weights {one} --features-declared-by" in features
    assert captured.err.startswith("error: One network that was trained on all records cannot be")
    assert command(arguments[:-1]) == HopelessPlanError.exit_code
    assert "3. Only if the network never saw the private records" in capsys.readouterr().out
    assert not (tmp_path / "teachers").exists()


def test_a_folder_with_one_network_is_one_network(folder, tmp_path, capsys):
    (folder / DECLARATION).write_text(declaration(1))
    arguments = ["teacher", "import", str(folder), "--out", str(tmp_path / "out")]
    assert command(arguments) == HopelessPlanError.exit_code
    assert not (tmp_path / "out").exists()
    (folder / DECLARATION).write_text(declaration(1, shards=250))
    assert command(arguments) == 0, "the number of shards is public, however many stayed empty"
    assert load_manifest(tmp_path / "out").shards == 250


def test_who_insists_gets_an_ensemble_of_one(one, tmp_path, tiny_data, capsys):
    out = tmp_path / "out"
    arguments = ["teacher", "import", str(one), "--arch", "cnn-small", "--force", "--out", str(out)]
    assert command(arguments) == 2
    assert "--data with one network" in capsys.readouterr().err
    assert command([*arguments, "--data", str(tiny_data), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["shards"], told["data_id"]) == (1, "npz:tiny")
    assert "nobody can learn from that" in told["forecast"]
    assert told["imported"]["declared_by"] is None
    prepared = prepare(TranscribeSettings(teacher=str(out), rows=40, dpsd=TINY_DPSD))
    with pytest.raises(HopelessPlanError, match="--force"):
        transcribe(prepared, tmp_path / "run")


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        ("{one}", 2, "--arch with the file of one network"),
        ("{one} --arch cnn-smal", 4, "did you mean cnn-small"),
        ("{one} --arch resnet18", 4, "holds another network than resnet18"),
        ("nowhere.pt --arch cnn-small", 4, "No weights file 'nowhere.pt'"),
        ("{home} --arch cnn-small", 2, "no --arch with a folder"),
        ("", 2, "a folder of networks, or the file of one"),
    ],
)
def test_mistakes_are_named(one, arguments, code, named, capsys):
    filled = arguments.format(one=one, home=one.parent)
    assert command(["teacher", "import", *filled.split()]) == code
    assert named in capsys.readouterr().err


# ---------------------------------------------------------------- a folder of networks


def test_a_folder_becomes_teachers_that_answer_as_the_networks_do(folder, tmp_path, tiny_data):
    out = imported(folder, tmp_path / "out", tiny_data)
    manifest = load_manifest(out)
    assert manifest.imported is not None
    assert manifest.imported.model_dump() == {
        "declared_by": WHO,
        "assigned_by": "id",
        "ids_compared": True,
    }
    assert (manifest.data, manifest.record_ids) == (str(tiny_data), "persistent")
    assert out.stat().st_mode & 0o777 == 0o700
    teachers = Ensemble(out, torch.device("cpu"))
    teachers.verify()
    assert teachers.facts.shards_declared_by == WHO
    audited = check_teachers(out, load(str(tiny_data)).train, SHARDS)
    assert audited.ok is None, "nobody can see on what they were trained"
    assert WHO in audited.words
    images = load(str(tiny_data)).train.images[:5]
    for number, logits in enumerate(teachers.logits(images)):
        network = build("cnn-small", 3, 1, 28, seed=number).eval()
        assert logits[0].allclose(network(images.float() / 255), atol=1e-5)


def test_a_torchvision_state_dict_in_torchs_own_format(folder, tmp_path):
    from torchvision import models

    torch.manual_seed(0)
    for number in range(2):
        torch.save(models.resnet18(num_classes=3).state_dict(), folder / f"n{number}.pt")
    text = declaration(2, architecture="resnet18").replace(".safetensors", ".pt")
    (folder / DECLARATION).write_text(text)
    out = imported(folder, tmp_path / "out")
    Ensemble(out, torch.device("cpu")).verify()
    assert load_manifest(out).data == "npz:tiny", "the id stands for data whose place nobody named"


@pytest.mark.usefixtures("without_onnx")
def test_who_declares_disjoint_shards_is_in_result_statement_and_card(folder, tmp_path, tiny_data):
    out = imported(folder, tmp_path / "out")
    settings = TranscribeSettings(
        teacher=str(out), data=str(tiny_data), rows=40, epsilon=50, budget=51, dpsd=TINY_DPSD
    )
    result = transcribe(prepare(settings), tmp_path / "run", force=True).result
    assert result.declared_teachers is not None
    assert [*result.declared_teachers.shards.values()] == [WHO]
    assert result.declared_teachers.weights == {}
    assert "add-remove" in result.guarantee.sound
    release = make_release(tmp_path / "run").folder
    said = read_statement(release).declared_teachers
    assert said is not None
    assert (said.shards, said.weights) == ({THE_HOLDER: WHO}, {})
    card = (release / CARD).read_text()
    assert r"J\. Doe, Example \*Hospital\* declares that they learned from disjoint shards" in card
    assert verify(release).ok
    (release / CARD).write_text(card.replace("disjoint shards", "shards"))
    assert not verify(release).ok


def test_rows_that_were_assigned_by_number_have_no_figure_for_adding_one(
    folder, tmp_path, tiny_data
):
    (folder / DECLARATION).write_text(declaration(assigned_by="index"))
    out = imported(folder, tmp_path / "out", tiny_data)
    assert load_manifest(out).record_ids == "positional"
    settings = TranscribeSettings(
        teacher=str(out), rows=40, epsilon=50, budget=51, dpsd=TINY_DPSD, start="none"
    )
    result = transcribe(prepare(settings), tmp_path / "run", force=True).result
    assert {*result.guarantee.sound} == {"zero-out", "replace"}


def test_the_template_is_a_declaration():
    said = build_settings(Declaration, tomllib.loads(TEMPLATE))
    assert len(said.networks) == 2


def edit(**changed: object):
    return lambda folder: (folder / DECLARATION).write_text(declaration(**changed))


def write(name: str, content: str | bytes):
    raw = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(raw)


def rewrite(old: str, new: str):
    def change(folder: Path) -> None:
        path = folder / DECLARATION
        path.write_text(path.read_text().replace(old, new))

    return change


def with_nan(folder: Path) -> None:
    network = build("cnn-small", 3, 1, 28)
    with torch.no_grad():
        next(network.parameters()).fill_(float("nan"))
    save(network, folder / "n1.safetensors")


class Code:
    def __reduce__(self):
        return print, ("code of a stranger",)


@pytest.mark.parametrize(
    ("change", "kind", "named"),
    [
        (lambda f: (f / DECLARATION).unlink(), ConfigError, "Expected networks.toml in"),
        (write(DECLARATION, "disjoint = "), ConfigError, "not valid TOML"),
        (edit(declared_by=None), ConfigError, "declared_by"),
        (edit(declared_by=" "), ConfigError, "declared_by"),
        (edit(disjoint=False), ConfigError, "disjoint=False"),
        (edit(own_shard_alone=None), ConfigError, "own_shard_alone"),
        (edit(assigned_by="stratified"), ConfigError, "assigned_by='stratified'"),
        (edit(architecture="resnet19"), UnknownArchitectureError, "did you mean resnet18"),
        (edit(architecture="resnet18/32@" + 64 * "0"), UnknownArchitectureError, "No architecture"),
        (edit(shards=3), ConfigError, "at most shards=3 networks"),
        (
            edit(data_id="others"),
            ModelMismatchError,
            "data_id='others', the records have 'npz:tiny'",
        ),
        (edit(data_id=" "), ConfigError, "data_id"),
        (edit(classes=2), ModelMismatchError, "classes=2, the records have 3"),
        (edit(sizes=28), ConfigError, "Unknown setting sizes"),
        (write("n2.txt", "patient-2\npatient-1"), ConfigError, "line 2 of 'n2.txt' is also in"),
        (write("n2.txt", "patient-99"), ConfigError, "'n2.txt', line 1 is none of"),
        (write("n2.txt", b"\xff"), InvalidDataError, "holds no ids"),
        (lambda f: (f / "n2.txt").unlink(), ConfigError, "Cannot read the ids"),
        (rewrite("n1.safetensors", "n0.safetensors"), ConfigError, "are the same"),
        (rewrite("n1.safetensors", "../n1.safetensors"), ConfigError, "inside the folder"),
        (rewrite("n1.safetensors", "/n1.safetensors"), ConfigError, "inside the folder"),
        (lambda f: (f / "n1.safetensors").unlink(), WeightsNotFoundError, "n1.safetensors"),
        (write("n1.safetensors", b"junk"), CorruptWeightsError, "Cannot read weights"),
        (with_nan, CorruptWeightsError, "NaN"),
        (
            lambda f: save(build("cnn", 3, 1, 28), f / "n1.safetensors"),
            FedtranscribeError,
            "n1.safetensors",
        ),
        (
            lambda f: save(build("cnn-small", 4, 1, 28), f / "n1.safetensors"),
            ModelMismatchError,
            "are for 4 classes, the data have 3",
        ),
    ],
)
def test_what_does_not_hold_is_refused_and_leaves_nothing(
    folder, tmp_path, tiny_data, change, kind, named
):
    change(folder)
    with pytest.raises(kind, match=named) as raised:
        imported(folder, tmp_path / "out", tiny_data)
    assert "patient" not in str(raised.value), "ids may name patients"
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".out-*"))


def test_the_id_of_the_data_comes_from_the_data_or_is_declared(folder, tmp_path, tiny_data):
    (folder / DECLARATION).write_text(declaration(data_id=None))
    with pytest.raises(ConfigError, match="Expected data_id in"):
        imported(folder, tmp_path / "out")
    assert load_manifest(imported(folder, tmp_path / "out", tiny_data)).data_id == "npz:tiny"


def test_no_code_of_a_file_is_run(folder, tmp_path, capsys):
    torch.save({"head.weight": Code()}, folder / "n1.pt")
    rewrite("n1.safetensors", "n1.pt")(folder)
    with pytest.raises(CorruptWeightsError):
        imported(folder, tmp_path / "out")
    assert "stranger" not in capsys.readouterr().out


def test_rows_of_one_patient_that_were_assigned_one_by_one(folder, tmp_path, tiny_data):
    content = dict(np.load(tiny_data))
    content["ids"] = np.array([f"patient-{i // 2}" for i in range(60)])
    np.savez(tiny_data, **content)
    text = declaration(assigned_by="index")
    (folder / DECLARATION).write_text("\n".join(li for li in text.splitlines() if "ids" not in li))
    with pytest.raises(ConfigError, match="several records share an id"):
        imported(folder, tmp_path / "out", tiny_data)


def test_an_earlier_version_noted_how_ids_are_made_if_it_was_stated(folder, tmp_path, tiny_data):
    """And teachers without data say nothing about them."""
    manifest = load_manifest(imported(folder, tmp_path / "out", tiny_data))
    assert manifest.ids_by == OWN
    earlier = manifest.model_copy(update={"ids_made": None})
    assert earlier.ids_by == UNSTATED
    stated = earlier.model_copy(update={"own_data": OwnData(id_pattern="(p.*)_")})
    stated.expect_ids("id_pattern (p.*)_", tmp_path)
    with pytest.raises(ModelMismatchError, match="learned from records with ids by id_pattern"):
        stated.expect_ids("id_pattern ([^/]+)$", tmp_path)
    assert load_manifest(imported(folder, tmp_path / "alone")).ids_by is None


def test_teachers_that_are_there_are_not_overwritten(folder, tmp_path):
    imported(folder, tmp_path / "out")
    with pytest.raises(StorageError, match="is not empty"):
        imported(folder, tmp_path / "out")
    (tmp_path / "empty").mkdir()
    imported(folder, tmp_path / "empty")


@pytest.mark.parametrize("with_records", [True, False])
def test_a_holder_service_answers_from_them(folder, tmp_path, tiny_data, with_records):
    """With the records the data are known; without, the declaration names them."""
    home = tmp_path / "holder"
    (home / "book").mkdir(parents=True, mode=0o700)
    (home / "run").mkdir()
    imported(folder, home / "teachers", tiny_data if with_records else None)
    (home / "teachers").chmod(0o700)
    (home / "policy.toml").write_text(
        'epsilon = 200.0\nkinds = ["vote"]\n[holder]\nname = "a"\nteachers = "teachers"\n'
        'ledger = "book/ledger.sqlite"\nsocket = "run/h.sock"\ndevice = "cpu"\n'
        f"records = {json.dumps(str(tiny_data))}\n"
    )
    file = HolderFile.read(home / "policy.toml")
    (found,) = (finding for finding in examine(home / "policy.toml") if finding.name == "teachers")
    assert WHO in found.words
    service = HolderService(file, Journal(None))
    try:
        asked = pack(queries.ask_capabilities(0))
        facts = queries.read_capabilities(unpack(service.handle(wire.CAPABILITIES, asked)))
        assert (facts.shards, facts.classes, facts.shards_declared_by) == (SHARDS, 3, WHO)
        images = torch.randint(0, 256, (10, 1, 28, 28), dtype=torch.uint8)
        query = ImageQuery("q-1", Kind.VOTE, images, torch.arange(3).repeat(10, 1))
        envelope = queries.Envelope(query, NoisePlan(NoiseMode.LOCAL, 0.5, 1), "run-1")
        reply = unpack(service.handle(wire.ANSWER, pack(queries.ask(envelope))))
        assert queries.read_answer(reply, query).values.shape == (10, 3)
    finally:
        service.close()
    with Ledger.open_read_only(file.holder.ledger, "npz:tiny") as ledger:
        assert [release.rows for release in ledger.releases()] == [10]
