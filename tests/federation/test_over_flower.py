"""The same run through Flower's messages: same student, generic refusals, faults, resume."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict

from fedtranscribe.errors import ProtocolError
from fedtranscribe.flower.client_app import make_client_app
from fedtranscribe.flower.over_flower import OverFlower
from fedtranscribe.flower.records import message_of, record_of
from fedtranscribe.holder.node import Node
from fedtranscribe.holder.policy import HolderPolicy
from fedtranscribe.privacy.units import NoiseMode
from fedtranscribe.questions import messages as wire
from fedtranscribe.questions import query_messages as queries
from fedtranscribe.questions.question import Kind
from fedtranscribe.questions.refusals import Refusal, RefusalCode
from fedtranscribe.runs.transports import InProcess
from tests.federation.local_grid import LocalGrid
from tests.federation.runs import go, ledger_file, start


def over(nodes: list[Node], flower_nodes: int = 2, drop=()) -> OverFlower:
    app = make_client_app(lambda context, number: nodes[number])
    grid = LocalGrid(app, {11 * (i + 1): {} for i in range(flower_nodes)}, drop=drop)
    ids = grid.get_node_ids()
    return OverFlower(grid, [(ids[i % len(ids)], i) for i in range(len(nodes))], 5, 5)


@pytest.mark.long
@pytest.mark.parametrize(
    ("privacy", "noise", "top_k"),
    [("vote", "central", None), ("data", "local", 2), ("label", "local", None)],
)
def test_the_same_seeds_give_the_same_student_in_process_and_through_flower(
    settings, split, open_nodes, tmp_path, privacy, noise, top_k
):
    chosen = {"privacy": privacy, "noise": noise, "top_k": top_k}
    settings = settings.model_copy(update=chosen)
    for name, make in (("here", InProcess), ("flower", over)):
        nodes = open_nodes(settings, folder=name)
        go(settings, make(nodes), start(tmp_path / f"run-{name}", settings), split)
    for file in ("student.safetensors", "generator.safetensors"):
        here, flower = ((tmp_path / f"run-{n}" / file).read_bytes() for n in ("here", "flower"))
        assert here == flower, file


def test_a_lost_node_is_missed_and_the_run_goes_on(settings, open_nodes, tmp_path):
    transport = over(open_nodes(settings), flower_nodes=3, drop=())
    run = start(tmp_path / "run", settings)
    learned = []

    original = transport.ask

    def ask(holders, query, plan, run_id):
        learned.append(query.id)
        if query.id.endswith("1"):
            transport._grid.drop.add(22)
        return original(holders, query, plan, run_id)

    transport.ask = ask
    result = go(settings, transport, run)
    assert result["answered_rounds"] == {"holder-0": 3, "holder-1": 1, "holder-2": 3}
    assert result["rows"] == 30


def test_two_holders_of_one_name_are_told_apart_by_neither(settings, open_nodes):
    nodes = open_nodes(settings)
    nodes[1].name = nodes[0].name
    told = over(nodes).capabilities()
    assert sorted(type(v).__name__ for v in told.values()) == [
        "Capabilities",
        "ProtocolError",
        "ProtocolError",
    ]


# ---------------------------------------------------------------- what a holder answers to what


@pytest.fixture
def answer(settings, open_nodes):
    """Send any content to one holder and read the refusal, or None."""
    policy = HolderPolicy(epsilon=10, noise=NoiseMode.CENTRAL, rows_per_message=20)
    node = open_nodes(settings, {0: policy})[0]
    app = make_client_app(lambda context, number: node)
    grid = LocalGrid(app, {1: {}})

    def send(content: wire.Message | RecordDict, kind: str = wire.ANSWER) -> str | None:
        record = content if isinstance(content, RecordDict) else record_of(content)
        message = Message(record, dst_node_id=1, message_type=kind, group_id="g")
        (reply,) = grid.send_and_receive([message])
        assert not reply.has_error(), "nothing may be raised out of a handler"
        terms = message_of(reply.content).terms
        assert set(terms) <= {"protocol", "refusal", "holder"} or "refusal" not in terms
        return terms.get("refusal")

    send.node = node
    return send


def query(
    rows: int = 10, classes: int = 3, size: int = 28, sets: np.ndarray | None = None, **terms
) -> wire.Message:
    content = {
        "protocol": wire.VERSION,
        "holder": 0,
        "run": "run-a",
        "query-id": "run-a/000000",
        "kind": "vote",
        "mode": "central",
        "strength": 1_000.0,
        "holders": 3,
        "dropouts": 0,
        "colluders": 0,
        **terms,
    }
    images = np.zeros((rows, 1, size, size), np.uint8)
    if sets is None:
        sets = np.tile(np.arange(classes, dtype=np.uint8), (rows, 1))
    told = {k: v for k, v in content.items() if v is not None}
    return wire.Message(told).and_arrays({"images": images, "index_sets": sets})


def broken(data: bytes) -> RecordDict:
    """A query whose images are no array."""
    content = record_of(query())
    image = Array(dtype="uint8", shape=(10, 1, 28, 28), stype="numpy.ndarray", data=data)
    content["arrays"] = ArrayRecord({**content.array_records["arrays"], "images": image})
    return content


def without(name: str) -> wire.Message:
    """A query that lacks an array."""
    whole = query()
    return wire.Message(whole.terms, {n: a for n, a in whole.arrays.items() if n != name})


def test_a_good_query_is_answered_and_replayed(answer):
    assert answer(query()) is None
    assert answer(query()) is None
    with_other_noise = query(strength=2_000.0)
    assert answer(with_other_noise) == RefusalCode.CONFLICT
    assert answer(query(rows=9)) == RefusalCode.CONFLICT


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (query(protocol=wire.VERSION + 1), RefusalCode.PROTOCOL),
        (query(protocol=None), RefusalCode.PROTOCOL),
        (RecordDict(), RefusalCode.PROTOCOL),
        (query(rows=21), RefusalCode.POLICY),
        (query(mode="secagg"), RefusalCode.MALFORMED),
        (query(kind="label", mode="central"), RefusalCode.MALFORMED),
        (query(kind="weights"), RefusalCode.MALFORMED),
        (query(strength=0.0), RefusalCode.MALFORMED),
        (query(strength=-1.0), RefusalCode.MALFORMED),
        (query(strength=float("nan")), RefusalCode.MALFORMED),
        (query(strength=float("inf")), RefusalCode.MALFORMED),
        (query(strength=1e-6), RefusalCode.BUDGET),
        (query(holders=0), RefusalCode.MALFORMED),
        (query(holders=2**60), RefusalCode.MALFORMED),
        (query(holders=True), RefusalCode.MALFORMED),
        (query(dropouts=1), RefusalCode.MALFORMED),
        (query(colluders=-1), RefusalCode.MALFORMED),
        (query(mode="secagg", dropouts=1, colluders=1), RefusalCode.MALFORMED),
        (query(strength=1e308), RefusalCode.MALFORMED),
        (query(strength=1e-200), RefusalCode.MALFORMED),
        (query(sets=np.zeros((10, 0), np.uint8)), RefusalCode.MALFORMED),
        (query(sets=np.zeros((0, 2**31 - 1), np.uint8)), RefusalCode.MALFORMED),
        (query(sets=np.zeros((10, 3), np.uint8)), RefusalCode.MALFORMED),
        (query(sets=np.full((10, 1), 2**64 - 1, np.uint64)), RefusalCode.MALFORMED),
        (query(sets=np.full((10, 1), 3, np.uint8)), RefusalCode.MALFORMED),
        (query(sets=np.full((10, 1), -1, np.int8)), RefusalCode.MALFORMED),
        (query(sets=np.arange(10, dtype=np.uint8)), RefusalCode.MALFORMED),
        (without("images"), RefusalCode.MALFORMED),
        (without("index_sets"), RefusalCode.MALFORMED),
        (broken(b""), RefusalCode.MALFORMED),
        (broken(b"PK\x03\x04junk"), RefusalCode.MALFORMED),
        (query(classes=4), RefusalCode.MALFORMED),
        (query(size=32), RefusalCode.MALFORMED),
        (query(rows=0), RefusalCode.MALFORMED),
        (query(run=None), RefusalCode.MALFORMED),
        (query(**{"query-id": ""}), RefusalCode.MALFORMED),
        (query(**{"of-k": 3}), RefusalCode.MALFORMED),
        (query(**{"of-k": ["three"]}), RefusalCode.MALFORMED),
        (query(kind="moments"), RefusalCode.MALFORMED),
        (query(kind="gradient"), RefusalCode.MALFORMED),
    ],
)
def test_bad_queries_get_their_code_and_book_nothing(answer, content, code):
    assert answer(content) == code
    assert answer(query(**{"query-id": "run-a/000001"})) is None


def test_a_local_holder_never_gives_raw_rows(settings, open_nodes):
    wary = HolderPolicy(epsilon=10, noise=NoiseMode.LOCAL)
    node = open_nodes(settings, {0: wary})[0]
    envelope = queries.read_query(query(), open_nodes(settings)[0].expect)
    with pytest.raises(Refusal, match="POLICY"):
        node.answer(envelope.query, envelope.plan, "run-a", "me")
    assert not [p for p in ledger_file(node).parent.glob("ledger.sqlite") if _booked(node)]


def _booked(node: Node) -> bool:
    from fedtranscribe.privacy.ledger import Ledger

    with Ledger.open_read_only(ledger_file(node)) as ledger:
        return bool(ledger.releases())


def test_exceptions_of_a_holder_stay_at_the_holder(settings, open_nodes):
    """Neither a node that cannot be opened nor teachers that break tell why."""
    node = open_nodes(settings)[0]
    node._statistics[Kind.VOTE]._teachers.logits = _break

    def cannot_open(context: Context, number: int) -> Node:
        raise RuntimeError("patient Smith's file is missing")

    for app in (make_client_app(lambda c, n: node), make_client_app(cannot_open)):
        grid = LocalGrid(app, {1: {}})
        message = Message(record_of(query()), dst_node_id=1, message_type=wire.ANSWER, group_id="g")
        (reply,) = grid.send_and_receive([message])
        assert message_of(reply.content).terms == {
            "protocol": wire.VERSION,
            "refusal": "INTERNAL_ERROR",
            "holder": 0,
        }


def _break(images):
    raise RuntimeError("patient Smith")


@pytest.mark.parametrize("values", ["nan", "inf", "shape", "id", "complex", "form"])
def test_the_server_accepts_no_answer_that_is_none(answer, values, settings, open_nodes):
    envelope = queries.read_query(query(), open_nodes(settings)[0].expect)
    node = open_nodes(settings, folder="others")[0]
    told = node.answer(envelope.query, envelope.plan, "run-a", "me")
    content = queries.tell(told)
    array = wire.array_of(content, "values", "f")
    if values in ("nan", "inf"):
        array[0, 0] = float(values)
    if values == "shape":
        array = array[:-1]
    if values == "id":
        content.terms["query-id"] = "another"
    if values == "complex":
        array = array.astype(np.complex64)
    if values == "form":
        content.terms["form"] = "label"
    content = content.and_arrays({"values": array})
    with pytest.raises(ProtocolError, match=r"finite|Expected an answer|cannot be read"):
        queries.read_answer(content, envelope.query)


def test_a_row_costs_about_a_quarter_of_dense_float32(settings, open_nodes, tmp_path):
    transport = over(open_nodes(settings))
    result = go(settings, transport, start(tmp_path / "run", settings))
    dense = 4 * (28 * 28 + 3 + 3)
    assert result["bytes"] / (30 * 3) < 0.35 * dense  # small messages have their headers as well
