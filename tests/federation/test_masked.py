"""Masked sums from end to end: what the server gets, who is charged, and what holders refuse."""

import json
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric import ec

from fedtranscribe.data.partitions import holder_name
from fedtranscribe.errors import ConfigError, ProtocolError, QuorumError, StorageError
from fedtranscribe.evaluation.audit_checks import check_events, read_events
from fedtranscribe.flower.client_app import make_client_app
from fedtranscribe.flower.over_flower import OverFlower
from fedtranscribe.holder.masking import Masking
from fedtranscribe.holder.node import Node, reply_to
from fedtranscribe.holder.policy import HolderPolicy
from fedtranscribe.noise.mask_graph import Graph
from fedtranscribe.noise.mask_keys import Members
from fedtranscribe.noise.secagg_server import MaskingServer
from fedtranscribe.noise.sources import SeededBits
from fedtranscribe.privacy.calibrate import EnsembleLayout
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.release_plan import NoisePlan
from fedtranscribe.privacy.units import NoiseMode, RowAnswer
from fedtranscribe.questions import masked_messages as masked_wire
from fedtranscribe.questions import messages as wire
from fedtranscribe.questions.question import Kind
from fedtranscribe.questions.refusals import Refusal, RefusalCode
from fedtranscribe.questions.rows import ImageQuery
from fedtranscribe.results.result import Result
from fedtranscribe.results.run_directory import STUDENT, RunDirectory
from fedtranscribe.rounds.round_state import RoundProgress
from fedtranscribe.runs.transports import InProcess
from tests.federation.local_grid import LocalGrid
from tests.federation.runs import go, ledger_file, start
from tests.mechanisms_for import masked_mean_rows
from tests.secagg.cohorts import toy_graph

M = 4


@pytest.fixture
def masked(settings):
    return settings.model_copy(update={"noise": "secagg", "holders": M})


@pytest.fixture
def masked_case(either, masked):
    """Votes of teachers, or sums over records, under masks."""
    names = ("student", "descent_rounds", "mixture_share")
    told = {name: getattr(either.settings, name) for name in names}
    settings = masked.model_copy(update=told)
    return replace(either, settings=settings)


class Failing(InProcess):
    """Holders fall silent: `silent(message_type, name)` says when."""

    def __init__(self, nodes: Iterable[Node], silent) -> None:
        super().__init__(nodes)
        self.silent = silent

    def exchange(self, message_type, holders, make):
        there = [name for name in holders if not self.silent(message_type, name)]
        return super().exchange(message_type, there, make)


def rows_booked(node: Node) -> int:
    with Ledger.open_read_only(ledger_file(node)) as ledger:
        return sum(release.rows for release in ledger.releases())


def test_a_masked_run_costs_what_was_asked_for_and_no_more(
    masked_case, split, open_nodes, tmp_path
):
    case, masked = masked_case, masked_case.settings
    nodes = open_nodes(masked)
    run = RunDirectory.create(tmp_path / "run", masked)
    result = go(masked, InProcess(nodes), run, split)
    assert result["noise"] == "secagg"
    assert result["trust"].startswith("no server")
    assert 0.99 * masked.epsilon < result["epsilon"] <= masked.epsilon
    assert result["answered_rounds"] == {holder_name(i): case.rounds for i in range(M)}
    for node in nodes:
        assert rows_booked(node) == case.rows
        with Ledger.open_read_only(ledger_file(node)) as ledger:
            assert {r.mechanism for r in ledger.releases()} == {case.mechanism}
    # The noise that was planned counts on m − t of the m shares, t = one of each.
    event = json.loads((run.path / "events.jsonl").read_text().splitlines()[0])
    assert event["release"]["costs"]["record"]["replace"]["kind"] == "zcdp"


