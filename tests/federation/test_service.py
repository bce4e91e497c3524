"""The holder service behind its socket: same answers, and nothing that policy does not allow."""

import json
import logging
import os
import shutil
import socket as sockets
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from fedtranscribe.config import TeacherSettings, TranscribeSettings
from fedtranscribe.data import load
from fedtranscribe.errors import ConfigError, CorruptLedgerError, SecondLedgerError, StorageError
from fedtranscribe.flower.over_flower import OverFlower
from fedtranscribe.flower.relay import make_relay_app
from fedtranscribe.holder.holder_file import HolderFile
from fedtranscribe.holder.link import call, is_serving
from fedtranscribe.holder.readiness import examine
from fedtranscribe.holder.service import HolderService, Journal, entries, refusals, serve
from fedtranscribe.models.backbones import file_digest
from fedtranscribe.models.teacher_training import train_teachers
from fedtranscribe.privacy.budget import two_digits_below
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.release_plan import NoisePlan
from fedtranscribe.privacy.units import NoiseMode
from fedtranscribe.questions import messages as wire
from fedtranscribe.questions import query_messages as queries
from fedtranscribe.questions.messages import pack, unpack
from fedtranscribe.questions.question import Kind
from fedtranscribe.questions.refusals import Refusal
from fedtranscribe.questions.rows import ImageQuery
from fedtranscribe.runs.preparation import make_manifest
from tests.conftest import NETWORK
from tests.federation.local_grid import LocalGrid

PLAN = NoisePlan(NoiseMode.CENTRAL, 0.5, 1)


@pytest.fixture
def policy_file(tiny_data: Path, tmp_path: Path) -> Path:
    """A holder of two tiny teachers, ready to serve."""
    images = load(str(tiny_data)).train
    described = TranscribeSettings(
        teacher="cnn-small", data=str(tiny_data), teachers=TeacherSettings(steps=2, batch=4)
    )
    home = tmp_path / "holder"
    (home / "book").mkdir(parents=True, mode=0o700)
    (home / "run").mkdir()
    train_teachers(
        images,
        make_manifest(described, images, 2, "full"),
        home / "teachers",
        device=torch.device("cpu"),
        progress=lambda done, total: None,
    )
    (home / "teachers").chmod(0o700)
    path = home / "policy.toml"
    path.write_text(
        'epsilon = 200.0\nnoise = "central"\nkinds = ["vote"]\n'
        "rows_per_message = 20\nrows_per_run = 40\n"
        '[holder]\nname = "a"\nteachers = "teachers"\nledger = "book/ledger.sqlite"\n'
        'socket = "run/h.sock"\nlog = "log/h.jsonl"\ndevice = "cpu"\n'
    )
    return path


@pytest.fixture
def file(policy_file: Path) -> HolderFile:
    return HolderFile.read(policy_file)


@pytest.fixture
def service(file: HolderFile):
    journal = Journal(file.holder.log)
    service = HolderService(file, journal)
    yield service
    service.close()
    journal.close()


def query(query_id: str = "q-1", rows: int = 10, seed: int = 0) -> ImageQuery:
    rng = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (rows, 1, 28, 28), generator=rng).to(torch.uint8)
    return ImageQuery(query_id, Kind.VOTE, images, torch.arange(3).repeat(rows, 1))


def frame(asked: ImageQuery, plan: NoisePlan = PLAN, run: str = "run-1") -> bytes:
    return pack(queries.ask(queries.Envelope(asked, plan, run)))


def told(service: HolderService, message: bytes, kind: str = wire.ANSWER) -> dict:
    return unpack(service.handle(kind, message)).terms


def booked(file: HolderFile) -> int:
    with Ledger.open_read_only(file.holder.ledger) as ledger:
        return len(ledger.releases())


def test_frames_carry_messages_unchanged():
    content = queries.ask(queries.Envelope(query(), PLAN, "run-1", 3))
    back = unpack(pack(content))
    assert back.terms == content.terms
    assert back.arrays == content.arrays
    assert set(back.arrays) == {"images", "index_sets"}


