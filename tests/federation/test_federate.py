"""Whole federated runs in process: figures, faults, resume."""

import contextlib
import json
import math
import re
import shutil
import stat
from dataclasses import replace

import pytest
import torch

from fedtranscribe.config.evaluation import AuditSettings
from fedtranscribe.errors import (
    ConfigError,
    HopelessPlanError,
    ProtocolError,
    QuorumError,
    StorageError,
)
from fedtranscribe.evaluation.audit import Audit
from fedtranscribe.evaluation.audit_checks import event_lists, most_exposed, read_events
from fedtranscribe.evaluation.findings import Claim, risk_of
from fedtranscribe.evaluation.game import play_run
from fedtranscribe.evaluation.report_facts import read_facts
from fedtranscribe.holder.node import Node
from fedtranscribe.holder.policy import HolderPolicy
from fedtranscribe.noise.sources import OsBits, OsNoise, SeededNoise
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.units import Adjacency, NoiseMode, Unit
from fedtranscribe.questions.question import Answer, RawAnswer
from fedtranscribe.questions.refusals import RefusalCode
from fedtranscribe.results.result import Result
from fedtranscribe.results.run_directory import RunDirectory
from fedtranscribe.runs.federate import ROSTER, federate
from fedtranscribe.runs.finished import FinishedRun
from fedtranscribe.runs.transports import InProcess
from tests.federation.runs import go, ledger_file, start


def ledger_of(node: Node):
    return Ledger.open_read_only(ledger_file(node))


class Faulty(InProcess):
    """Replies that a test breaks, by holder and round."""

    def __init__(self, nodes, faults):
        super().__init__(nodes)
        self.faults = faults
        self.asked = []

    def ask(self, holders, query, plan, run):
        replies = super().ask(holders, query, plan, run)
        for name in list(holders):
            self.asked.append((query.id, name))
            fault = self.faults.get((name, int(re.split("[-/]", query.id)[-1])))
            if fault is not None:
                replies[name] = fault(replies.pop(name), self.asked.count((query.id, name)))
        return {name: reply for name, reply in replies.items() if reply is not None}


def silent(reply, attempt):
    return None


def silent_once(reply, attempt):
    return None if attempt == 1 else reply


def failing(reply, attempt):
    return RefusalCode.INTERNAL


def nonsense(reply, attempt):
    return ProtocolError("The answer holds values that are not finite.")


def raw_unasked(reply, attempt):
    return RawAnswer(reply.query_id, reply.values, reply.head)


def noisy_unasked(reply, attempt):
    return Answer(reply.query_id, reply.values, reply.head)


@pytest.mark.parametrize(
    ("privacy", "noise"),
    [("vote", "central"), ("vote", "local"), ("data", "central"), ("data", "local")],
)
def test_a_run_spends_what_was_asked_for(settings, split, open_nodes, tmp_path, privacy, noise):
    settings = settings.model_copy(update={"privacy": privacy, "noise": noise})
    nodes = open_nodes(settings)
    result = go(settings, InProcess(nodes), start(tmp_path / "run", settings), split)
    assert result["epsilon"] == pytest.approx(10.0, rel=1e-6)
    assert result["units"]["holder"] > 10.0
    assert set(result["accuracy"]) == {"public_set_alone", "student"}
    assert result["answered_rounds"] == {f"holder-{i}": 3 for i in range(3)}
    for node in nodes:
        with ledger_of(node) as ledger:
            total = ledger.total(1e-5, Unit.RECORD, Adjacency.ZERO_OUT)
        assert total.epsilon == pytest.approx(10.0, rel=1e-6)
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["rows"] == 30
    assert (tmp_path / "run" / "student.safetensors").exists()


def test_who_vouches_for_a_holders_teachers_is_in_roster_and_result(
    settings, split, open_nodes, tmp_path
):
    settings = settings.model_copy(update={"start": "none"})
    nodes = open_nodes(settings)
    for node, said in zip(nodes, ("shards_declared_by", "weights_declared_by"), strict=False):
        told = replace(node._facts(), **{said: f"doctor {node.name}"})
        node._facts = lambda told=told: told
    result = go(settings, InProcess(nodes), start(tmp_path / "run", settings), split)
    assert result["declared_teachers"] == {
        "shards": {"holder-0": "doctor holder-0"},
        "weights": {"holder-1": "doctor holder-1"},
    }
    roster = json.loads((tmp_path / "run" / ROSTER).read_text())
    assert [facts["shards_declared_by"] for facts in roster.values()] == ["doctor holder-0", "", ""]


