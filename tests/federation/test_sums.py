"""Sums over records in a federation: the student is that of the pooled records."""

import json
from pathlib import Path

import pytest
import torch

from fedtranscribe.data.partitions import holder_name
from fedtranscribe.errors import ConfigError, QuorumError
from fedtranscribe.holder.policy import HolderPolicy
from fedtranscribe.noise.sources import SeededNoise
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.release_plan import NoisePlan
from fedtranscribe.privacy.units import Adjacency, NoiseMode, Unit
from fedtranscribe.questions.moments import SUM_BITS, Moments, MomentsQuery
from fedtranscribe.questions.question import Kind
from fedtranscribe.results.run_directory import GENERATOR, STUDENT, RunDirectory
from fedtranscribe.runs.simulation import partitions
from fedtranscribe.runs.transports import InProcess
from tests.federation.runs import go, ledger_file, start

MODES = [mode.value for mode in NoiseMode]


@pytest.fixture
def sums(settings):
    """As `settings`, with a student that moments can teach, and no mixture."""
    chosen = {"student": None, "noise": "local", "descent_rounds": 0, "mixture_share": 0}
    return settings.model_copy(update=chosen)


def booked(ledger: Ledger) -> float:
    return ledger.total(1e-5, Unit.RECORD, Adjacency.ZERO_OUT).epsilon


@pytest.mark.long
@pytest.mark.parametrize("noise", MODES)
def test_a_run_on_sums_spends_what_was_asked_for(sums, split, open_nodes, tmp_path, noise, caplog):
    caplog.set_level("INFO", "fedtranscribe")
    settings = sums.model_copy(update={"noise": noise})
    nodes = open_nodes(settings)
    result = go(settings, InProcess(nodes), start(tmp_path / "run", settings), split)
    assert (result["privacy"], result["start"]) == ("moments", "moments")
    assert 9.9 < result["epsilon"] <= 10.0 * (1 + 1e-6)
    assert result["units"]["holder"] is None
    assert result["answered_rounds"] == {holder_name(i): 2 for i in range(3)}
    for node in nodes:
        with Ledger.open_read_only(ledger_file(node)) as ledger:
            assert [release.rows for release in ledger.releases("run-fixed")] == [1, 1]
            assert 9.9 < booked(ledger) <= 10.0 * (1 + 1e-6)
    # Teachers get nothing, and are not trained.
    assert "no teacher is trained" in caplog.text
    assert not list(tmp_path.rglob("teachers"))


def query_for(settings, split) -> MomentsQuery:
    statistic = Moments(split.train, torch.device("cpu"))
    raw = statistic.rows.numbers("scatter")
    mapped = torch.randn(raw, 20, generator=torch.Generator().manual_seed(1)) / raw
    return MomentsQuery("q", Kind.MOMENTS, torch.zeros(raw), mapped, "scatter", split.train.classes)


def test_every_split_gives_the_same_sum_bit_for_bit(sums, split):
    query = query_for(sums, split)
    whole = Moments(split.train, torch.device("cpu")).values(query)
    assert whole.dtype is torch.int64
    for alpha, holders in ((0.1, 3), (100.0, 5)):
        settings = sums.model_copy(update={"alpha": alpha, "holders": holders, "shards": 1})
        parts = partitions(settings, split.train)
        assert len({len(part) for part in parts}) > 1 or alpha > 1
        told = [Moments(part, torch.device("cpu")).values(query) for part in parts]
        assert torch.equal(torch.stack(told).sum(0), whole)


def test_masked_shares_are_of_exact_sums_and_count_on_all_but_the_tolerated(
    sums, split, open_nodes
):
    settings = sums.model_copy(update={"noise": "secagg"})
    nodes, query = open_nodes(settings), query_for(sums, split)
    plan = NoisePlan(NoiseMode.SECAGG, 0.5, 3, 1, 0)
    shares = [node._statistics[Kind.MOMENTS].mechanism(query, plan) for node in nodes]
    exact = sum(node._statistics[Kind.MOMENTS].values(query) for node in nodes)
    whole = Moments(split.train, torch.device("cpu")).values(query)
    assert torch.equal(exact, whole)
    # Two shares of three are counted on, so three bring half as much variance again.
    assert shares[0].own_variance == pytest.approx((0.5 * 3 * 2**SUM_BITS) ** 2 / 2, rel=1e-9)


class SameForAll(SeededNoise):
    """Noise that does not depend on how the holders answered."""

    def for_query(self, query_id: str) -> SeededNoise:
        return SeededNoise(1)