@pytest.mark.parametrize("junk", [b"", b"x", b"\xff" * 64, pack(wire.Message())[:-1]])
def test_junk_is_refused_and_not_raised(service, junk, file):
    assert told(service, junk)["refusal"] == "MALFORMED_QUERY"
    assert refusals(file.holder.log) == {"MALFORMED_QUERY": 1}


def test_an_answer_is_charged_once_and_replayed(service, file):
    asked = query()
    first = service.handle(wire.ANSWER, frame(asked))
    answer = queries.read_answer(unpack(first), asked)
    assert answer.values.shape == (10, 3)
    again = queries.read_answer(unpack(service.handle(wire.ANSWER, frame(asked))), asked)
    assert torch.equal(answer.values, again.values)
    assert booked(file) == 1


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (frame(query(rows=21)), "POLICY_REFUSED"),
        (frame(query(), NoisePlan(NoiseMode.CENTRAL, 1e-9, 1)), "BUDGET_EXHAUSTED"),
        (frame(query(), NoisePlan(NoiseMode.CENTRAL, 0.5, 1000)), None),
        (pack(wire.Message.of({"holder": 0})), "MALFORMED_QUERY"),
        (pack(wire.Message({"protocol": 99})), "PROTOCOL_VERSION"),
    ],
)
def test_what_policy_or_budget_forbid_is_refused_unbooked(service, file, message, code):
    """With 1,000 holders the planned noise per holder is larger: that may be asked for."""
    assert told(service, message).get("refusal") == code
    assert booked(file) == (0 if code else 1)


def test_what_still_fits_stays_on_the_holders_own_screen(service, file):
    told(service, frame(query()))
    asked = frame(query("q-2"), NoisePlan(NoiseMode.CENTRAL, 1e-9, 1))
    ours = logging.getLogger("fedtranscribe")
    ours.addHandler(handler := service._journal.own_log())  # as `serve` does
    try:
        reply = unpack(service.handle(wire.ANSWER, asked))
    finally:
        ours.removeHandler(handler)
    assert reply.terms == {"protocol": wire.VERSION, "refusal": "BUDGET_EXHAUSTED", "holder": 0}
    assert not reply.arrays
    with Ledger.open_read_only(file.holder.ledger) as ledger:
        room = two_digits_below(ledger.room(1e-5))
    _, logged, refused = entries(file.holder.log)
    assert logged["event"] == "log"
    assert f"still fits with epsilon up to {room:g} at delta=1e-05" in logged["words"]
    assert refused["code"] == "BUDGET_EXHAUSTED"
    assert str(room) not in json.dumps(refused)


def test_rows_of_a_run_are_limited_over_messages(service, file):
    codes = [told(service, frame(query(f"q-{i}", 20, i))).get("refusal") for i in range(3)]
    assert codes == [None, None, "POLICY_REFUSED"]
    assert booked(file) == 2


def test_another_query_under_a_known_id_is_refused(service):
    told(service, frame(query()))
    assert told(service, frame(query(seed=9)))["refusal"] == "QUERY_CONFLICT"


def test_no_message_reaches_anything_but_the_two_methods(service, file):
    assert told(service, frame(query()), "query.reset")["refusal"] == "MALFORMED_QUERY"
    assert booked(file) == 0


def test_a_ledger_put_back_while_serving_answers_nothing_more(service, file, tmp_path):
    told(service, frame(query("q-1")))
    with Ledger.open_read_only(file.holder.ledger):
        backup = tmp_path / "backup"
        shutil.copytree(file.holder.ledger.parent, backup)
    told(service, frame(query("q-2", seed=1)))
    head = next(file.holder.ledger.parent.glob("*head*")).read_bytes()
    for old in file.holder.ledger.parent.iterdir():
        old.unlink()
    for copy in backup.iterdir():
        shutil.copy(copy, file.holder.ledger.parent)
    next(file.holder.ledger.parent.glob("*head*")).write_bytes(head)
    assert told(service, frame(query("q-3", seed=2)))["refusal"] == "INTERNAL_ERROR"


