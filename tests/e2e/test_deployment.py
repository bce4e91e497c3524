"""FedDPSD over TLS with registered nodes, holder services and every fault that issue D names."""

import contextlib
import json
import shutil
import sqlite3
import subprocess
import time
from pathlib import Path

import pytest

from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.units import Adjacency, Unit
from tests.e2e.deployment import BIN, Deployment

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]

ROWS, ROUND = 120, 40


@pytest.fixture(scope="module")
def teachers(tmp_path_factory) -> Path:
    """Four small teachers on the packaged digits; both holders have them, which costs no more."""
    folder = tmp_path_factory.mktemp("made")
    config = folder / "teachers.toml"
    config.write_text("[teachers]\nsteps = 5\n")
    subprocess.run(
        [
            *(str(BIN / "fedtranscribe"), "teacher", "train", "--data", "digits", "--shards", "4"),
            *("--arch", "cnn-small", "--config", str(config), "--out", str(folder / "teachers")),
        ],
        check=True,
        capture_output=True,
    )
    return folder / "teachers"


@pytest.fixture(scope="module")
def place(tmp_path_factory, teachers):
    """Two holders that have joined."""
    with Deployment(tmp_path_factory.mktemp("d") / "home") as place:
        place.make_certificates()
        place.start_superlink()
        place.await_superlink()
        place.holders = [place.make_holder(name, teachers) for name in ("clinic", "hospital")]
        for holder in place.holders:
            place.register(holder)
            place.start_service(holder)
            place.start_node(holder)
        yield place


def rows_booked(holder: Path) -> dict[str, int]:
    with Ledger.open_read_only(holder / "book" / "ledger.sqlite") as ledger:
        ledger.verify()
        return {run.run: run.rows for run in ledger.runs()}


def answers_kept(holder: Path) -> int:
    with Ledger.open_read_only(holder / "book" / "ledger.sqlite") as ledger:
        return sum(entry.kind == "commit" for entry in ledger.entries())


def result_of(out: Path) -> dict:
    return json.loads((out / "metrics.json").read_text())


def wait_for_rounds(place: Deployment, out: Path, rounds: int) -> None:
    def there() -> bool:
        path = out / "progress.jsonl"
        return path.exists() and path.read_text().count("rows answered") >= rounds

    place.wait(there, 300, f"{rounds} rounds", "superlink")


def complete(place: Deployment, out: Path, run: str) -> dict:
    """The run ended well and both holders booked each row once."""
    ended = place.await_run(run)
    mistake = out / "error.json"
    said = mistake.read_text() if mistake.exists() else ""
    assert ended == "finished:completed", said + place.log("superlink")[-3000:].decode()
    result = result_of(out)
    assert result["rows"] == ROWS
    for holder in place.holders:
        assert rows_booked(holder)[result["run"]] == ROWS
    return result


def test_a_run_to_its_end_with_ledgers_and_card(place, tmp_path):
    out = tmp_path / "run"
    result = complete(place, out, place.run(out))
    assert result["private"] is True
    for holder in place.holders:
        with Ledger.open_read_only(holder / "book" / "ledger.sqlite") as ledger:
            spent = ledger.total(1e-5, Unit.RECORD, Adjacency.ZERO_OUT).epsilon
        # The holders' filter composes what was booked; the server prints what it planned.
        assert spent == pytest.approx(result["epsilon"], rel=0.02)
    place.fedtranscribe("release", out)
    assert (out / "release" / "card.md").read_text().count("central") > 0
    place.fedtranscribe("release", "verify", out / "release")


def test_a_supernode_killed_mid_round_comes_back(place, tmp_path):
    out = tmp_path / "run"
    run = place.run(out, timeout=60.0, retries=6)
    wait_for_rounds(place, out, 1)
    place.kill("node-clinic")
    place.rejoin(place.holders[0])
    complete(place, out, run)


def unanswered(holder: Path) -> int:
    """Reservations without an answer, seen past the ledger's own classes because it is quick."""
    path = f"file:{holder / 'book' / 'ledger.sqlite'}?mode=ro"
    with contextlib.closing(sqlite3.connect(path, uri=True, timeout=0.1)) as book:
        kinds = dict(book.execute("SELECT kind, COUNT(*) FROM entries GROUP BY kind"))
    return kinds.get("reserve", 0) - kinds.get("commit", 0)


def test_a_service_killed_between_reserve_and_answer_spends_nothing_twice(place, tmp_path):
    holder, out = place.holders[0], tmp_path / "run"
    before = unanswered(holder)
    run = place.run(out, timeout=90.0, retries=6)
    until = time.monotonic() + 300
    while unanswered(holder) == before:
        assert time.monotonic() < until, "no query came"
        time.sleep(0.001)
    place.kill("service-clinic")
    assert unanswered(holder) == before + 1, "the answer was quicker than the kill"
    place.start_service(holder)
    complete(place, out, run)
    assert unanswered(holder) == before


def test_a_superlink_restarted_loses_the_run_but_nothing_of_it(place, tmp_path):
    """The ServerApp dies with its SuperLink; the run goes on from its folder, under a new id."""
    out = tmp_path / "run"
    place.run(out)
    wait_for_rounds(place, out, 1)
    place.stop("superlink")
    place.start_superlink()
    place.await_superlink()
    complete(place, out, place.run(out, resume=True, retries=6, timeout=90.0))