@pytest.mark.long
def test_the_student_is_that_of_the_pooled_records_whatever_the_skew(
    sums, split, open_nodes, tmp_path
):
    students = {}
    for alpha, holders in ((0.1, 3), (100.0, 3), (1.0, 1)):
        settings = sums.model_copy(
            update={"alpha": alpha, "holders": holders, "noise": "central", "with_generator": False}
        )
        name = f"{alpha:g}-{holders}"
        run = start(tmp_path / name, settings)
        nodes = open_nodes(settings, folder=f"of-{name}")
        go(settings, InProcess(nodes), run, split, noise=SameForAll(1))
        students[name] = (tmp_path / name / "student.safetensors").read_bytes()
    # The noise is the server's own, and calibrated to the sum: the same bytes.
    assert len(set(students.values())) == 1


@pytest.mark.long
def test_a_generator_left_out_can_be_made_later_and_nobody_is_asked(
    sums, split, open_nodes, tmp_path
):
    short = sums.model_copy(update={"with_generator": False}).as_stored()
    nodes = open_nodes(short)
    go(short, InProcess(nodes), start(tmp_path / "run", short), split)
    made = {name: (tmp_path / "run" / name).read_bytes() for name in (STUDENT, "metrics.json")}
    assert not (tmp_path / "run" / GENERATOR).exists()

    class Gone(InProcess):
        def exchange(self, *_):
            raise AssertionError("nobody is to be asked")

        capabilities = exchange

    again = short.model_copy(update={"with_generator": True, "resume": True})
    run = RunDirectory.resume(tmp_path / "run", again)
    assert run.lacks_generator(wanted=True)
    go(again, Gone(nodes), run, split)
    assert (tmp_path / "run" / GENERATOR).exists()
    assert not run.lacks_generator(wanted=True)
    assert all((tmp_path / "run" / name).read_bytes() == was for name, was in made.items())


@pytest.mark.long
@pytest.mark.parametrize("noise", MODES)
def test_what_a_stopped_run_has_cost_is_not_changed_by_its_generator(
    sums, split, open_nodes, tmp_path, noise
):
    """Budgets end it after one question; later they are raised, and its generator is made."""
    short = sums.model_copy(
        update={"noise": noise, "with_generator": False, "on_exhausted": "stop", "retries": 0}
    ).as_stored()
    few = HolderPolicy(
        epsilon=7.0, noise=NoiseMode(noise), dropouts=1, colluders=0, kinds=tuple(Kind)
    )
    nodes = open_nodes(short, policies=dict.fromkeys(range(3), few))
    result = go(short, InProcess(nodes), start(tmp_path / "run", short), split)
    assert result["stopped"] is not None
    assert result["epsilon"] < 7.0
    student = (tmp_path / "run" / STUDENT).read_bytes()

    class Gone(InProcess):
        def exchange(self, *_):
            raise AssertionError("nobody is to be asked")

        capabilities = ask = exchange

    again = short.model_copy(update={"with_generator": True, "resume": True})
    told = (tmp_path / "run" / "metrics.json").read_bytes()
    go(again, Gone(nodes), RunDirectory.resume(tmp_path / "run", again), split)
    assert (tmp_path / "run" / GENERATOR).exists()
    assert (tmp_path / "run" / STUDENT).read_bytes() == student
    assert (tmp_path / "run" / "metrics.json").read_bytes() == told


@pytest.mark.long
@pytest.mark.parametrize("noise", MODES)
def test_an_interrupted_run_pays_nothing_twice(sums, split, open_nodes, tmp_path, noise):
    settings = sums.model_copy(update={"noise": noise, "retries": 0, "quorum": 3})
    nodes, run = open_nodes(settings), start(tmp_path / "run", settings)

    class Silent(InProcess):
        def exchange(self, message_type, holders, make):
            return (
                {}
                if self.mute(make(0, holders[0]))
                else super().exchange(message_type, holders, make)
            )

        def ask(self, holders, query, plan, name):
            return {} if query.id.endswith("-1") else super().ask(holders, query, plan, name)

        def mute(self, message):
            return str(message.terms.get("query-id", "")).endswith("-1")

    with pytest.raises(QuorumError):
        go(settings, Silent(nodes), run, split)
    result = go(settings, InProcess(nodes), run, split)
    assert result["epsilon"] <= 10.0 * (1 + 1e-6)
    for node in nodes:
        with Ledger.open_read_only(ledger_file(node)) as ledger:
            assert [release.rows for release in ledger.releases("run-fixed")] == [1, 1]