def test_a_damaged_ledger_is_not_served(file):
    first = HolderService(file, Journal(None))
    told(first, frame(query()))
    first.close()
    file.holder.ledger.write_bytes(file.holder.ledger.read_bytes()[:5000])
    for stray in file.holder.ledger.parent.glob("ledger.sqlite-*"):
        stray.unlink()
    with pytest.raises(CorruptLedgerError):
        HolderService(file, Journal(None))


def test_the_journal_tells_sizes_and_codes_but_no_answer(service, file):
    told(service, frame(query()))
    told(service, frame(query("q-2", rows=21)))
    answered, refused = entries(file.holder.log)
    assert answered.keys() == {
        *("time", "event", "message", "code", "seconds", "query-id", "run", "kind", "mode")
    }
    assert (answered["event"], refused["event"]) == ("answered", "refused")
    assert refused["code"] == "POLICY_REFUSED"


def test_texts_of_libraries_stay_out_of_the_log(service, file, caplog):
    def broken(images):
        raise RuntimeError("patient Smith")

    service._node._statistics[Kind.VOTE]._teachers.logits = broken
    assert told(service, frame(query()))["refusal"] == "INTERNAL_ERROR"
    assert "RuntimeError" in caplog.text
    assert "Smith" not in caplog.text


# ---------------------------------------------------------------- over the socket


@pytest.fixture
def serving(file: HolderFile):
    """The service on its socket, in a thread."""
    stop, ready = threading.Event(), threading.Event()
    thread = threading.Thread(target=serve, args=(file, stop, ready.set))
    thread.start()
    assert ready.wait(60)
    yield file
    stop.set()
    thread.join(60)
    assert not thread.is_alive()
    assert not file.holder.socket.exists()


def test_the_relay_passes_everything_on(serving):
    grid = LocalGrid(make_relay_app(), {1: {"holder-socket": str(serving.holder.socket)}})
    transport = OverFlower(grid, [(1, 0)], 60, 60)
    assert list(transport.capabilities()) == ["a"]
    answers = transport.ask(["a"], query(), PLAN, "run-1")
    assert answers["a"].values.shape == (10, 3)
    assert transport.ask(["a"], query("q-2", 21), PLAN, "run-1")["a"] == "POLICY_REFUSED"


def test_the_relay_imports_no_torch():
    code = "import sys, fedtranscribe.flower.relay; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_relay_without_socket_or_service_refuses_generically(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr("fedtranscribe.holder.link._WAIT_SECONDS", 0.0)
    for config in ({}, {"holder-socket": str(tmp_path / "absent.sock")}):
        transport = OverFlower(LocalGrid(make_relay_app(), {1: config}), [(1, 0)], 60, 60)
        assert list(transport.capabilities().values()) == ["INTERNAL_ERROR"]
    assert "holder-socket" in caplog.text


def test_a_second_service_is_refused(serving):
    with pytest.raises(StorageError, match="Another holder service"):
        serve(serving, threading.Event())


def test_health_and_a_socket_for_the_group_only(serving):
    assert is_serving(serving.holder.socket)
    assert serving.holder.socket.stat().st_mode & 0o007 == 0


@pytest.fixture
def old_lock(file: HolderFile) -> Path:
    """As earlier versions left it, in a folder that the socket's group may open."""
    lock = file.holder.socket.with_name("h.sock.lock")
    lock.parent.chmod(0o2750)
    lock.touch(mode=0o644)
    lock.chmod(0o644)
    return lock


def test_the_lock_is_for_the_service_alone(old_lock, serving):
    """Whoever may open it may hold it, and then no service could start again."""
    assert old_lock.stat().st_mode & 0o777 == 0o600
    assert serving.holder.socket.parent.stat().st_mode & 0o7777 == 0o2750, "left as it was"


def test_the_ledger_of_a_service_is_for_its_user_alone(serving):
    call(serving.holder.socket, wire.ANSWER, frame(query()), 60)
    book = serving.holder.ledger.parent
    assert {file.name: file.stat().st_mode & 0o777 for file in book.iterdir()} == dict.fromkeys(
        (f"ledger.sqlite{end}" for end in ("", "-wal", "-shm", ".head", ".record")), 0o600
    )


