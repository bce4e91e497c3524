"""What an operator sees of a holder service: right, and nothing private."""

import json
import os
import re
import shutil
import stat
import subprocess
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import fedtranscribe
from fedtranscribe.errors import ConfigError, CorruptLedgerError, StorageError
from fedtranscribe.holder import metrics as metrics_file
from fedtranscribe.holder.holder_file import HolderFile
from fedtranscribe.holder.link import call
from fedtranscribe.holder.metrics import Metrics, MetricsFile
from fedtranscribe.holder.readiness import budget_left, examine, expect_closed, quotas
from fedtranscribe.holder.service import serve
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.units import Unit
from fedtranscribe.questions import messages as wire
from fedtranscribe.questions.refusals import RefusalCode
from tests.federation.test_service import frame, policy_file, query, service, serving

__all__ = ["policy_file", "service", "serving"]  # fixtures

ROOT = Path(__file__).parents[2]
PREFIX = "fedtranscribe_holder_"
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def file(policy_file: Path, monkeypatch: pytest.MonkeyPatch) -> HolderFile:
    """The holder of two tiny teachers, whose metrics are written all the time."""
    monkeypatch.setattr(metrics_file, "_WRITE_SECONDS", 0.05)
    with policy_file.open("a") as policy:
        policy.write('metrics = "metrics/holder.prom"\n')
    (policy_file.parent / "metrics").mkdir(mode=0o700)
    return HolderFile.read(policy_file)


