"""What a hostile server may ask: refused by a code before anything is allocated or stored."""

import contextlib
import json
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context

from fedtranscribe.config import SynthesizeSettings, build
from fedtranscribe.errors import ConfigError, ProtocolError, StorageError
from fedtranscribe.flower.client_app import make_client_app
from fedtranscribe.flower.over_flower import OverFlower
from fedtranscribe.flower.records import ARRAYS, message_of, record_of
from fedtranscribe.holder import trainings
from fedtranscribe.holder.holder_file import HolderFile
from fedtranscribe.holder.link import METHODS, NAME, call, health_socket, is_serving
from fedtranscribe.holder.node import reply_to
from fedtranscribe.holder.policy import HolderPolicy
from fedtranscribe.holder.service import HolderService, Journal
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.release_plan import NoisePlan
from fedtranscribe.privacy.units import NoiseMode
from fedtranscribe.questions import masked_messages as masked_wire
from fedtranscribe.questions import messages as wire
from fedtranscribe.questions import query_messages as queries
from fedtranscribe.questions import training_messages as training_wire
from fedtranscribe.questions.capabilities import Capabilities
from fedtranscribe.questions.messages import pack, unpack
from fedtranscribe.questions.refusals import RefusalCode
from fedtranscribe.text import LONGEST_NAME, expect_name
from fedtranscribe.trainers import plan
from fedtranscribe.trainers.plan import DataFacts, plan_training
from fedtranscribe.trainers.profiles import recipe_named
from tests.federation.local_grid import LocalGrid
from tests.federation.test_service import booked, file, frame, policy_file, query, service, serving
from tests.federation.test_service import told as answered

__all__ = ["file", "policy_file", "service", "serving"]  # fixtures

GOOD = {
    "holder": 0,
    "run": "run-1",
    "query-id": "q-1",
    "kind": "vote",
    "mode": "local",
    "strength": 1.0,
    "holders": 1,
    "dropouts": 0,
    "colluders": 0,
}
BAD_NAMES = ["", "x" * (LONGEST_NAME + 1), "two\nlines", "\x1b[31mred", "turned \u202e round"]


def refusal(service: HolderService, content: wire.Message, kind: str = wire.ANSWER) -> str | None:
    return answered(service, pack(content), kind).get("refusal")


def asked(
    images: np.ndarray, more: dict[str, np.ndarray] | None = None, **terms: Any
) -> wire.Message:
    rows = len(images) if images.ndim else 1
    arrays = {"images": images, "index_sets": sets(rows), **(more or {})}
    return wire.Message.of(GOOD | terms, arrays)


def sets(rows: int, k: int = 3) -> np.ndarray:
    """An index set per row: the first k classes."""
    return np.tile(np.arange(k, dtype=np.uint16), (rows, 1))


def pixels(rows: int = 10, *shape: int) -> np.ndarray:
    return np.zeros((rows, *(shape or (1, 28, 28))), np.uint8)


# ---------------------------------------------------------------- shapes, k and rows


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (asked(pixels(4_000, 1, 0, 0), {"index_sets": sets(0, 65_535)}), "MALFORMED_QUERY"),
        (asked(pixels(4_000, 1, 0, 0), {"index_sets": sets(4_000, 0)}), "MALFORMED_QUERY"),
        (asked(pixels(4_000, 1, 0, 0)), "MALFORMED_QUERY"),
        (asked(pixels(10), {"index_sets": sets(10, 4)}), "MALFORMED_QUERY"),
        (asked(pixels(10), {"index_sets": sets(10, 65_535)}), "MALFORMED_QUERY"),
        (asked(pixels(10), {"index_sets": sets(10).astype(np.int64)}), "MALFORMED_QUERY"),
        (asked(pixels(10, 3, 28, 28)), "MALFORMED_QUERY"),
        (asked(pixels(10).astype(np.int8)), "MALFORMED_QUERY"),
        (asked(np.zeros((), np.uint8)), "MALFORMED_QUERY"),
        (asked(pixels(10).astype(np.uint16)), "MALFORMED_QUERY"),
        (asked(pixels(10), {"index_sets": sets(9)}), "MALFORMED_QUERY"),
        (asked(pixels(10), {"student_logits": np.zeros((10, 9), np.float16)}), "MALFORMED_QUERY"),
        (asked(pixels(10), {"student_logits": np.zeros((10, 3))}), "MALFORMED_QUERY"),
        (asked(pixels(21)), "POLICY_REFUSED"),
    ],
)
def test_shapes_are_refused_by_their_headers_alone(service, file, monkeypatch, content, code):
    """300 bytes (4000x1x0x0 images, k = 65535) once took 5.9 GiB: nothing is made of them now."""

    def made(*_: object) -> Any:
        raise AssertionError("something was allocated")

    message = pack(content)
    monkeypatch.setattr(queries, "array_of", made)
    monkeypatch.setattr(queries, "query_from", made)
    assert answered(service, message).get("refusal") == code
    assert booked(file) == 0