@pytest.mark.parametrize(
    ("mode", "who"),
    [(0o777, "all users"), (0o755, "all users"), (0o701, "all users"), (0o2750, "its group")],
)
def test_a_ledgers_folder_that_others_can_open_is_not_served(file, mode, who):
    book = file.holder.ledger.parent
    book.chmod(mode)
    with pytest.raises(StorageError, match=f"is open to {who} .*chmod 700 {book}"):
        HolderService(file, Journal(None))
    assert list(book.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user")
def test_a_clusters_volume_is_served(file):
    """`fsGroup` in client/kubernetes/node.yaml: root's folder, our group, setgid, 0755 widened."""
    book = file.holder.ledger.parent
    os.chown(book, 10001, os.getegid())
    book.chmod(0o2775)
    HolderService(file, Journal(None)).close()
    assert file.holder.ledger.stat().st_mode & 0o777 == 0o600


def test_a_service_begins_no_second_ledger(policy_file, file, tiny_data):
    """The records were used with `fedtranscribe transcribe` before they had a holder."""
    first = tiny_data.parent / "npz%3Atiny.ledger.sqlite"
    Ledger.open(first, "npz:tiny").close()
    with pytest.raises(SecondLedgerError, match=f"already, {first}"):
        HolderService(file, Journal(None))
    assert {finding.name for finding in examine(policy_file) if not finding.ok} == {"ledger"}
    for end in ("", ".head"):
        first.with_name(first.name + end).rename(
            file.holder.ledger.with_name(file.holder.ledger.name + end)
        )
    HolderService(file, Journal(None)).close()
    marker = tiny_data.parent / "npz%3Atiny.ledger.place"
    assert marker.read_text() == f"{file.holder.ledger}\n"


def trained_in(folder: Path, monkeypatch: pytest.MonkeyPatch, data: str) -> str:
    """What the manifest of teachers calls data that were named relative to a folder."""
    monkeypatch.chdir(folder)
    described = TranscribeSettings(teacher="cnn-small", data=data)
    return make_manifest(described, load(data).train, 2, "full").data


@pytest.mark.parametrize("cwd", ["data", "/"])
def test_a_first_ledger_is_seen_from_anywhere(policy_file, file, tiny_data, monkeypatch, cwd):
    """The teachers were trained with a relative --data, and the service runs somewhere else."""
    named = trained_in(tiny_data.parent, monkeypatch, tiny_data.name)
    assert named == str(tiny_data)
    rename_data(file, named)
    first = tiny_data.parent / "npz%3Atiny.ledger.sqlite"
    Ledger.open(first, "npz:tiny").close()
    monkeypatch.chdir(tiny_data.parent if cwd == "data" else cwd)
    with pytest.raises(SecondLedgerError, match=f"already, {first}"):
        HolderService(file, Journal(None))


def rename_data(file: HolderFile, named: str) -> None:
    assert file.holder.teachers is not None
    manifest = file.holder.teachers / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"data": named}))


@pytest.mark.parametrize("cwd", ["data", "/"])
def test_data_that_were_named_nowhere_have_to_be_named(
    policy_file, file, tiny_data, monkeypatch, cwd
):
    """Teachers of an earlier version keep the path as it was typed."""
    rename_data(file, tiny_data.name)
    Ledger.open(tiny_data.parent / "npz%3Atiny.ledger.sqlite", "npz:tiny").close()
    monkeypatch.chdir(tiny_data.parent if cwd == "data" else cwd)
    with pytest.raises(ConfigError, match=r"Expected \[holder\] records: .*'tiny.npz'"):
        HolderService(file, Journal(None))
    assert not file.holder.ledger.exists()
    wrong = {finding.name: finding.words for finding in examine(policy_file) if not finding.ok}
    assert "[holder] records" in wrong["ledger"]
    with policy_file.open("a") as policy:
        policy.write(f'records = "{tiny_data}"\n')
    with pytest.raises(SecondLedgerError):
        HolderService(HolderFile.read(policy_file), Journal(None))