def test_labels_are_private_by_themselves(settings, split, open_nodes, tmp_path):
    settings = settings.model_copy(update={"privacy": "label", "noise": "local"})
    result = go(settings, InProcess(open_nodes(settings)), start(tmp_path / "run", settings), split)
    assert 9 < result["epsilon"] <= 10.0
    assert result["units"]["holder"] is None
    central = settings.model_copy(update={"noise": "central"})
    nodes, run = open_nodes(central), start(tmp_path / "other", central)
    with pytest.raises(ConfigError, match="noise=local"):
        go(central, InProcess(nodes), run)


def test_local_noise_costs_the_root_of_the_holders(settings, open_nodes, tmp_path):
    std = {}
    for noise in ("local", "central"):
        chosen = settings.model_copy(update={"noise": noise})
        result = go(
            chosen,
            InProcess(open_nodes(chosen, folder=noise)),
            start(tmp_path / f"run-{noise}", chosen),
        )
        std[noise] = result["noise_std"]
    assert std["local"] / std["central"] == pytest.approx(math.sqrt(3))


def test_a_hopeless_plan_stops_before_anybody_spends(settings, open_nodes, tmp_path):
    settings = settings.model_copy(update={"force": False})
    nodes = open_nodes(settings)
    with pytest.raises(HopelessPlanError, match="force=true"):
        go(settings, InProcess(nodes), start(tmp_path / "run", settings))
    assert not any(ledger_file(node).exists() for node in nodes)


# ---------------------------------------------------------------- who may take part


def test_a_holder_that_does_not_trust_the_server_is_left_out(settings, open_nodes, tmp_path):
    nodes = open_nodes(settings, {1: HolderPolicy(epsilon=10, noise=NoiseMode.LOCAL)})
    result = go(settings, InProcess(nodes), start(tmp_path / "run", settings))
    assert sorted(result["shards"]) == ["holder-0", "holder-2"]
    assert not ledger_file(nodes[1]).exists()


def test_too_few_willing_holders_are_an_error(settings, open_nodes, tmp_path):
    wary = {i: HolderPolicy(epsilon=10, noise=NoiseMode.LOCAL) for i in (0, 1)}
    with pytest.raises(QuorumError, match="Only 1 of 3 holders"):
        go(settings, InProcess(open_nodes(settings, wary)), start(tmp_path / "run", settings))


@pytest.mark.parametrize(
    "policy",
    [
        HolderPolicy(epsilon=10, noise=NoiseMode.CENTRAL, kinds=("label",)),
        HolderPolicy(epsilon=10, noise=NoiseMode.CENTRAL, rows_per_message=9),
    ],
)
def test_holders_that_would_refuse_every_query_are_left_out(settings, open_nodes, tmp_path, policy):
    nodes = open_nodes(settings, {0: policy})
    result = go(settings, InProcess(nodes), start(tmp_path / "run", settings))
    assert "holder-0" not in result["shards"]


def test_more_rows_than_a_holder_allows_per_run_are_refused_at_once(settings, open_nodes, tmp_path):
    short = HolderPolicy(epsilon=10, noise=NoiseMode.CENTRAL, rows_per_run=29)
    nodes = open_nodes(settings, {2: short})
    with pytest.raises(ConfigError, match="rows=30 <= 29"):
        go(settings, InProcess(nodes), start(tmp_path / "run", settings))
    assert not any(ledger_file(node).exists() for node in nodes)


# ---------------------------------------------------------------- faults on the way


@pytest.mark.parametrize("fault", [silent, failing])
def test_a_silent_or_failing_holder_is_asked_again_and_then_missed(
    either, open_nodes, tmp_path, fault
):
    settings, last = either.settings, either.rounds - 1
    transport = Faulty(open_nodes(settings), {("holder-1", 1): fault})
    result = go(settings, transport, start(tmp_path / "run", settings))
    assert transport.asked.count((either.query_id(1), "holder-1")) == 2
    assert result["answered_rounds"] == {
        "holder-0": last + 1,
        "holder-1": last,
        "holder-2": last + 1,
    }
    # It may have booked what it did not answer, so its rows count.
    assert result["epsilon"] == pytest.approx(10.0, rel=1e-6)
    assert result["left"] == {}