def test_a_header_that_claims_more_than_there_is_allocates_nothing(service, monkeypatch):
    """In a simulation arrays come as .npy files, whose header may say anything."""
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (20, 1, 28, 28), }"
    header += b" " * (118 - len(header) - 1) + b"\n"
    lie = Array("uint8", (20, 1, 28, 28), "numpy.ndarray", b"\x93NUMPY\x01\x00v\x00" + header)
    content = record_of(asked(pixels(10)))
    content[ARRAYS] = ArrayRecord({**content.array_records[ARRAYS], "images": lie})
    monkeypatch.setattr(queries, "array_of", lambda *_: pytest.fail("read"))
    reply = reply_to(message_of(content), wire.ANSWER, lambda _: service._node, "flower")
    assert reply.terms["refusal"] == "MALFORMED_QUERY"


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.float16, np.float32])
def test_arrays_are_read_as_they_were_written(order, kind):
    values = np.asarray(np.arange(24).reshape(2, 3, 4), dtype=kind, order=order)
    content = wire.Message.of({}, {"values": values})
    read = wire.array_of(content, "values", "uf")
    assert read.dtype == kind
    assert (read == values).all()
    assert read.flags.writeable
    with pytest.raises(KeyError):
        wire.array_of(content, "other", "u")
    with pytest.raises(ValueError, match="holds"):
        wire.array_of(content, "values", "c")


def test_headers_and_terms_of_a_frame_have_limits(service):
    many = {f"a{i}": np.zeros(0, np.uint8) for i in range(1_000)}
    assert refusal(service, wire.Message.of(GOOD, many)) == "MALFORMED_QUERY"
    assert refusal(service, wire.Message.of(GOOD | {"run": "x" * 1_000_001})) == "MALFORMED_QUERY"
    deep = b"[" * 200_000 + b"]" * 200_000
    head = json.dumps({".": {"dtype": "U8", "shape": [len(deep)], "data_offsets": [0, len(deep)]}})
    nested = struct.pack("<Q", len(head)) + head.encode() + deep
    assert answered(service, nested)["refusal"] == "MALFORMED_QUERY"


def test_as_many_lengths_as_names(service):
    """A million lengths beside no names became a million numbers before they were counted."""
    content = wire.Message.of(
        {"holder": 0, "run": "r", "query-id": "q", "sealed": []},
        {"sealed": np.zeros(0, np.uint8), "sealed-lengths": np.zeros(1_000_000, np.uint32)},
    )
    with pytest.raises(ValueError, match="do not fit their names"):
        masked_wire.bytes_of(content, "sealed")


# ---------------------------------------------------------------- names


@pytest.mark.parametrize("bad", BAD_NAMES)
def test_one_rule_for_names_on_the_wire_and_in_the_ledger(service, file, bad, tmp_path):
    keyed = {"holder": 0, "run": "run-1", "names": ["a"], "dropouts": 0, "colluders": 1}
    contents = [(wire.ANSWER, asked(pixels(), **{part: bad})) for part in ("run", "query-id")]
    contents += [
        (wire.SECAGG_KEY, wire.Message.of(keyed | {"run": bad})),
        (wire.SECAGG_KEY, wire.Message.of(keyed | {"names": [bad]})),
        (wire.SECAGG_SIGN, masked_wire.ask_sign(0, "run-1", "q", [bad], {})),
        (wire.SECAGG_SIGN, masked_wire.ask_sign(0, bad, "q", ["a"], {})),
        (wire.SECAGG_SIGN, masked_wire.ask_sign(0, "run-1", bad, ["a"], {})),
        (wire.SECAGG_MASK, masked_wire.ask_mask(0, "run-1", "q", {bad: b"1"})),
        (wire.SECAGG_REVEAL, masked_wire.ask_reveal(0, "run-1", "q", {bad: b"1"})),
        (wire.TRAIN, training_wire.ask_train(0, bad, {}, 1.0)),
        (wire.MODEL, training_wire.ask_model(0, bad)),
    ]
    for kind, content in contents:
        assert refusal(service, content, kind) == "MALFORMED_QUERY", kind
    with Ledger.open(tmp_path / "l.sqlite", "data") as ledger:
        release = service._node  # only names are looked at
        for names in ((bad, "h", "run"), ("q", bad, "run"), ("q", "h", bad)):
            with pytest.raises(ConfigError, match="1 to 200 printable characters"):
                ledger.reserve(names[0], names[1], release, names[2])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="1 to 200 printable characters"):
        Ledger.open(tmp_path / "other.sqlite", bad)
    assert booked(file) == 0