def test_the_decoded_mean_is_the_holders_mean_with_the_planned_noise(masked, open_nodes, tmp_path):
    """Through node, ledger, masks and server: noise as planned without and with a drop-out."""
    wide = masked.model_copy(
        update={"rows": 3_000, "dpsd": masked.dpsd.model_copy(update={"round_rows": 3_000})}
    )
    for gone in (set(), {"holder-2"}):
        nodes = open_nodes(wide, folder=f"holders-{len(gone)}", bits=None)
        transport = Failing(
            nodes, lambda kind, name, gone=gone: kind == wire.SECAGG_MASK and name in gone
        )
        run = RunDirectory.create(tmp_path / f"run-{len(gone)}", wide)
        go(wide, transport, run)
        stored = torch.load(run.path / "checkpoints" / "answer.pt", weights_only=True)["answer"]
        assert stored["answered"] == M - len(gone)
        strength = json.loads((run.path / "metrics.json").read_text())["noise_std"]
        planned = (M * strength) ** 2 / ((M - 2) * stored["answered"])
        values = stored["values"].double()
        # A vote's coordinates lie in [0, 1]: their spread is noise but for a quarter at most.
        spread = float(values.var())
        assert planned * 0.95 < spread < planned * 1.05 + 0.25


@pytest.mark.long
def test_the_same_seeds_give_the_same_student_in_process_and_through_flower(
    masked_case, open_nodes, tmp_path
):
    masked = masked_case.settings
    made = []
    for where in ("in-process", "flower"):
        nodes = open_nodes(masked, folder=f"holders-{where}", bits=SeededBits(3))
        if where == "flower":
            app = make_client_app(lambda context, number, n=nodes: n[context.node_config["holder"]])
            grid = LocalGrid(app, {10 + i: {"holder": i} for i in range(M)})
            transport = OverFlower(grid, [(10 + i, 0) for i in range(M)], 60, 60)
        else:
            transport = InProcess(nodes, requester="flower")
        result = go(masked, transport, start(tmp_path / where, masked))
        assert result["private"] is False
        made.append((tmp_path / where / STUDENT).read_bytes())
    assert made[0] == made[1]


@pytest.mark.long
@pytest.mark.parametrize("stage", [wire.SECAGG_OPEN, wire.SECAGG_MASK])
def test_why_a_holder_left_in_the_last_round_survives_an_interrupt(
    masked_case, open_nodes, tmp_path, stage
):
    """It refuses the last query; the server dies before the sum is opened, and goes on."""
    case, masked = masked_case, masked_case.settings
    nodes, run = open_nodes(masked), start(tmp_path / "run", masked)
    last = case.query_id(case.rounds - 1)

    class Dying(InProcess):
        def exchange(self, message_type, holders, make):
            asked = make(0, holders[0]).terms.get("query-id")
            if (message_type, asked) == (wire.SECAGG_REVEAL, last):
                raise KeyboardInterrupt
            replies = super().exchange(message_type, holders, make)
            if (message_type, asked) == (stage, last) and "holder-1" in replies:
                replies["holder-1"] = wire.refuse(Refusal(RefusalCode.POLICY))
            return replies

    with pytest.raises(KeyboardInterrupt):
        go(masked, Dying(nodes), run)
    result = go(masked, InProcess(nodes), run)
    assert result["left"] == {"holder-1": RefusalCode.POLICY.value}
    events = (run.path / "events.jsonl").read_text().splitlines()
    booked = Counter()
    for line in map(json.loads, events):
        booked[line["holder"]] += line["release"]["rows"]
    expected = {holder_name(i): case.rows for i in range(M)}
    if stage == wire.SECAGG_OPEN:  # later it had booked the query, as far as a server can know
        expected["holder-1"] -= case.rows // case.rounds
    assert booked == expected


@pytest.mark.long
def test_holders_that_refused_too_early_for_a_sum_are_asked_again(
    masked_case, open_nodes, tmp_path
):
    """Two of four refuse the second query; their operators fix that, and the run goes on."""
    case, masked = masked_case, masked_case.settings
    nodes, run = open_nodes(masked), start(tmp_path / "run", masked)
    second = case.query_id(1)

    class Strict(InProcess):
        def exchange(self, message_type, holders, make):
            replies = super().exchange(message_type, [n for n in holders if n < "holder-2"], make)
            if make(0, holders[0]).terms.get("query-id") != second:
                return super().exchange(message_type, holders, make)
            for name in set(holders) - set(replies):
                replies[name] = wire.refuse(Refusal(RefusalCode.POLICY))
            return replies

    with pytest.raises(QuorumError):
        go(masked, Strict(nodes), run)
    result = go(masked, InProcess(nodes), run)
    assert (result["left"], result["stopped"]) == ({}, None)
    assert 0.99 * masked.epsilon < result["epsilon"] <= masked.epsilon
    assert [rows_booked(node) for node in nodes] == [case.rows] * M