def test_asking_again_costs_nothing_twice(either, open_nodes, tmp_path):
    settings = either.settings
    nodes = open_nodes(settings)
    transport = Faulty(nodes, {("holder-1", r): silent_once for r in range(3)})
    result = go(settings, transport, start(tmp_path / "run", settings))
    assert result["answered_rounds"]["holder-1"] == either.rounds
    with ledger_of(nodes[1]) as ledger:
        assert ledger.rows("run-fixed") == either.rows


@pytest.mark.parametrize("fault", [nonsense, noisy_unasked])
def test_a_holder_that_talks_nonsense_leaves(either, open_nodes, tmp_path, fault):
    settings = either.settings
    transport = Faulty(open_nodes(settings), {("holder-2", 1): fault})
    result = go(settings, transport, start(tmp_path / "run", settings))
    assert list(result["left"]) == ["holder-2"]
    assert result["answered_rounds"]["holder-2"] == 1
    assert result["rows"] == either.rows


def test_a_raw_answer_is_never_taken_for_a_private_one(either, open_nodes, tmp_path):
    settings = either.settings.model_copy(update={"noise": "local"})
    transport = Faulty(open_nodes(settings), {("holder-0", 0): raw_unasked})
    result = go(settings, transport, start(tmp_path / "run", settings))
    assert "holder-0" in result["left"]


@pytest.mark.parametrize("reaction", ["continue", "stop"])
def test_a_spent_budget_ends_the_run_or_not_by_setting(either, open_nodes, tmp_path, reaction):
    settings = either.settings.model_copy(update={"on_exhausted": reaction})
    poor = HolderPolicy(epsilon=8.0, noise=NoiseMode.CENTRAL)
    nodes = open_nodes(settings, {1: poor})
    result = go(settings, InProcess(nodes), start(tmp_path / "run", settings))
    assert result["left"] == {"holder-1": "BUDGET_EXHAUSTED"}
    assert 0 < result["answered_rounds"]["holder-1"] < either.rounds
    if reaction == "stop":
        assert "holder-1" in result["stopped"]
        assert result["rows"] < either.rows
    else:
        assert result["stopped"] is None
        assert result["rows"] == either.rows
    with ledger_of(nodes[1]) as ledger:
        assert ledger.total(1e-5, Unit.RECORD, Adjacency.ZERO_OUT).epsilon <= 8.0


def test_risk_in_words_and_game_are_those_of_the_worst_holder(settings, open_nodes, tmp_path):
    """The first holder leaves after one round of three: it is at 58 %, the others at 84.1 %."""
    poor = HolderPolicy(epsilon=6.0, noise=NoiseMode.CENTRAL)
    nodes = open_nodes(settings, {0: poor}, noise=OsNoise(), bits=OsBits())
    run = RunDirectory.create(tmp_path / "run", settings)
    result = federate(settings, InProcess(nodes), run, expected=3, test=None).to_json()
    assert result["answered_rounds"] == {"holder-0": 1, "holder-1": 3, "holder-2": 3}
    lists = event_lists(read_events(run.path), Adjacency.ZERO_OUT)
    first, worst = (risk_of(Claim(10, 1e-5), events) for events in lists)
    assert first.right < 0.75 < worst.right == pytest.approx(0.841, abs=1e-3)
    assert "84.1 %" in read_facts(run.path).risk.words
    audited = Audit(FinishedRun.open(run.path), AuditSettings()).risk
    assert audited.right == pytest.approx(worst.right)
    assert audited.found == worst.found
    given = read_events(run.path)
    assert most_exposed(given, Adjacency.ZERO_OUT, 1e-5) == "holder-1"
    assert given["holder-1"] != given["holder-0"]
    played = play_run(Result.read(run.path), given, Adjacency.ZERO_OUT, trials=100, confidence=0.9)
    alone = {"holder-1": given["holder-1"]}
    same = play_run(Result.read(run.path), alone, Adjacency.ZERO_OUT, trials=100, confidence=0.9)
    assert played.figures == same.figures