def test_a_policy_tighter_than_the_plan_is_refused_unspent(place, tmp_path):
    holder = place.holders[0]
    before = rows_booked(holder)
    place.stop("service-clinic")
    place.write_policy(holder, noise="local")
    place.start_service(holder)
    out = tmp_path / "run"
    assert place.await_run(place.run(out, quorum=2)) == "finished:failed"
    assert "Only 1 of 2 holders can take part" in (out / "error.json").read_text()
    assert rows_booked(holder) == before
    place.stop("service-clinic")
    place.write_policy(holder, epsilon=1e-3)
    place.start_service(holder)
    out = tmp_path / "spent"
    assert place.await_run(place.run(out, quorum=2, **{"on-exhausted": "stop"})).startswith("fin")
    assert rows_booked(holder) == before
    status = json.loads(
        place.fedtranscribe("holder", "status", "--policy", holder / "policy.toml", "--json")
    )
    assert status["refusals"]["BUDGET_EXHAUSTED"] > 0
    place.stop("service-clinic")
    place.write_policy(holder)
    place.start_service(holder)


# ---------------------------------------------------------------- who may not join


def refused(place: Deployment, name: str, seconds: float = 60) -> str:
    """What a SuperNode said that had to give up."""
    process = place.parts[name]
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        code = None
    place.parts.pop(name)
    said = place.log(name).decode(errors="replace")
    assert code not in (0,), said
    return said


def test_an_unregistered_key_is_turned_away(place, teachers):
    stranger = place.make_holder("stranger", teachers)
    place.start_node(stranger)
    said = refused(place, "node-stranger")
    assert "ERROR" in said or "rror" in said


def test_a_wrong_ca_is_turned_away_and_named(place, teachers):
    other = place.make_certificates("other-tls")
    node = place.make_holder("misled", teachers)
    place.register(node)
    place.start_node(node, tls=other)
    said = refused(place, "node-misled")
    assert "ertificate" in said or "SSL" in said or "rror" in said
    checked = subprocess.run(
        [str(BIN / "fedtranscribe"), "deploy", "certs", "--help"], capture_output=True, check=False
    )
    assert checked.returncode == 0


def test_an_expired_certificate_is_turned_away_and_said(place, teachers):
    """The SuperLink starts with a certificate that ended yesterday, then with the good one."""
    tls, good = place.home / "tls", (place.home / "tls" / "server.crt").read_bytes()
    late = place.make_holder("late", teachers)
    place.register(late)
    place.stop("superlink")
    place.expire(tls)
    shown = json.loads(place.fedtranscribe("deploy", "certs", "show", tls / "server.crt", "--json"))
    assert shown["days left"] < 0
    place.start_superlink()
    time.sleep(10)
    place.start_node(late)
    assert "rror" in refused(place, "node-late")
    place.stop("superlink")
    (tls / "server.crt").write_bytes(good)
    place.start_superlink()
    place.await_superlink()


# ---------------------------------------------------------------- ledgers that have changed


@pytest.fixture
def spent(place):
    """A holder's ledger that holds something and is not served; put back afterwards."""
    holder = place.holders[1]
    place.stop("service-hospital")
    whole = place.home / "whole"
    shutil.rmtree(whole, ignore_errors=True)
    shutil.copytree(holder / "book", whole)
    yield holder
    shutil.rmtree(holder / "book")
    shutil.copytree(whole, holder / "book")
    place.start_service(holder)


def fails_to_serve(place: Deployment, holder: Path) -> str:
    return place.fedtranscribe("holder", "serve", "--policy", holder / "policy.toml", code=6)


@contextlib.contextmanager
def opened_up(holder: Path):
    """The ledger as somebody with a database tool has it: its guards are off."""
    with contextlib.closing(sqlite3.connect(holder / "book" / "ledger.sqlite")) as book, book:
        guards = book.execute("SELECT name, sql FROM sqlite_master WHERE type='trigger'").fetchall()
        for name, _ in guards:
            book.execute(f"DROP TRIGGER {name}")
        yield book
        for _, sql in guards:
            book.execute(sql)


def test_a_truncated_ledger_is_not_served(place, spent):
    ledger = spent / "book" / "ledger.sqlite"
    for stray in spent.glob("book/ledger.sqlite-*"):
        stray.unlink()
    ledger.write_bytes(ledger.read_bytes()[:6000])
    assert "error: " in fails_to_serve(place, spent)


def test_a_ledger_edited_by_hand_is_not_served(place, spent):
    with opened_up(spent) as book:
        book.execute(
            "UPDATE entries SET content = replace(content, 'rows', 'rowz') WHERE sequence = 3"
        )
    assert "3" in fails_to_serve(place, spent)


def test_an_older_copy_of_a_ledger_is_not_served(place, spent):
    """Without its last entries the ledger would answer, and charge, a second time."""
    with opened_up(spent) as book:
        last = book.execute("SELECT MAX(sequence) FROM entries").fetchone()[0]
        query = book.execute("SELECT query_id FROM entries WHERE sequence = ?", (last,))
        book.execute("DELETE FROM answers WHERE query_id = ?", query.fetchone())
        book.execute("DELETE FROM entries WHERE sequence >= ?", (last - 1,))
    assert "older copy" in fails_to_serve(place, spent)