@pytest.mark.long
@pytest.mark.parametrize("stage", wire.MASKED)
def test_as_many_as_tolerated_may_fail_at_every_stage(masked_case, open_nodes, tmp_path, stage):
    case, masked = masked_case, masked_case.settings
    nodes = open_nodes(masked)
    transport = Failing(nodes, lambda kind, name: kind == stage and name == "holder-1")
    result = go(masked, transport, RunDirectory.create(tmp_path / "run", masked))
    assert result["stopped"] is None
    late = stage in (wire.SECAGG_SIGN, wire.SECAGG_REVEAL)
    # Who has masked is in the sum, whatever becomes of it afterwards.
    assert result["answered_rounds"].get("holder-1", 0) == (case.rounds if late else 0)
    spent = case.rows if stage not in (wire.SECAGG_KEY, wire.SECAGG_OPEN) else 0
    assert rows_booked(nodes[1]) == spent if spent else not ledger_file(nodes[1]).exists()
    # Whoever was silent may have booked it all the same: what is printed counts it.
    assert result["epsilon"] <= masked.epsilon


@pytest.mark.long
@pytest.mark.parametrize("stage", wire.MASKED)
def test_a_run_over_a_sparse_graph_ends_well_with_one_missing(masked, open_nodes, tmp_path, stage):
    nodes = open_nodes(masked)
    transport = Failing(nodes, lambda kind, name: kind == stage and name == "holder-1")
    with toy_graph(Graph(2, 2, 0, 64.0)):
        result = go(masked, transport, RunDirectory.create(tmp_path / "run", masked))
    assert result["stopped"] is None
    assert "each holder draws 2 others" in result["trust"]
    assert "at most 2^-64 a run" in result["trust"]
    assert result["answered_rounds"]["holder-0"] >= 1


@pytest.mark.parametrize(("delta", "runs"), [(1e-14, 10_000), (1e-5, 10**12)])
def test_a_holder_refuses_a_graph_that_leaves_too_much_to_chance(masked, open_nodes, delta, runs):
    node = open_nodes(masked)[0]
    node.policy = node.policy.model_copy(update={"delta": delta, "runs": runs})
    with toy_graph(Graph(2, 2, 0, 64.0)), refused(RefusalCode.POLICY):
        node.advertise("run-a", NAMES, 1, 1)
    assert not node._masking.knows_run("run-a")
    node.advertise("run-a", NAMES, 1, 1)


def test_a_plan_with_too_small_a_delta_for_its_graph_is_refused(masked, open_nodes, tmp_path):
    nodes = open_nodes(masked)
    tiny = masked.model_copy(update={"delta": 1e-17})
    with toy_graph(Graph(2, 2, 0, 64.0)), pytest.raises(ConfigError, match="2\\^-64"):
        go(tiny, InProcess(nodes), RunDirectory.create(tmp_path / "run", tiny))


def test_what_another_version_stored_of_a_round_gives_a_clear_error(masked, open_nodes, tmp_path):
    old = {"query": "q", "sent": {}, "vectors": {}, "survivors": [], "signatures": {}}
    path = tmp_path / "secagg-round.json"
    path.write_text(json.dumps(old))
    with pytest.raises(StorageError, match="another version"):
        RoundProgress.load(path, "q")
    assert RoundProgress.load(path, "another") is None
    nodes = open_nodes(masked)
    adverts(nodes)
    store = nodes[0]._masking._store
    stored = store.run("run-a")
    state = json.loads(stored)
    del state["drawn"]
    store.put_run("run-a", json.dumps(state).encode(), stored)
    with pytest.raises(ProtocolError, match="another version"):
        nodes[0]._masking.cohort("run-a")