def test_data_that_are_not_on_this_machine_are_told(
    policy_file, file, tiny_data, caplog, tmp_path, monkeypatch
):
    """Teachers that were copied, or a container without the records."""
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    tiny_data.rename(tiny_data.with_name("elsewhere.npz"))
    HolderService(file, Journal(None)).close()
    assert "Cannot look for another ledger next to the data" in caplog.text
    (found,) = (finding for finding in examine(policy_file) if finding.name == "ledger")
    assert found.ok
    assert f"this user cannot see {tiny_data}" in found.words
    assert "put their first ledger in this one's place" in found.words


def test_data_that_the_service_may_not_see_are_told(policy_file, file, monkeypatch):
    def hidden(data: str) -> Path:
        raise PermissionError(data)

    monkeypatch.setattr("fedtranscribe.holder.holding.folder_of", hidden)
    (found,) = (finding for finding in examine(policy_file) if finding.name == "ledger")
    assert found.ok
    assert "this user cannot see" in found.words


def test_what_is_answered_is_said_and_why_there_are_no_sums(policy_file, tiny_data):
    def answers() -> str:
        (found,) = (finding for finding in examine(policy_file) if finding.name == "answers")
        return found.words

    assert answers() == "vote"
    policy_file.write_text(policy_file.read_text().replace('["vote"]', '["vote", "moments"]'))
    missing = "vote; no sums: [holder] records names none that can be read here"
    assert answers() == missing
    with policy_file.open("a") as policy:
        policy.write(f'records = "{tiny_data}"\n')
    assert answers() == "vote, moments"


def test_nobody_there_is_said(tmp_path):
    with pytest.raises(StorageError, match="holder serve"):
        call(tmp_path / "none.sock", wire.ANSWER, b"", 1, wait=0)