def test_the_error_about_a_name_is_short_and_printable():
    with pytest.raises(ConfigError) as error:
        expect_name("run", "\n" * 20_000_000)
    assert len(str(error.value)) < 200
    assert str(error.value).isprintable()


@pytest.mark.parametrize(("field", "place"), [("server", "x" * 201), ("name", "a\u202eb")])
def test_names_in_a_policy_file_follow_it_too(policy_file, field, place):
    text = policy_file.read_text().replace('name = "a"\n', "")
    names = {"name": "a", "server": "flower"} | {field: place}
    policy_file.write_text(text + "".join(f"{k} = {json.dumps(v)}\n" for k, v in names.items()))
    with pytest.raises(ConfigError, match=f"holder.{field}.*1 to 200 printable"):
        HolderFile.read(policy_file)


# ---------------------------------------------------------------- quotas


def limited(file: HolderFile, **limits: Any) -> HolderFile:
    return file.model_copy(update={"rows_per_run": 1_000, **limits})


@contextlib.contextmanager
def node_of(file: HolderFile) -> Iterator[HolderService]:
    journal = Journal(file.holder.log)
    service = HolderService(file, journal)
    yield service
    service.close()
    journal.close()


def codes(service: HolderService, *queries: tuple[str, str]) -> list[str | None]:
    plan = NoisePlan(NoiseMode.LOCAL, 1e6, 1)
    return [
        answered(service, frame(query(name, 2), plan, run)).get("refusal") for run, name in queries
    ]


@pytest.mark.parametrize(
    ("limits", "queries", "expected"),
    [
        ({"runs": 2}, "a1 b1 c1 a2 a1", [None, None, "QUOTA_EXCEEDED", None, None]),
        ({"queries_per_run": 2}, "a1 a2 a3 b1 a1", [None, None, "QUOTA_EXCEEDED", None, None]),
        ({"stored_bytes": 1}, "a1 a1", ["QUOTA_EXCEEDED"] * 2),
    ],
)
def test_quotas_on_runs_queries_and_bytes(file, limits, queries, expected):
    """Noise of 1e6 costs next to nothing: ε alone would let a server store without end."""
    asked_for = [(name[0], name) for name in queries.split()]
    with node_of(limited(file, **limits)) as service:
        assert codes(service, *asked_for) == expected
    assert booked(file) == len({q for q, said in zip(asked_for, expected, strict=True) if not said})


def test_stored_bytes_are_what_lies_on_disk(file):
    with node_of(limited(file)) as service:
        assert codes(service, ("a", "a1")) == [None]
        before = file.holder.ledger.stat().st_size
    with node_of(limited(file, stored_bytes=before)) as service:
        # What is booked goes on, what is new does not.
        assert codes(service, ("a", "a1"), ("a", "a2")) == [None, "QUOTA_EXCEEDED"]


def test_keys_of_masked_sums_count_as_runs(settings, open_nodes):
    masked = settings.model_copy(update={"noise": "secagg", "holders": 4})
    few = HolderPolicy(epsilon=10, noise=NoiseMode.SECAGG, dropouts=1, colluders=1, runs=2)
    node = open_nodes(masked, {0: few})[0]
    names = [f"holder-{i}" for i in range(4)]

    def ask(run: str) -> str | None:
        terms = {"holder": 0, "run": run, "names": names, "dropouts": 1, "colluders": 1}
        reply = reply_to(wire.Message.of(terms), wire.SECAGG_KEY, lambda _: node, "f")
        return reply.terms.get("refusal")

    assert [ask(run) for run in "abca"] == [None, None, "QUOTA_EXCEEDED", None]