def test_a_round_without_a_quorum_can_be_resumed(either, split, open_nodes, tmp_path):
    settings = either.settings
    nodes = open_nodes(settings)
    gone = {(f"holder-{i}", 1): silent for i in (0, 1)}
    run = start(tmp_path / "run", settings)
    with pytest.raises(QuorumError, match="quorum=2"):
        go(settings, Faulty(nodes, gone), run, split)
    assert not run.finished
    broken = go(settings, InProcess(nodes), run, split)
    whole = go(
        settings,
        InProcess(open_nodes(settings, folder="again")),
        start(tmp_path / "whole", settings),
        split,
    )
    assert broken["accuracy"] == whole["accuracy"]
    assert broken["epsilon"] == whole["epsilon"]
    for node in nodes:
        with ledger_of(node) as ledger:
            assert ledger.rows("run-fixed") == either.rows


def test_the_server_never_draws_noise_twice_for_one_query(either, open_nodes, tmp_path):
    """Killed between answer and update, the server learns from the very same answer."""
    settings, first = either.settings, either.query_id(0)
    nodes, run = open_nodes(settings), start(tmp_path / "run", settings)

    class Killed(BaseException):
        pass

    def die(entry):
        if entry["stage"] in ("rows answered", "sums over records"):
            raise Killed

    with pytest.raises(Killed):
        go(settings, InProcess(nodes), run, report=die)
    before = run.load_answer(first)
    drawn = []

    class Counting(SeededNoise):
        def for_query(self, query_id):
            drawn.append(query_id)
            return super().for_query(query_id)

    result = federate(
        settings, InProcess(nodes), run, expected=3, test=None, noise=Counting(99)
    ).to_json()
    assert before is not None
    assert result["epsilon"] == pytest.approx(10.0, rel=1e-6), "the first round counts as well"
    assert result["private"] is False
    assert len(set(drawn)) == len(drawn) == either.rounds - 1


def answers_of(folder, settings, transport):
    """What a run or its copy learns from, with the server's own noise."""
    run, learned = RunDirectory.resume(folder, settings), []
    run.save_answer = lambda query_id, answer: learned.append((query_id, answer["values"]))
    with contextlib.suppress(QuorumError):
        federate(settings, transport, run, expected=3, test=None)
    return learned


def test_a_copied_run_draws_the_same_noise(either, open_nodes, tmp_path):
    """Under `central` run and copy together release no more than the run alone."""
    settings, nodes = either.settings, open_nodes(either.settings)
    run = RunDirectory.create(tmp_path / "run", settings)
    assert stat.S_IMODE((run.path / "private" / "noise.key").stat().st_mode) == 0o600
    shutil.copytree(run.path, tmp_path / "copy")
    first = answers_of(run.path, settings, InProcess(nodes))
    again = answers_of(tmp_path / "copy", settings, InProcess(nodes))
    assert len(first) == either.rounds
    for (name, one), (same, two) in zip(first, again, strict=True):
        assert name == same
        assert torch.equal(one, two)


def test_a_copy_that_misses_a_holder_draws_other_noise_and_ends_there(
    settings, open_nodes, tmp_path
):
    """With the same noise the two sums would give away what that holder answered."""
    nodes, raw = open_nodes(settings), []
    run = RunDirectory.create(tmp_path / "run", settings)
    shutil.copytree(run.path, tmp_path / "copy")

    def heard(reply, attempt):
        raw.append(reply.values)
        return reply

    [(_, whole), *_] = answers_of(run.path, settings, Faulty(nodes, {("holder-2", 0): heard}))
    faulty = Faulty(nodes, {("holder-2", 0): silent})
    [(_, partial)] = answers_of(tmp_path / "copy", settings, faulty)
    std = Result.read(run.path).answers.noise_std
    rest = 3 * whole.double() - 2 * partial.double() - raw[0].double()
    # Two independent draws of 3 std each, in 30 numbers; rounding alone would leave 0.02 std.
    assert 0.4 < float(rest.std()) / (3 * math.sqrt(2) * std) < 1.8


def test_a_run_whose_noise_key_is_gone_asks_nobody(either, open_nodes, tmp_path):
    settings, nodes = either.settings, open_nodes(either.settings)
    run = RunDirectory.create(tmp_path / "run", settings)
    for spoil in (lambda key: key.write_bytes(b"short"), lambda key: key.unlink()):
        spoil(run.path / "private" / "noise.key")
        with pytest.raises(StorageError, match=r"noise\.key .*Restore private/"):
            federate(settings, InProcess(nodes), run, expected=3, test=None)
    assert not any(ledger_file(node).exists() for node in nodes)