# The interpreter itself may lie where another user cannot start it: it changes its user on the way.
HOSTILE = """
import os, sys
from pathlib import Path
from fedtranscribe.holder.link import call, is_serving
from fedtranscribe.questions import messages as wire
home, nobody = Path(sys.argv[1]), int(sys.argv[2])
frame = sys.stdin.buffer.read()
os.setgroups([])
os.setgid(nobody)
os.setuid(nobody)
def attempt(do):
    try:
        do()
        return "done"
    except OSError as error:
        return type(error).__name__
print(attempt(lambda: list((home / "teachers").iterdir())))
print(attempt(lambda: (home / "book" / "ledger.sqlite").read_bytes()))
print(attempt(lambda: (home / "book" / "ledger.sqlite").unlink()))
print(attempt(lambda: (home / "book" / "new").write_text("x")))
reply = call(home / "run" / "h.sock", wire.ANSWER, frame, 60)
print("POLICY_REFUSED" if b"POLICY_REFUSED" in reply else "answered")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs two users")
def test_the_supernodes_user_can_ask_and_nothing_else(serving, policy_file):
    """A hostile app bundle runs as the SuperNode's user; the socket's group is all it has."""
    nobody, home = 65534, policy_file.parent
    os.chown(serving.holder.socket, 0, nobody)
    for folder in [home, *home.parents]:
        if str(folder).startswith("/tmp/"):
            folder.chmod(folder.stat().st_mode | 0o011)
    done = subprocess.run(
        [sys.executable, "-c", HOSTILE, str(home), str(nobody)],
        input=frame(query("q-9", 21)),
        capture_output=True,
    )
    assert done.stdout.decode().split() == ["PermissionError"] * 4 + ["POLICY_REFUSED"], (
        done.stderr.decode()
    )
    assert booked(serving) == 0


# ---------------------------------------------------------------- the file


def test_everything_wrong_with_a_holder_is_told(policy_file):
    assert all(finding.ok for finding in examine(policy_file))
    home = policy_file.parent
    (home / "teachers").chmod(0o755)
    next((home / "teachers").glob("shard-*")).write_bytes(b"x")
    wrong = {finding.name for finding in examine(policy_file) if not finding.ok}
    assert wrong == {"teachers", "teachers' folder"}
    policy_file.write_text("epsilon = -1\n")
    assert [finding.ok for finding in examine(policy_file)] == [False]


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (("epsilon = 200.0", "epsilon = 0"), "epsilon"),
        (('"vote"', '"everything"'), "kinds"),
        (("rows_per_run", "rows_per_rum"), "rows_per_rum"),
        (("run/h.sock", "r" * 120), "socket"),
        (('name = "a"', 'name = ""'), "name"),
    ],
)
def test_wrong_values_are_named(policy_file, edit, named):
    policy_file.write_text(policy_file.read_text().replace(*edit))
    with pytest.raises(ConfigError, match=named):
        HolderFile.read(policy_file)


def test_commands_of_an_administrator(serving, policy_file, capsys, tmp_path):
    from fedtranscribe.cli import run

    call(serving.holder.socket, wire.ANSWER, frame(query()), 60)
    assert run(["holder", "status", "--policy", str(policy_file), "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert status["serving"] is True
    assert status["runs"]["run-1"]["rows"] == 10
    assert status["budget"]["record limit"] == status["budget"]["record highest limit"] == 200.0
    assert 0 < status["budget"]["record left"] == 200.0 - status["budget"]["record booked"] < 200.0
    left = status["budget"]["record left"]
    assert left < status["budget"]["record largest run"] < 200.0, "μ² adds, not ε"
    assert list(status["limits"].values()) == ["200 (record, zero-out, δ = 1e-05)"]
    ledger = str(serving.holder.ledger)
    assert run(["holder", "ledger", "verify", ledger, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["proved"] is True
    assert run(["holder", "ledger", "show", ledger]) == 0
    assert run(["holder", "ledger", "export", ledger, "--out", str(tmp_path / "l.jsonl")]) == 0
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "l.jsonl").read_text().splitlines()]
    assert kinds == ["created", "budget", "reserve", "commit"]
    assert run(["holder", "policy", "check", str(policy_file)]) == 0
    assert run(["holder", "ledger", "verify", str(tmp_path / "none.sqlite")]) == 7
    capsys.readouterr()


def test_status_without_a_service_has_a_code_of_its_own(policy_file, capsys):
    from fedtranscribe.cli import run

    assert run(["holder", "status", "--policy", str(policy_file)]) == 8
    assert "False" in capsys.readouterr().out


def test_a_foreign_array_in_a_query_is_malformed(service):
    content = wire.Message.of({"holder": 0})
    content.arrays["images"] = b"1"
    with pytest.raises(Refusal):
        pack(content)


def test_a_stale_socket_does_not_stop_a_start(file):
    left = sockets.socket(sockets.AF_UNIX)
    left.bind(str(file.holder.socket))
    left.close()
    stop, ready = threading.Event(), threading.Event()
    thread = threading.Thread(target=serve, args=(file, stop, ready.set))
    thread.start()
    assert ready.wait(60)
    assert is_serving(file.holder.socket)
    stop.set()
    thread.join(60)


def test_a_policy_names_public_networks_by_their_files(policy_file, public_weights, tiny_data):
    text = policy_file.read_text().replace('kinds = ["vote"]', 'kinds = ["moments"]')
    text += f'records = "{tiny_data}"\nfeatures = {{ {NETWORK} = "net.pth" }}\n'
    policy_file.write_text(text)
    wrong = {finding.name: finding.words for finding in examine(policy_file) if not finding.ok}
    assert list(wrong) == ["features"]
    assert "net.pth" in wrong["features"]
    shutil.copy(public_weights, policy_file.with_name("net.pth"))
    (found,) = (finding for finding in examine(policy_file) if finding.name == "features")
    digest = file_digest(public_weights)
    assert found.words == f"sums may be taken on {NETWORK}@{digest}"
    file = HolderFile.read(policy_file)
    journal = Journal(file.holder.log)
    service = HolderService(file, journal)
    try:
        asked = pack(queries.ask_capabilities(0))
        facts = queries.read_capabilities(unpack(service.handle(wire.CAPABILITIES, asked)))
        assert facts.features == (f"{NETWORK}@{digest}",)
    finally:
        service.close()
        journal.close()
