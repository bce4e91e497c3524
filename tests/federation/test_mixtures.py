"""A mixture from all holders' records, under every noise."""

import pytest

from fedtranscribe.errors import QuorumError
from fedtranscribe.holder.policy import HolderPolicy
from fedtranscribe.models.mixture import GaussianMixture
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.units import Adjacency, NoiseMode, Unit
from fedtranscribe.questions.question import Kind
from fedtranscribe.results.run_directory import GENERATOR, STUDENT
from fedtranscribe.runs.finished import FinishedRun
from fedtranscribe.runs.transports import InProcess
from tests.federation.runs import go, ledger_file, start

MODES = [mode.value for mode in NoiseMode]


@pytest.fixture
def shown(settings):
    """As `settings`, with a student and a mixture from sums."""
    chosen = {"student": None, "retries": 0, "quorum": 3, "descent_rounds": 0}
    return settings.model_copy(update=chosen)


@pytest.mark.long
@pytest.mark.parametrize("noise", MODES)
def test_holders_pay_once_for_both_and_the_server_gets_a_mixture(
    shown, split, open_nodes, tmp_path, noise
):
    settings = shown.model_copy(update={"noise": noise})
    nodes = open_nodes(settings)
    result = go(settings, InProcess(nodes), start(tmp_path / "run", settings), split)
    assert 9.9 < result["epsilon"] <= 10.0 * (1 + 1e-6)
    assert (result["rows"], result["mixture"]["share"]) == (5, 0.3)
    for node in nodes:
        with Ledger.open_read_only(ledger_file(node)) as ledger:
            assert len(ledger.releases("run-fixed")) == 5
            total = ledger.total(1e-5, Unit.RECORD, Adjacency.ZERO_OUT).epsilon
            assert 9.9 < total <= 10.0 * (1 + 1e-6)
    run = FinishedRun.open(tmp_path / "run")
    assert isinstance(run.generator, GaussianMixture)
    assert run.synthesise(20)[0].shape == (20, 1, 28, 28)


@pytest.mark.long
@pytest.mark.parametrize("noise", MODES)
@pytest.mark.parametrize("stuck", [2, 4])
def test_a_run_goes_on_within_its_mixture_and_pays_nothing_twice(
    shown, split, open_nodes, tmp_path, noise, stuck
):
    settings = shown.model_copy(update={"noise": noise})
    nodes, run = open_nodes(settings), start(tmp_path / "run", settings)
    name = f"mixture-{stuck - 2}"

    class Silent(InProcess):
        def exchange(self, message_type, holders, make):
            asked = str(make(0, holders[0]).terms.get("query-id", ""))
            return {} if asked.endswith(name) else super().exchange(message_type, holders, make)

        def ask(self, holders, query, plan, run):
            return {} if query.id.endswith(name) else super().ask(holders, query, plan, run)

    with pytest.raises(QuorumError):
        go(settings, Silent(nodes), run, split)
    assert not (tmp_path / "run" / STUDENT).exists()
    result = go(settings, InProcess(nodes), run, split)
    assert result["epsilon"] <= 10.0 * (1 + 1e-6)
    for node in nodes:
        with Ledger.open_read_only(ledger_file(node)) as ledger:
            assert len(ledger.releases("run-fixed")) == 5
    if noise != "secagg":  # where a round that was begun again has noise of its own
        whole = start(tmp_path / "whole", settings)
        go(settings, InProcess(open_nodes(settings, folder="again")), whole, split)
        for file in (STUDENT, GENERATOR):
            made = (tmp_path / "run" / file).read_bytes()
            assert made == (tmp_path / "whole" / file).read_bytes()


@pytest.mark.long
@pytest.mark.parametrize("noise", MODES)
def test_class_moments_of_all_holders_sharpen_it_under_the_same_budget(
    shown, split, open_nodes, tmp_path, noise, monkeypatch
):
    for module in ("rounds.sums_planning", "methods.sharpening"):
        monkeypatch.setattr(f"fedtranscribe.{module}.WORTH_SHARPENING", 0.0)
    settings = shown.model_copy(update={"noise": noise})
    nodes = open_nodes(settings)
    result = go(settings, InProcess(nodes), start(tmp_path / "run", settings), split)
    assert (result["rows"], result["mixture"]["sharpened"]) == (6, True)
    for node in nodes:
        with Ledger.open_read_only(ledger_file(node)) as ledger:
            assert len(ledger.releases("run-fixed")) == 6
            total = ledger.total(1e-5, Unit.RECORD, Adjacency.ZERO_OUT).epsilon
            assert 9.9 < total <= 10.0 * (1 + 1e-6)
    generator = FinishedRun.open(tmp_path / "run").generator
    assert isinstance(generator, GaussianMixture)
    assert generator.sharpener is not None


@pytest.mark.long
def test_a_holder_that_allows_no_class_moments_leaves_the_mixture_as_it_is(
    shown, split, open_nodes, tmp_path, caplog
):
    caplog.set_level("INFO", "fedtranscribe")
    only = HolderPolicy(epsilon=20.0, kinds=(Kind.MOMENTS, Kind.MIXTURE))
    settings = shown.model_copy(update={"noise": "local"})
    nodes = open_nodes(settings, policies={1: only})
    result = go(settings, InProcess(nodes), start(tmp_path / "run", settings), split)
    assert (result["mixture"]["sharpened"], result["rows"]) == (False, 5)
    assert "its images are not sharpened: holder holder-1 allows no class moments" in caplog.text


@pytest.mark.long
def test_one_holder_without_mixtures_leaves_a_network(shown, split, open_nodes, tmp_path, caplog):
    caplog.set_level("INFO", "fedtranscribe")
    only = HolderPolicy(epsilon=20.0, kinds=(Kind.VOTE, Kind.MOMENTS))
    settings = shown.model_copy(update={"noise": "local"})
    nodes = open_nodes(settings, policies={1: only})
    result = go(settings, InProcess(nodes), start(tmp_path / "run", settings), split)
    assert (result["mixture"], result["rows"]) == (None, 2)
    assert "no mixture is asked for: holder holder-1 does not allow it" in caplog.text
    assert not isinstance(FinishedRun.open(tmp_path / "run").generator, GaussianMixture)