@pytest.mark.long
def test_teachers_get_the_share_that_is_said_and_all_of_it_adds_up(
    sums, split, open_nodes, tmp_path
):
    for noise in MODES:
        settings = sums.model_copy(
            update={"noise": noise, "teachers_share": 0.25, "colluders": 0, "dropouts": 1}
        )
        nodes = open_nodes(settings, folder=f"of-{noise}")
        result = go(settings, InProcess(nodes), start(tmp_path / noise, settings), split)
        assert (result["privacy"], result["start"], result["rows"]) == ("vote", "moments", 32)
        assert 9.9 < result["epsilon"] <= 10.0 * (1 + 1e-6)
        for node in nodes:
            with Ledger.open_read_only(ledger_file(node)) as ledger:
                assert 9.9 < booked(ledger) <= 10.0 * (1 + 1e-6)
        assert len(list((tmp_path / f"of-{noise}").rglob("teachers"))) == 3
        assert len(list((tmp_path / noise).glob("*.safetensors"))) == 2


@pytest.mark.long
def test_a_run_goes_on_between_sums_and_teachers(sums, split, open_nodes, tmp_path):
    settings = sums.model_copy(update={"teachers_share": 0.5, "retries": 0, "quorum": 3})

    class SilentLater(InProcess):
        def ask(self, holders, query, plan, name):
            late = query.id.endswith("000001")
            return {} if late else super().ask(holders, query, plan, name)

    whole = start(tmp_path / "whole", settings)
    go(settings, InProcess(open_nodes(settings, folder="a")), whole, split)
    nodes, run = open_nodes(settings, folder="b"), start(tmp_path / "run", settings)
    with pytest.raises(QuorumError):
        go(settings, SilentLater(nodes), run, split)
    go(settings, InProcess(nodes), run, split)
    for name in ("student.safetensors", "generator.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


# ---------------------------------------------------------------- whether there is a start


def without_sums(settings) -> HolderPolicy:
    return HolderPolicy(epsilon=20.0, kinds=(Kind.VOTE,))


def test_one_holder_without_sums_leaves_the_paper_s_algorithm(
    sums, split, open_nodes, tmp_path, caplog
):
    caplog.set_level("INFO", "fedtranscribe")
    nodes = open_nodes(sums, policies={1: without_sums(sums)})
    result = go(sums, InProcess(nodes), start(tmp_path / "run", sums), split)
    assert (result["privacy"], result["start"]) == ("vote", None)
    assert len(result["answered_rounds"]) == 3
    assert "no sums over the records are asked first: holder holder-1 allows no" in caplog.text


@pytest.mark.long
def test_where_a_start_was_asked_for_that_holder_is_left_out(
    sums, split, open_nodes, tmp_path, caplog
):
    settings = sums.model_copy(update={"start": "moments"})
    nodes = open_nodes(settings, policies={1: without_sums(sums)})
    result = go(settings, InProcess(nodes), start(tmp_path / "run", settings), split)
    assert set(result["answered_rounds"]) == {"holder-0", "holder-2"}
    assert "holder holder-1 does not take part: it gives no moments answers" in caplog.text
    strict = settings.model_copy(update={"quorum": 3})
    with pytest.raises(QuorumError, match="Only 2 of 3"):
        go(strict, InProcess(nodes), start(tmp_path / "strict", strict), split)


@pytest.mark.parametrize(
    ("settings_of", "why"),
    [({"unit": "holder"}, "unit=holder"), ({"student": "cnn-small"}, "student=cnn-small")],
)
def test_a_start_that_does_not_fit_is_refused_or_left_out(
    sums, split, open_nodes, tmp_path, settings_of, why, caplog
):
    caplog.set_level("INFO", "fedtranscribe")
    settings = sums.model_copy(update=settings_of)
    result = go(settings, InProcess(open_nodes(settings)), start(tmp_path / "run", settings), split)
    assert result["start"] is None
    assert f"no sums over the records are asked first: {why}" in caplog.text
    asked = settings.model_copy(update={"start": "moments"})
    with pytest.raises(ConfigError, match=f"start=moments cannot be combined with {why}"):
        go(asked, InProcess(open_nodes(asked)), start(tmp_path / "asked", asked), split)


@pytest.mark.long
def test_the_roster_decides_a_resumed_run(sums, split, open_nodes, tmp_path: Path):
    run = start(tmp_path / "run", sums)
    go(sums, InProcess(open_nodes(sums)), run, split)
    told = json.loads((tmp_path / "run" / "roster.json").read_text())
    assert {facts["records"] for facts in told.values()} == {
        len(part) for part in partitions(sums, split.train)
    }