def samples(text: str) -> Samples:
    return {
        (sample.name.removeprefix(PREFIX), frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def read(values: Samples, name: str, **labels: str) -> float:
    return values[name, frozenset(labels.items())]


def scrape(file: HolderFile) -> Samples:
    """What a collector reads, written after this call."""
    assert file.holder.metrics is not None
    asked, until = time.time(), time.monotonic() + 60
    while time.monotonic() < until:
        values = samples(file.holder.metrics.read_text())
        if read(values, "written_timestamp_seconds") > asked:
            # What was being written when we asked may be older than the last message.
            return samples(_next(file.holder.metrics))
        time.sleep(0.01)
    raise AssertionError("the metrics are not written any more")


def _next(path: Path) -> str:
    before, until = path.read_text(), time.monotonic() + 60
    while (now := path.read_text()) == before and time.monotonic() < until:
        time.sleep(0.01)
    return now


def test_values_are_those_of_the_ledger(serving):
    socket = serving.holder.socket
    call(socket, wire.ANSWER, frame(query()), 60)
    call(socket, wire.ANSWER, frame(query("q-2")), 60)
    call(socket, wire.ANSWER, frame(query("q-3", 21)), 60)
    values = scrape(serving)
    assert read(values, "answered_total", message="answer") == 2
    refused = {code: read(values, "refused_total", message="answer", code=code) for code in CODES}
    assert refused == dict.fromkeys(CODES, 0) | {"POLICY_REFUSED": 1}
    assert read(values, "message_seconds_count", message="answer") == 3
    assert read(values, "messages_in_flight") == 0
    assert read(values, "ledger_ok") == 1
    build = {"version": fedtranscribe.__version__, "protocol": str(wire.VERSION)}
    assert read(values, "build_info", **build) == 1
    with Ledger.open_read_only(serving.holder.ledger) as ledger:
        figures, kept = budget_left(ledger), quotas(serving, ledger)
        assert read(values, "ledger_sequence") == ledger.head.sequence == 6
    assert read(values, "epsilon_limit", unit="record") == 200.0
    assert read(values, "epsilon_highest_limit", unit="record") == 200.0
    assert read(values, "delta", unit="record") == 1e-5
    for unit in Unit:
        assert read(values, "epsilon_booked", unit=unit.value) == figures[f"{unit} booked"]
    left = read(values, "epsilon_left", unit="record")
    assert left == figures["record left"]
    assert 0 < left < 200.0
    assert read(values, "quota_used", quota="runs") == 1
    assert read(values, "quota_used", quota="queries_of_a_run") == 2
    assert read(values, "quota_limit", quota="queries_of_a_run") == serving.queries_per_run
    stored = read(values, "quota_used", quota="stored_bytes")
    assert kept["stored bytes"]["used"] <= stored
    assert stored % 1_000_000 == 0, "what a training keeps may depend on the records"


def test_a_unit_that_no_longer_has_a_cost_is_not_exported(service, monkeypatch):
    """The booked 0 of an empty ledger must not stay when sums come, which hide no holder."""
    service.measure().result()
    name = f'{PREFIX}epsilon_booked{{unit="holder"}}'
    assert f"{name} 0.0" in service.metrics.render().decode()
    monkeypatch.setattr(
        "fedtranscribe.holder.metrics.budget_left",
        lambda ledger: {**budget_left(ledger), "holder booked": None},
    )
    service.handle(wire.ANSWER, frame(query()))
    service.measure().result()
    text = service.metrics.render().decode()
    assert name not in text
    assert f'{PREFIX}epsilon_booked{{unit="record"}}' in text


CODES = [code.value for code in RefusalCode]


def test_the_file_is_for_a_group_and_goes_with_the_service(serving):
    path = serving.holder.metrics
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert [each.name for each in path.parent.iterdir() if each.suffix == ".prom"] == [path.name]


def test_no_file_is_left_when_the_service_has_stopped(file):
    class Stopped:
        def wait(self) -> None:
            assert file.holder.metrics.exists()

    serve(file, Stopped())  # pyright: ignore[reportArgumentType]
    assert list(file.holder.metrics.parent.iterdir()) == []


def test_labels_come_from_fixed_lists(service):
    """Nothing of a message becomes a label: neither names nor ids nor numbers of records."""
    service.handle(wire.ANSWER, frame(query("patient-smith"), run="study-of-smith"))
    service.handle("query.smith", b"smith")
    service.measure().result()
    text = service.metrics.render().decode()
    assert "smith" not in text
    messages = {m.removeprefix("query.") for m in wire.MESSAGES} | {"unknown"}
    allowed = {
        "unit": {unit.value for unit in Unit},
        "message": messages,
        "code": set(CODES),
        "quota": {"runs", "queries_of_a_run", "stored_bytes"},
        "version": {fedtranscribe.__version__},
        "protocol": {str(wire.VERSION)},
    }
    for (name, labels), _ in samples(text).items():
        for label, value in labels:
            if label != "le":
                assert value in allowed[label], f"{name}: {label}={value}"
    assert read(samples(text), "refused_total", message="unknown", code="MALFORMED_QUERY") == 1


def test_times_are_as_coarse_as_their_buckets(service):
    """The sum of a histogram would tell exact times, and they depend on the number of records."""
    for seconds in (0.04, 0.2, 2.345, 5_000.0):
        service.metrics.answered(wire.ANSWER, seconds)
    values = samples(service.metrics.render().decode())
    assert read(values, "message_seconds_sum", message="answer") == 0.1 + 0.3 + 3.0 + 10_000.0
    assert read(values, "message_seconds_bucket", message="answer", le="3.0") == 3
    assert read(values, "message_seconds_bucket", message="answer", le="+Inf") == 4


def test_a_message_counts_as_in_flight_until_its_reply(service):
    def pieces():
        yield frame(query())[:10]
        seen.append(read(samples(service.metrics.render().decode()), "messages_in_flight"))

    seen: list[float] = []
    service.take(wire.ANSWER, pieces())
    assert seen == [1.0]
    assert read(samples(service.metrics.render().decode()), "messages_in_flight") == 0.0


def test_a_ledger_that_cannot_be_read_is_seen(service, caplog, monkeypatch):
    service.measure().result()

    def broken(*_: object) -> None:
        raise CorruptLedgerError("The ledger is damaged.")

    monkeypatch.setattr(service._ledger, "prove", broken)
    monkeypatch.setattr(type(service._ledger), "__call__", broken)
    service.measure().result()
    values = samples(service.metrics.render().decode())
    assert read(values, "ledger_ok") == 0
    assert read(values, "ledger_sequence") == 2, "as it was last seen"
    assert "The ledger is damaged" in caplog.text


def test_a_busy_service_is_still_seen(tmp_path, monkeypatch):
    """The worker answers something long: heartbeat and counters go on."""
    from concurrent.futures import Future

    monkeypatch.setattr(metrics_file, "_PATIENCE_SECONDS", 0.0)
    measures: list[Future[None]] = []

    def measure() -> Future[None]:
        measures.append(Future())
        return measures[-1]

    metrics = Metrics()
    kept = MetricsFile(tmp_path / "holder.prom", metrics.render, measure)
    kept.write()
    metrics.answered(wire.ANSWER, 1.0)
    kept.write()
    values = samples((tmp_path / "holder.prom").read_text())
    assert read(values, "answered_total", message="answer") == 1
    assert len(measures) == 1, "one at a time waits for the worker"


# ---------------------------------------------------------------- who may read it


def test_only_a_prom_file_is_read_by_the_collector(policy_file):
    with policy_file.open("a") as policy:
        policy.write('metrics = "metrics/holder.txt"\n')
    with pytest.raises(ConfigError, match=r"holder.txt.*to end in .prom"):
        HolderFile.read(policy_file)


def shared(file: HolderFile, mode: int, group: int | None = None) -> Path:
    assert file.holder.metrics is not None
    folder = file.holder.metrics.parent
    if group is not None:
        os.chown(folder, -1, group)
    folder.chmod(mode)
    return folder


def test_a_folder_that_everybody_can_open_is_refused(policy_file, file):
    folder = shared(file, 0o2755)
    with pytest.raises(StorageError, match=f"{folder} is open to all users .mode 2755."):
        serve(file, None)  # pyright: ignore[reportArgumentType]
    (found,) = (f for f in examine(policy_file) if f.name == "metrics' folder")
    assert not found.ok
    assert "install -d -o USER -g COLLECTOR -m 2750" in found.words
    folder.rmdir()
    with pytest.raises(StorageError, match=f"{folder} is absent"):
        expect_closed(file.holder.metrics, file.holder.socket)


def test_the_sockets_group_is_no_collector(file):
    """The SuperNode's user is in it, and runs what the server sends."""
    shared(file, 0o2750, file.holder.socket.parent.stat().st_gid)
    with pytest.raises(StorageError, match="the group of the socket's folder"):
        expect_closed(file.holder.metrics, file.holder.socket)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another group")
def test_the_collectors_group_is_handed_on_to_the_file(policy_file, file):
    collector = 65533
    shared(file, 0o750, collector)
    with pytest.raises(StorageError, match="does not hand its group on"):
        expect_closed(file.holder.metrics, file.holder.socket)
    shared(file, 0o2750, collector)
    expect_closed(file.holder.metrics, file.holder.socket)
    (found,) = (f for f in examine(policy_file) if f.name == "metrics' folder")
    assert (found.ok, found.words) == (True, "mode 2750")
    metrics_file.write_atomically(file.holder.metrics, b"x", mode=0o640)
    written = file.holder.metrics.stat()
    assert (written.st_gid, stat.S_IMODE(written.st_mode)) == (collector, 0o640)


# ---------------------------------------------------------------- what is made of them


def exported() -> set[str]:
    """Every name that a query may use."""
    names = set()
    for family in Metrics().registry.collect():
        ends = {"counter": ["_total"], "info": ["_info"]}.get(family.type, [""])
        if family.type == "histogram":
            ends = ["_bucket", "_sum", "_count"]
        names |= {f"{family.name}{end}" for end in ends}
    return names


MONITORING = ROOT / "client" / "monitoring"
DEPLOYMENT = ROOT / "docs" / "deployment.md"


@pytest.mark.parametrize(
    "path",
    [MONITORING / "dashboard.json", MONITORING / "alerts.yaml", DEPLOYMENT],
    ids=lambda path: path.name,
)
def test_whatever_is_asked_for_is_exported(path: Path):
    asked = set(re.findall(rf"{PREFIX}\w+", path.read_text()))
    assert asked
    assert asked - exported() <= {f"{PREFIX}message_seconds"}


def test_the_docs_name_every_metric():
    text = DEPLOYMENT.read_text()
    for family in Metrics().registry.collect():
        assert family.name in text, family.name


def test_the_dashboard_is_one():
    board = json.loads((MONITORING / "dashboard.json").read_text())
    assert board["uid"]
    (source,) = (v for v in board["templating"]["list"] if v["type"] == "datasource")
    ids, taken = [], set()
    for panel in board["panels"]:
        ids.append(panel["id"])
        assert panel["title"]
        assert panel["datasource"]["uid"] == f"${{{source['name']}}}"
        assert all(target["expr"] for target in panel["targets"])
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, f"{panel['title']} lies over another panel"
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert len(set(ids)) == len(ids)


def test_every_alert_is_explained():
    yaml = pytest.importorskip("yaml")
    (group,) = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"]
    text = DEPLOYMENT.read_text()
    for rule in group["rules"]:
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert rule["annotations"]["summary"]
        assert f"`{rule['alert']}`" in text, f"{rule['alert']} is not explained"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="comes with Prometheus, no package")
def test_alerts_fire_when_they_should_and_only_then():
    rules = Path(__file__).with_name("alert_rules.yaml")
    done = subprocess.run(
        ["promtool", "test", "rules", str(rules)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