@pytest.mark.long
@pytest.mark.parametrize("stage", wire.MASKED)
def test_one_more_stops_the_round_and_resuming_pays_nothing_twice(
    masked_case, open_nodes, tmp_path, stage
):
    case, masked = masked_case, masked_case.settings
    nodes, calls = open_nodes(masked), []

    def silent(kind: str, name: str) -> bool:
        calls.append(kind)
        return kind == stage and name in ("holder-1", "holder-2")

    with pytest.raises(QuorumError, match="Resume"):
        go(masked, Failing(nodes, silent), RunDirectory.create(tmp_path / "run", masked))
    reveals = wire.SECAGG_REVEAL in calls
    assert reveals is (stage == wire.SECAGG_REVEAL)
    again = masked.model_copy(update={"resume": True})
    result = go(again, InProcess(nodes), RunDirectory.resume(tmp_path / "run", again))
    assert result["rows"] == case.rows
    for node in nodes:
        assert rows_booked(node) <= case.rows
    assert result["epsilon"] <= masked.epsilon


def test_a_stuck_round_is_given_up_only_when_told_and_costs_again(
    masked_case, open_nodes, tmp_path
):
    case, masked = masked_case, masked_case.settings
    rich = {i: HolderPolicy(epsilon=100, noise="secagg", dropouts=1, colluders=1) for i in range(M)}
    nodes = open_nodes(masked, rich)
    dead = {"now": {"holder-1", "holder-2"}}
    transport = Failing(nodes, lambda kind, name: kind == wire.SECAGG_SIGN and name in dead["now"])
    with pytest.raises(QuorumError, match="abandon=true"):
        go(masked, transport, RunDirectory.create(tmp_path / "run", masked))
    # One is back, but the other has lost what it masked.
    dead["now"] = set()
    (ledger_file(nodes[1]).parent / "ledger.sqlite.rounds").unlink()
    again = masked.model_copy(update={"resume": True, "abandon": True})
    result = go(again, transport, RunDirectory.resume(tmp_path / "run", again))
    assert result["rows"] == case.rows
    assert rows_booked(nodes[0]) == case.rows + case.rows // case.rounds
    assert result["abandoned_rows"] == case.rows // case.rounds
    assert result["epsilon"] > masked.epsilon
    assert check_events(Result.read(tmp_path / "run"), read_events(tmp_path / "run")).ok


def test_a_finished_round_is_not_given_up(masked_case, open_nodes, tmp_path, monkeypatch):
    case, masked = masked_case, masked_case.settings
    nodes = open_nodes(masked)
    monkeypatch.setattr(case.method, "learn", _interrupted)
    with pytest.raises(KeyboardInterrupt):
        go(masked, InProcess(nodes), RunDirectory.create(tmp_path / "run", masked))
    monkeypatch.undo()
    again = masked.model_copy(update={"resume": True, "abandon": True})
    result = go(again, InProcess(nodes), RunDirectory.resume(tmp_path / "run", again))
    assert rows_booked(nodes[0]) == case.rows
    assert result["epsilon"] <= masked.epsilon


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_round_that_nobody_opens_can_be_given_up(masked_case, open_nodes, tmp_path):
    case, masked = masked_case, masked_case.settings
    rich = {i: HolderPolicy(epsilon=100, noise="secagg", dropouts=1, colluders=1) for i in range(M)}
    nodes, gone = open_nodes(masked, rich), {"now": {"holder-1", "holder-2"}}
    transport = Failing(nodes, lambda kind, name: kind == wire.SECAGG_OPEN and name in gone["now"])
    with pytest.raises(QuorumError):
        go(masked, transport, RunDirectory.create(tmp_path / "run", masked))
    gone["now"] = set()
    again = masked.model_copy(update={"resume": True, "abandon": True})
    go(again, transport, RunDirectory.resume(tmp_path / "run", again))
    assert rows_booked(nodes[0]) == case.rows + case.rows // case.rounds
    assert rows_booked(nodes[1]) == case.rows


def test_one_who_signs_late_replaces_one_who_went_away(masked_case, open_nodes, tmp_path):
    """One is silent at signing, another afterwards, with the first one back."""
    case, masked = masked_case, masked_case.settings
    seen = []

    def silent(kind: str, name: str) -> bool:
        seen.append(kind)
        revealed = wire.SECAGG_REVEAL in seen
        return (kind == wire.SECAGG_SIGN and name == "holder-0" and not revealed) or (
            kind == wire.SECAGG_REVEAL and name == "holder-1"
        )

    result = go(
        masked, Failing(open_nodes(masked), silent), RunDirectory.create(tmp_path / "run", masked)
    )
    assert result["rows"] == case.rows


