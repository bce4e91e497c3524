"""Rounds of gradients over all holders' records, under every noise."""

from dataclasses import replace

import pytest

from fedtranscribe.errors import ConfigError, QuorumError
from fedtranscribe.holder.policy import HolderPolicy
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.units import Adjacency, NoiseMode, Unit
from fedtranscribe.questions.question import Kind
from fedtranscribe.results.run_directory import STUDENT
from fedtranscribe.runs.transports import InProcess
from tests.federation.runs import go, ledger_file, start

MODES = [mode.value for mode in NoiseMode]
ROUNDS = 2


@pytest.fixture
def descending(settings):
    """As `settings`, with a student from moments and two rounds of gradients."""
    chosen = {"student": None, "retries": 0, "quorum": 3, "mixture_share": 0.0}
    return settings.model_copy(update={**chosen, "descent_rounds": ROUNDS})


@pytest.mark.long
@pytest.mark.parametrize("noise", MODES)
def test_holders_pay_once_and_the_run_costs_what_was_asked(
    descending, split, open_nodes, tmp_path, noise
):
    settings = descending.model_copy(update={"noise": noise})
    nodes = open_nodes(settings)
    result = go(settings, InProcess(nodes), start(tmp_path / "run", settings), split)
    assert 9.9 < result["epsilon"] <= 10.0 * (1 + 1e-6)
    assert (result["rows"], len(result["sums_stds"])) == (2 + ROUNDS, 2 + ROUNDS)
    for node in nodes:
        with Ledger.open_read_only(ledger_file(node)) as ledger:
            assert len(ledger.releases("run-fixed")) == 2 + ROUNDS
            total = ledger.total(1e-5, Unit.RECORD, Adjacency.ZERO_OUT).epsilon
            assert 9.9 < total <= 10.0 * (1 + 1e-6)


@pytest.mark.long
@pytest.mark.parametrize("noise", MODES)
def test_a_run_goes_on_between_two_rounds_and_pays_nothing_twice(
    descending, split, open_nodes, tmp_path, noise
):
    settings = descending.model_copy(update={"noise": noise})
    nodes, run = open_nodes(settings), start(tmp_path / "run", settings)

    class Silent(InProcess):
        def exchange(self, message_type, holders, make):
            asked = str(make(0, holders[0]).terms.get("query-id", ""))
            stuck = asked.endswith("descent-1")
            return {} if stuck else super().exchange(message_type, holders, make)

        def ask(self, holders, query, plan, run):
            stuck = query.id.endswith("descent-1")
            return {} if stuck else super().ask(holders, query, plan, run)

    with pytest.raises(QuorumError):
        go(settings, Silent(nodes), run, split)
    result = go(settings, InProcess(nodes), run, split)
    assert result["epsilon"] <= 10.0 * (1 + 1e-6)
    for node in nodes:
        with Ledger.open_read_only(ledger_file(node)) as ledger:
            assert len(ledger.releases("run-fixed")) == 2 + ROUNDS
    if noise != "secagg":  # where a round that was begun again has noise of its own
        whole = start(tmp_path / "whole", settings)
        go(settings, InProcess(open_nodes(settings, folder="again")), whole, split)
        made = [(tmp_path / name / STUDENT).read_bytes() for name in ("run", "whole")]
        assert made[0] == made[1]


def test_a_holder_that_allows_no_gradients_is_named_before_anything_is_spent(
    descending, split, open_nodes, tmp_path
):
    only = HolderPolicy(epsilon=20.0, kinds=(Kind.VOTE, Kind.MOMENTS))
    settings = descending.model_copy(update={"noise": "local"})
    nodes = open_nodes(settings, policies={1: only})
    with pytest.raises(ConfigError, match="holder-1 allows no gradients"):
        go(settings, InProcess(nodes), start(tmp_path / "run", settings), split)
    assert not any(ledger_file(node).exists() for node in nodes)


def test_held_out_images_of_more_classes_are_refused_before_anything_is_spent(
    descending, split, open_nodes, tmp_path
):
    settings = descending.model_copy(update={"noise": "local"})
    many = split.test.classes + 1
    other = replace(
        split, train=replace(split.train, classes=many), test=replace(split.test, classes=many)
    )
    nodes = open_nodes(settings)
    with pytest.raises(ConfigError, match="held-out images of at most"):
        go(settings, InProcess(nodes), start(tmp_path / "run", settings), other)
    assert not any(ledger_file(node).exists() for node in nodes)