def test_a_finished_run_needs_no_noise_key(either, open_nodes, tmp_path):
    settings, nodes = either.settings, open_nodes(either.settings)
    run = RunDirectory.create(tmp_path / "run", settings)
    first = federate(settings, InProcess(nodes), run, expected=3, test=None)
    shutil.rmtree(run.private)
    assert federate(settings, InProcess(nodes), run, expected=3, test=None).rows == first.rows


def test_a_run_that_was_killed_before_it_had_a_name_can_begin(settings, tmp_path, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fedtranscribe.results.run_directory.tomli_w.dumps", killed)
        with pytest.raises(KeyboardInterrupt):
            RunDirectory.create(tmp_path / "run", settings)
    assert (tmp_path / "run" / "private" / "noise.key").exists()
    assert RunDirectory.create(tmp_path / "run", settings).noise_key()
    (tmp_path / "run" / "config.toml").unlink()
    (tmp_path / "run" / "private" / "teachers").mkdir()
    with pytest.raises(StorageError, match="is not empty"):
        RunDirectory.create(tmp_path / "run", settings)


def test_the_log_of_a_round_says_what_was_answered(either, open_nodes, tmp_path, caplog):
    """Sums are no rows, and ε has no sixteen digits."""
    caplog.set_level("INFO", logger="fedtranscribe.rounds")
    settings = either.settings
    go(settings, InProcess(open_nodes(settings)), start(tmp_path / "run", settings))
    number, counted = either.rounds - 1, f"{either.rows}/{either.rows}"
    stage = "rows answered" if either.rows == 30 else "sums over records"
    assert f"{either.query_id(number)}: {stage} {counted}, ε = 10" in caplog.messages


def test_a_holder_that_comes_back_with_other_shards_ends_the_run(settings, open_nodes, tmp_path):
    nodes, run = open_nodes(settings), start(tmp_path / "run", settings)
    gone = {(f"holder-{i}", 1): silent for i in (0, 1)}
    with pytest.raises(QuorumError):
        go(settings, Faulty(nodes, gone), run)
    fewer = settings.model_copy(update={"shards": 1})
    others = [open_nodes(fewer, folder="fewer")[0], *nodes[1:]]
    with pytest.raises(ConfigError, match="holder-0 has other shards"):
        go(settings, InProcess(others), run)


def test_a_refusal_after_silence_may_have_been_charged(either, open_nodes, tmp_path):
    settings = either.settings

    def lost_then_refused(reply, attempt):
        return None if attempt == 1 else RefusalCode.POLICY

    nodes = open_nodes(settings)
    transport = Faulty(nodes, {("holder-1", 0): lost_then_refused})
    run = start(tmp_path / "run", settings)
    result = go(settings, transport, run)
    assert result["left"] == {"holder-1": "POLICY_REFUSED"}
    booked = [json.loads(x) for x in (run.path / "events.jsonl").read_text().splitlines()]
    assert {x["holder"]: x["release"]["rows"] for x in booked}[
        "holder-1"
    ] == either.rows // either.rounds


def test_a_ledger_that_went_back_is_noticed(either, open_nodes, tmp_path):
    settings = either.settings

    def rolled_back(reply, attempt):
        return RawAnswer(reply.query_id, reply.values, (1, "another"))

    transport = Faulty(open_nodes(settings), {("holder-1", either.rounds - 1): rolled_back})
    result = go(settings, transport, start(tmp_path / "run", settings))
    assert "went back" in result["left"]["holder-1"]


def test_labels_hide_no_holder_of_several_teachers(settings, open_nodes, tmp_path):
    settings = settings.model_copy(update={"privacy": "label", "noise": "local", "unit": "holder"})
    nodes = open_nodes(settings)
    with pytest.raises(ConfigError, match="moves all of its votes"):
        go(settings, InProcess(nodes), start(tmp_path / "run", settings))


def test_the_published_figure_stands_beside_and_is_no_guarantee(settings, open_nodes, tmp_path):
    result = go(settings, InProcess(open_nodes(settings)), start(tmp_path / "run", settings))
    assert result["published"]["epsilon"] != result["epsilon"]
    assert result["published"]["reason"]
    assert "server" in result["trust"]