def test_a_spent_budget_and_a_silent_holder_do_not_end_a_run(masked_case, open_nodes, tmp_path):
    case, masked = masked_case, masked_case.settings
    poor = {0: HolderPolicy(epsilon=masked.epsilon / 1.5, noise="secagg", dropouts=1, colluders=1)}
    nodes, calls = open_nodes(masked, poor), []

    def silent(kind: str, name: str) -> bool:
        calls.append(kind)
        return calls.count(wire.SECAGG_REVEAL) > M and name == "holder-1"

    with pytest.raises(QuorumError):
        go(masked, Failing(nodes, silent), RunDirectory.create(tmp_path / "run", masked))
    again = masked.model_copy(update={"resume": True})
    result = go(again, InProcess(nodes), RunDirectory.resume(tmp_path / "run", again))
    assert (result["rows"], result["stopped"]) == (case.rows, None)
    assert result["answered_rounds"]["holder-0"] == 1


def test_a_refusal_is_asked_and_charged_once(masked_case, open_nodes, tmp_path):
    case, masked = masked_case, masked_case.settings
    nodes = open_nodes(masked)
    nodes[3]._masking = None  # it had a key when it enrolled
    transport = InProcess(nodes)
    told = {**transport.capabilities()}
    told["holder-3"] = replace(told["holder-3"], masks=True)
    transport.capabilities = lambda: told
    patient = masked.model_copy(update={"retries": 3})
    result = go(patient, transport, RunDirectory.create(tmp_path / "run", patient))
    assert set(result["left"]) == {"holder-3"}
    events = (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    charged: Counter[str] = Counter()
    for event in map(json.loads, events):
        charged[event["holder"]] += event["release"]["rows"]
    assert charged["holder-3"] == 0
    assert charged["holder-0"] == case.rows


def test_a_liar_at_a_late_stage_costs_the_round_and_not_the_honest(
    masked_case, open_nodes, tmp_path
):
    """Shares that do not fit together stop the round; nobody honest leaves the run for it."""
    masked = masked_case.settings
    nodes = open_nodes(masked)
    honest = nodes[2].reveal

    def lying(*args):
        return {owner: bytes(len(share)) for owner, share in honest(*args).items()}

    nodes[2].reveal = lying
    with pytest.raises(QuorumError, match="abandon=true"):
        go(masked, InProcess(nodes), RunDirectory.create(tmp_path / "run", masked))
    saved = torch.load(tmp_path / "run" / "checkpoints" / "state.pt", weights_only=True)
    assert saved["state"]["standing"]["left"] == {}


def test_a_ledger_that_went_back_leaves_a_masked_run(masked_case, open_nodes, tmp_path):
    masked = masked_case.settings
    nodes = open_nodes(masked)
    real, heads = nodes[1].open_round, []

    def rolled_back(*args):
        sent, head = real(*args)
        heads.append(head)
        return sent, (1, "an older head") if len(heads) == 2 else head

    nodes[1].open_round = rolled_back
    result = go(masked, InProcess(nodes), RunDirectory.create(tmp_path / "run", masked))
    assert result["left"] == {"holder-1": "a ledger that went back"}


# ---------------------------------------------------------------- what holders refuse


def query(masked, name: str = "run-a/000000", rows: int = 6) -> ImageQuery:
    images = torch.zeros(rows, 1, 28, 28, dtype=torch.uint8)
    return ImageQuery(name, Kind.VOTE, images, torch.arange(3).repeat(rows, 1))


PLAN = NoisePlan(NoiseMode.SECAGG, 1_000.0, M, 1, 1)
NAMES = [holder_name(i) for i in range(M)]


def adverts(nodes, run="run-a"):
    return [node.advertise(run, NAMES, 1, 1)[0] for node in nodes]


def server() -> MaskingServer:
    drawn = {name: [other for other in NAMES if other != name] for name in NAMES}
    return MaskingServer(Members(tuple(NAMES), 1, 1), drawn)


def opened(nodes, asked):
    keys = adverts(nodes)
    return {n.name: n.open_round(asked, PLAN, "run-a", "flower", keys)[0] for n in nodes}


def refused(code: RefusalCode):
    return pytest.raises(Refusal, match=code.value)


def test_integer_rows_never_leave_without_masks(masked, open_nodes):
    node = open_nodes(masked)[0]
    with refused(RefusalCode.MALFORMED):
        node.answer(query(masked), PLAN, "run-a", "flower")
    assert not ledger_file(node).exists()


@pytest.mark.parametrize(
    ("dropouts", "colluders", "code"),
    [(2, 1, "POLICY"), (1, 0, "POLICY"), (1, 2, "MALFORMED"), (0, 4, "MALFORMED")],
)
def test_a_cohort_that_the_policy_does_not_bear(masked, open_nodes, dropouts, colluders, code):
    with refused(RefusalCode[code]):
        open_nodes(masked)[0].advertise("run-a", NAMES, dropouts, colluders)


def test_strangers_and_another_cohort_of_the_same_run_are_refused(masked, open_nodes):
    node = open_nodes(masked)[0]
    with refused(RefusalCode.CONFLICT):
        node.advertise("run-a", ["holder-0", "holder-1", "holder-2", "mallory"], 1, 1)
    # Refused for its names, before anybody computes the graph of so many.
    with refused(RefusalCode.CONFLICT):
        node.advertise("run-a", [*NAMES, *(f"nobody-{i}" for i in range(100_000))], 1, 1)
    first = node.advertise("run-a", NAMES, 1, 1)
    assert node.advertise("run-a", NAMES, 1, 1) == first
    with refused(RefusalCode.CONFLICT):
        node.advertise("run-a", NAMES, 0, 1)
    with refused(RefusalCode.MALFORMED):
        node.advertise("run-b", NAMES[1:], 0, 1)


def test_replaced_or_replayed_keys_book_nothing(masked, open_nodes):
    nodes = open_nodes(masked)
    keys, old = adverts(nodes), adverts(nodes, "run-0")
    for wrong in ([*keys[:3], old[3]], keys[:2], [*keys, old[1]], []):
        with refused(RefusalCode.CONFLICT):
            nodes[0].open_round(query(masked), PLAN, "run-a", "flower", wrong)
    assert not ledger_file(nodes[0]).exists()
    nodes[0].open_round(query(masked), PLAN, "run-a", "flower", keys)
    with refused(RefusalCode.CONFLICT):
        nodes[0].open_round(query(masked), PLAN, "run-a", "flower", keys[:3])


@pytest.mark.parametrize(
    "plan",
    [
        NoisePlan(NoiseMode.SECAGG, 1_000.0, M, 0, 1),
        NoisePlan(NoiseMode.SECAGG, 1_000.0, M + 1, 1, 1),
        NoisePlan(NoiseMode.SECAGG, 1_000.0, M, 1, 0),
    ],
)
def test_noise_planned_for_another_cohort_is_refused(masked, open_nodes, plan):
    nodes = open_nodes(masked)
    with pytest.raises(Refusal):
        nodes[0].open_round(query(masked), plan, "run-a", "flower", adverts(nodes))
    assert not ledger_file(nodes[0]).exists()


def test_a_round_is_replayed_byte_for_byte_and_never_made_twice(masked, open_nodes):
    nodes, asked = open_nodes(masked), query(masked)
    sent = opened(nodes, asked)
    assert opened(nodes, asked) == sent
    inboxes = server().inboxes(sent)
    masked_with = {n.name: n.mask("run-a", asked.id, inboxes[n.name]) for n in nodes}
    again = nodes[0].mask("run-a", asked.id, inboxes["holder-0"])
    assert again == masked_with["holder-0"]
    tags = server().tags({name: told[1] for name, told in masked_with.items()}, NAMES, "holder-0")
    fewer = {name: box for name, box in inboxes["holder-0"].items() if name != "holder-3"}
    with refused(RefusalCode.CONFLICT):
        nodes[0].mask("run-a", asked.id, fewer)
    for few in ({}, {**tags, "holder-1": tags["holder-2"]}):
        with refused(RefusalCode.CONFLICT):
            nodes[0].sign("run-a", asked.id, NAMES[:3], few)
    signature = nodes[0].sign("run-a", asked.id, NAMES[:3], tags)
    assert nodes[0].sign("run-a", asked.id, NAMES[:3], tags) == signature
    with refused(RefusalCode.CONFLICT):
        nodes[0].sign("run-a", asked.id, NAMES, tags)
    with refused(RefusalCode.CONFLICT):
        nodes[0].reveal("run-a", asked.id, {"holder-0": signature})
    assert rows_booked(nodes[0]) == asked.rows


def test_two_processes_of_one_holder_cannot_say_two_things(masked, open_nodes):
    """Of two that go on from the same state one is refused, whatever they were asked."""
    nodes, asked = open_nodes(masked), query(masked)
    inboxes = server().inboxes(opened(nodes, asked))
    told = {node.name: node.mask("run-a", asked.id, inboxes[node.name])[1] for node in nodes}
    tags = server().tags(told, NAMES, "holder-0")
    first, twin = nodes[0]._masking, Masking(nodes[0]._masking.identity, nodes[0]._masking._store)
    both_read, real = threading.Barrier(2), Masking._round

    def slowly(self, run, name):
        found = real(self, run, name)
        both_read.wait(30)
        return found

    said: dict[int, object] = {}

    def sign(which: int, masking: Masking, survivors: list[str]) -> None:
        try:
            said[which] = masking.sign("run-a", asked.id, survivors, tags)
        except ProtocolError as error:
            said[which] = error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Masking, "_round", slowly)
        threads = [
            threading.Thread(target=sign, args=args)
            for args in ((0, first, NAMES), (1, twin, NAMES[:3]))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(isinstance(each, bytes) for each in said.values()) == [False, True]


def test_holders_may_call_the_server_by_different_names(masked, open_nodes):
    nodes, asked = open_nodes(masked), query(masked)
    keys = adverts(nodes)
    sent = {
        node.name: node.open_round(asked, PLAN, "run-a", f"server of {node.name}", keys)[0]
        for node in nodes
    }
    inboxes = server().inboxes(sent)
    assert all(node.mask("run-a", asked.id, inboxes[node.name]) for node in nodes)
    # To the ledger it is another query all the same.
    with refused(RefusalCode.CONFLICT):
        nodes[0].open_round(asked, PLAN, "run-a", "somebody else", keys)


def test_a_query_belongs_to_one_run_and_to_the_policy_of_today(masked, open_nodes):
    nodes, asked = open_nodes(masked), query(masked)
    opened(nodes, asked)
    others = adverts(nodes, "run-b")
    with refused(RefusalCode.CONFLICT):
        nodes[0].open_round(asked, PLAN, "run-b", "flower", others)
    nodes[0].policy = nodes[0].policy.model_copy(update={"colluders": 2})
    with refused(RefusalCode.POLICY):
        nodes[0].open_round(
            query(masked, "run-a/000001"), PLAN, "run-a", "flower", adverts_of_a(nodes)
        )


def adverts_of_a(nodes):
    return [node._masking.advertise("run-a", NAMES, 1, 1)[0] for node in nodes]


def test_a_changed_roster_ends_what_was_agreed_on_with_the_old_one(masked, open_nodes):
    nodes, asked = open_nodes(masked), query(masked)
    opened(nodes, asked)
    identity = nodes[0]._masking.identity
    stranger = ec.generate_private_key(ec.SECP384R1()).public_key()
    changed = replace(identity, roster={**identity.roster, "holder-2": stranger})
    nodes[0]._masking = Masking(changed, nodes[0]._masking._store)
    for say in (
        lambda: nodes[0].mask("run-a", asked.id, {}),
        lambda: nodes[0].advertise("run-a", NAMES, 1, 1),
        lambda: opened(nodes, query(masked, "run-a/000001")),
    ):
        with refused(RefusalCode.CONFLICT):
            say()


def test_a_round_that_was_forgotten_is_not_begun_again(masked, open_nodes):
    nodes, asked = open_nodes(masked), query(masked)
    opened(nodes, asked)
    book = nodes[0]._masking._store
    book._path.unlink()
    keys = adverts(nodes)
    with refused(RefusalCode.CONFLICT):
        nodes[0].open_round(asked, PLAN, "run-a", "flower", keys)


def test_what_a_masked_vector_hides_is_what_the_ledger_has(masked, open_nodes):
    nodes, asked = open_nodes(masked), query(masked)
    sent = opened(nodes, asked)
    inboxes = server().inboxes(sent)
    vectors = {n.name: n.mask("run-a", asked.id, inboxes[n.name])[0] for n in nodes}
    with Ledger.open_read_only(ledger_file(nodes[0])) as ledger:
        stored = ledger.answer(asked.id)
    assert stored is not None
    values = torch.frombuffer(bytearray(stored), dtype=torch.int64)
    assert len(values) == asked.rows * asked.k
    layout = EnsembleLayout(M * nodes[0].facts.shards, M)
    mechanism = masked_mean_rows(layout, PLAN.strength, RowAnswer.VOTE, asked.k, PLAN.tolerated)
    assert float(values.abs().max()) < 40 * mechanism.own_variance**0.5
    plain = values.numpy().astype(f"<u{mechanism.grid.word // 8}").tobytes()
    assert len(plain) == len(vectors["holder-0"])
    assert plain != vectors["holder-0"]


def test_holders_that_allow_no_masked_sums_are_left_out(masked, open_nodes, tmp_path, caplog):
    policies = {
        0: HolderPolicy(epsilon=100, noise="local"),
        1: HolderPolicy(epsilon=100, noise="secagg", dropouts=0, colluders=1),
    }
    nodes = open_nodes(masked, policies)
    nodes[2]._masking = None
    with pytest.raises(QuorumError):
        go(
            masked.model_copy(update={"quorum": 3}),
            InProcess(nodes),
            RunDirectory.create(tmp_path / "run", masked),
        )
    assert "allows no masked sums" in caplog.text
    assert "no key or roster" in caplog.text
    # With two left and one who bears no drop-outs, nobody may be missing.
    two = masked.model_copy(update={"quorum": 2})
    result = go(two, InProcess(nodes), RunDirectory.create(tmp_path / "two", two))
    assert "up to 0 holders" in result["trust"]


def test_more_drop_outs_than_a_holder_bears_are_an_error(masked, open_nodes, tmp_path):
    nodes = open_nodes(masked)
    greedy = masked.model_copy(update={"dropouts": 2})
    with pytest.raises(ConfigError, match="dropouts=2 <= 1"):
        go(greedy, InProcess(nodes), RunDirectory.create(tmp_path / "run", greedy))


def junk(kind: str) -> list[wire.Message]:
    terms = {"holder": 0, "run": "run-a", "query-id": "run-a/000000"}
    without_run = wire.Message.of({"holder": 0, "query-id": "q"})
    key = {"names": NAMES, "dropouts": 1, "colluders": 1}
    return {
        wire.SECAGG_KEY: [
            without_run,
            wire.Message.of(terms | key | {"dropouts": -1}),
            wire.Message.of(terms | key | {"names": "holder-0"}),
            wire.Message.of(terms | key | {"names": ["", "holder-0"]}),
            wire.Message.of(terms | key | {"run": ""}),
        ],
        wire.SECAGG_OPEN: [without_run, wire.Message.of(terms)],
        wire.SECAGG_MASK: [without_run, wire.Message.of(terms | {"sealed": ["a"]})],
        wire.SECAGG_SIGN: [without_run, wire.Message.of(terms | {"survivors": 3})],
        wire.SECAGG_REVEAL: [without_run, wire.Message.of(terms | {"signatures": ["a", "a"]})],
    }[kind]


@pytest.mark.parametrize("kind", wire.MASKED)
def test_junk_gets_a_code_and_books_nothing(masked, open_nodes, kind):
    node = open_nodes(masked)[0]
    good_form = masked_wire.ask_sign(0, "run-x", "unknown", NAMES, {})
    for content in [wire.Message(), *junk(kind), good_form]:
        told = reply_to(content, kind, lambda number: node, "flower")
        assert told.terms.get("refusal") in {
            RefusalCode.PROTOCOL.value,
            RefusalCode.MALFORMED.value,
            RefusalCode.POLICY.value,
            RefusalCode.CONFLICT.value,
        }
    assert not ledger_file(node).exists()