def test_an_administrator_sees_quotas(file, policy_file, capsys):
    from fedtranscribe.cli import run

    with node_of(limited(file)) as service:
        assert codes(service, ("a", "a1"), ("a", "a2"), ("b", "b1")) == [None] * 3
    run(["holder", "status", "--policy", str(policy_file), "--json"])
    quotas = json.loads(capsys.readouterr().out)["quotas"]
    assert quotas["runs"] == {"used": 2, "limit": 10_000}
    assert quotas["queries of a run"] == {"used": 2, "limit": 10_000}
    assert quotas["stored bytes"]["used"] >= file.holder.ledger.stat().st_size
    run(["holder", "status", "--policy", str(policy_file)])
    assert "2 of 10000" in capsys.readouterr().out


# ---------------------------------------------------------------- length, deadline, health


def test_a_message_that_is_too_long_is_not_read_on(service, file):
    taken = []

    def endless() -> Iterator[bytes]:
        while True:
            taken.append(1)
            yield bytes(1_000_000)

    reply = unpack(service.take(wire.ANSWER, endless()))
    assert reply.terms["refusal"] == "POLICY_REFUSED"
    assert len(taken) == file.bytes_per_message // 1_000_000 + 1


def test_long_messages_are_refused_by_a_code_over_the_socket(serving):
    reply = unpack(call(serving.holder.socket, wire.ANSWER, bytes(200_000_000), 60))
    assert reply.terms["refusal"] == "POLICY_REFUSED"


def test_silent_streams_are_hung_up_on_and_health_is_apart(file, monkeypatch, request):
    monkeypatch.setattr("fedtranscribe.holder.service._ARRIVAL_SECONDS", 3.0)
    serving = request.getfixturevalue("serving")
    socket, over = serving.holder.socket, threading.Event()

    def silence() -> Iterator[bytes]:
        yield b"a beginning"
        over.wait(60)

    with contextlib.ExitStack() as stack:
        stack.callback(over.set)
        calls = []
        for _ in range(24):
            channel = stack.enter_context(grpc.insecure_channel(f"unix:{socket}"))
            ask = channel.stream_unary(f"/{NAME}/{METHODS[wire.ANSWER]}")
            calls.append(ask.future(silence(), timeout=60))
        began = time.monotonic()
        while sum(each.done() for each in calls) < 16:  # all but those that may arrive at once
            assert time.monotonic() - began < 20
            time.sleep(0.05)
        assert is_serving(socket)
        with pytest.raises(StorageError, match="busy"):
            call(socket, wire.ANSWER, frame(query()), 60, wait=0)
        # A caller who waits a moment is answered as if nobody else had called.
        assert b"refusal" not in call(socket, wire.ANSWER, frame(query()), 60, wait=60)
        assert {each.exception().code() for each in calls} <= {  # type: ignore[attr-defined]
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            grpc.StatusCode.CANCELLED,
        }


def test_only_the_holders_own_user_asks_for_health(serving):
    path = health_socket(serving.holder.socket)
    assert path.stat().st_mode & 0o077 == 0
    assert serving.holder.socket.stat().st_mode & 0o077 == 0o060


# ---------------------------------------------------------------- trainings


@pytest.fixture
def trainer(policy_file, tiny_data) -> Iterator[HolderService]:
    """A holder that would train, if anything were allowed."""
    text = policy_file.read_text().replace("epsilon = 200.0", "epsilon = 10.0")
    text = text.replace("[holder]", 'trainers = ["dp-promise", "dp-sad"]\n[holder]')
    policy_file.write_text(f'{text}records = "{tiny_data}"\n')
    with node_of(HolderFile.read(policy_file)) as service:
        yield service


def train(service: HolderService, asked_for: dict[str, Any], seconds: float = 1.0) -> str | None:
    content = training_wire.ask_train(0, "run-1", asked_for, seconds)
    return refusal(service, content, wire.TRAIN)


def change_policy(service: HolderService, **limits: Any) -> None:
    node = service._node
    node.policy = node.policy.model_copy(update=limits)


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"epsilon": 1e6}, "BUDGET_EXHAUSTED"),
        ({"epsilon": 10.1}, "BUDGET_EXHAUSTED"),
        ({"delta": 0.99}, "POLICY_REFUSED"),
        ({"delta": 1.01e-5}, "POLICY_REFUSED"),
        ({"epsilon": float("inf")}, "MALFORMED_QUERY"),
        ({"dp_promise": {"phase2_epochs": 1e12}}, "MALFORMED_QUERY"),
        ({"dp_promise": {"phase1_epochs": 1e12}}, "MALFORMED_QUERY"),
        ({"dp_promise": {"copies": 10**9}}, "MALFORMED_QUERY"),
        ({"dp_sad": {"epochs": 1e12}}, "MALFORMED_QUERY"),
        ({"dp_sad": {"copies": 10**9}}, "MALFORMED_QUERY"),
        ({"dp_sad": {"time_steps": 10**12}}, "MALFORMED_QUERY"),
        ({"dp_sad": {"synthetic_images": 10**12}}, "MALFORMED_QUERY"),
        ({"pretrain_epochs": 1e12}, "MALFORMED_QUERY"),
        ({"pretrain_batch": 10**12}, "MALFORMED_QUERY"),
        ({"sampling_steps": 10**12}, "MALFORMED_QUERY"),
        ({"clusters": 10**9, "labels": "kmeans"}, "MALFORMED_QUERY"),
    ],
)
def test_absurd_trainings_are_refused_before_they_are_planned(trainer, monkeypatch, more, code):
    """epsilon=1e6 once planned for 77 s, and honest questions waited."""
    monkeypatch.setattr(trainings, "prepare", lambda *_: pytest.fail("it was planned"))
    assert train(trainer, {"method": "dp-promise", **more}) == code


@pytest.mark.parametrize(("method", "batch"), [("dp-promise", "phase2_batch"), ("dp-sad", "batch")])
def test_steps_are_counted_before_the_noise_is_looked_for(monkeypatch, method, batch):
    monkeypatch.setattr(plan, "calibrated", lambda *_: pytest.fail("noise was looked for"))
    epochs = batch.replace("batch", "epochs")
    options = {method.replace("-", "_"): {batch: 1, epochs: 1_000}}
    settings = build(SynthesizeSettings, {"method": method, **options})
    facts = DataFacts("x", 60_000, 10, 1, 28)
    with pytest.raises(ConfigError, match=r"at most 1,000,000 steps, got \d\d+,"):
        plan_training(recipe_named(method), settings, facts, 0)


def test_a_holder_that_counts_by_holder_trains_nothing(trainer):
    change_policy(trainer, unit="holder")
    assert train(trainer, {"method": "dp-promise"}) == "POLICY_REFUSED"


def test_a_slice_is_as_long_as_the_holder_says(trainer, monkeypatch):
    given = []

    def advance(run: str, settings: SynthesizeSettings, seconds: float) -> Any:
        given.append(seconds)
        raise ProtocolError("enough")

    monkeypatch.setattr(trainer._node._trains, "advance", advance)
    assert train(trainer, {"method": "dp-promise"}, 3_600.0) == "QUERY_CONFLICT"
    assert given == [120.0]


def test_trainings_count_as_runs(trainer, monkeypatch):
    monkeypatch.setattr(trainings, "prepare", lambda *_: pytest.fail("it was planned"))
    change_policy(trainer, stored_bytes=1)
    assert train(trainer, {"method": "dp-promise"}) == "QUOTA_EXCEEDED"


# ---------------------------------------------------------------- whoever calls itself "hospital"


def test_of_two_nodes_of_one_name_neither_takes_part():
    """The first that answered once got what was meant for the other."""
    calls = {1: "hospital", 2: "hospital", 3: "clinic"}

    class Named:
        def __init__(self, name: str) -> None:
            self.facts = Capabilities(
                name=name,
                classes=2,
                channels=1,
                size=28,
                shards=1,
                positional_ids=False,
                kinds=(),
                noise=NoiseMode.LOCAL,
                rows_per_message=1,
                rows_per_run=1,
            )

        def capabilities(self) -> Capabilities:
            return self.facts

    def open_node(context: Context, number: int) -> Any:
        return Named(calls[context.node_id])

    grid = LocalGrid(make_client_app(open_node), {node: {} for node in calls})
    transport = OverFlower(grid, [(node, 0) for node in calls], 60, 60)
    found = transport.capabilities()
    assert isinstance(found["clinic"], Capabilities)
    assert isinstance(found["node 1/0"], ProtocolError)
    assert isinstance(found["node 2/0"], ProtocolError)
    assert "hospital" not in found
    asked_of = transport.exchange(
        wire.CAPABILITIES, ["hospital", "clinic"], lambda number, _: queries.ask_capabilities(0)
    )
    assert set(asked_of) == {"clinic"}


def test_every_code_is_documented():
    told = (Path(__file__).parents[2] / "docs" / "federation.md").read_text()
    assert [code for code in RefusalCode if f"`{code}`" not in told] == []
