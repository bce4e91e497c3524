import itertools
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedtranscribe.data import ImageSet
from fedtranscribe.errors import BudgetExhaustedError, ConfigError, ModelMismatchError
from fedtranscribe.holder.answering import Holder
from fedtranscribe.holder.policy import HolderPolicy
from fedtranscribe.models.mixture import bands_of, frequencies, frequency_count
from fedtranscribe.noise.sources import SeededBits, SeededNoise
from fedtranscribe.privacy.budget import Budget
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.release_plan import NoisePlan
from fedtranscribe.privacy.units import Adjacency, NoiseMode, Unit
from fedtranscribe.questions.kinds import by_kind, query_from
from fedtranscribe.questions.mixture import (
    CONSTANT,
    Mixture,
    MixtureQuery,
    block_matrices,
    blocks_of,
    bound_of,
    rows_of,
)
from fedtranscribe.questions.moments import SUM_BITS
from fedtranscribe.questions.query_messages import Envelope, ask, read_query
from fedtranscribe.questions.question import Answer, Kind, is_sum
from tests.mechanisms_for import apart, local

D = frequency_count(1, 8)
CLASSES, K = 3, 4
QUIET, PRIVATE = local(1e-6), local(50.0)


def records(ids: tuple[str, ...] | None = None, n: int = 6) -> ImageSet:
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (n, 1, 8, 8), generator=rng, dtype=torch.uint8)
    return ImageSet("tiny", "tiny", images, torch.arange(n) % CLASSES, CLASSES, ids)


def query(
    name: str = "q", *, d: int = D, cuts: int = 1, classes: int = CLASSES, rest: float = 0.0
) -> MixtureQuery:
    rng = torch.Generator().manual_seed(1)
    mapping = torch.linalg.qr(torch.randn(d, K, generator=rng)).Q
    sides = torch.randn(classes, cuts, K + 1, generator=rng)
    centre = torch.full((d,), 0.1)
    scale = 1.0 if rest else 0.4
    bands = int(bands_of(1, 8)[-1]) + 1 if rest else 0
    return MixtureQuery(name, Kind.MIXTURE, centre, mapping * scale, sides, rest, bands)


FORMS = {
    "one block": query(cuts=0, classes=0),
    "a block per class": query(cuts=0),
    "components": query(cuts=2),
    "energies": query(cuts=0, classes=0, rest=0.3),
}


@pytest.fixture
def ledger(tmp_path: Path):
    budget = Budget(1.0, 1e-5, Unit.RECORD, Adjacency.ZERO_OUT)
    with Ledger.open(tmp_path / "ledger.sqlite", "tiny", budget) as opened:
        yield opened


def holder(ledger: Ledger, images: ImageSet | None = None, noise=None, bits=None) -> Holder:
    images = images or records()
    statistics = by_kind([Mixture(images)])
    return Holder(
        statistics, ledger, "run", positional_ids=images.positional, noise=noise, bits=bits
    )


def told(images: ImageSet, asked: MixtureQuery, path: Path) -> torch.Tensor:
    """An answer with hardly any noise."""
    ample = Budget(1e13, 1e-5, Unit.RECORD, Adjacency.ZERO_OUT)
    with Ledger.open(path, "tiny", ample) as open_ledger:
        said = holder(open_ledger, images, SeededNoise(0)).answer(asked, QUIET)
    assert isinstance(said, Answer)
    return said.values[0]


def test_the_answer_is_the_sum_over_records_and_noise(tmp_path: Path):
    images, asked = records(), FORMS["components"]
    matrices = block_matrices(told(images, asked, tmp_path / "a.sqlite"), K + 1, asked.blocks)
    found = frequencies(images.images) - asked.centre.double()
    rows = rows_of(found, asked.map.double())
    where = blocks_of(rows, images.labels, asked.cuts.double())
    assert set((where // 4).tolist()) == {0, 1, 2}, "labels come first"
    assert len(where.unique()) > CLASSES, "cuts tell blocks apart"
    for block in range(asked.blocks):
        here = rows[where == block]
        torch.testing.assert_close(matrices[block], here.T @ here, atol=5e-3, rtol=0)
    # The constant counts records, whatever their length.
    counts = matrices[:, -1, -1] * (1 + CONSTANT**2) / CONSTANT**2
    expected = torch.bincount(where, minlength=asked.blocks).double()
    torch.testing.assert_close(counts, expected, atol=0.05, rtol=0)


def test_energies_are_of_what_the_axes_leave_band_by_band(tmp_path: Path):
    images, asked = records(), FORMS["energies"]
    said = told(images, asked, tmp_path / "a.sqlite")
    found = frequencies(images.images) - asked.centre.double()
    axes = asked.map.double()
    rest = 0.3 * (found - found @ axes @ axes.T)
    rest = rest / rest.norm(dim=1, keepdim=True).clamp_min(1)
    expected = torch.zeros(asked.bands).double()
    expected.index_add_(0, bands_of(1, 8), rest.square().sum(0))
    torch.testing.assert_close(said, expected, atol=5e-3, rtol=0)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("ids", [None, ("a", "a", "b", "c", "d", "e")])
def test_one_record_moves_the_answer_no_further_than_the_sensitivity(
    tmp_path: Path, ids: tuple[str, ...] | None, form: str
):
    images, asked = records(ids), FORMS[form]
    bound = bound_of(asked)
    moves = bound.moves[Unit.RECORD]
    here = told(images, asked, tmp_path / "here.sqlite")
    inverted, labels = images.images.clone(), images.labels.clone()
    inverted[0] = 255 - inverted[0]
    labels[0] = 2
    for name, pixels, classes in (
        ("image", inverted, images.labels),
        ("both", inverted, labels),
    ):
        there = told(replace(images, pixels=pixels, labels=classes), asked, tmp_path / name)
        assert 0.01 < apart(here, there, bound) <= moves[Adjacency.REPLACE]
    gone = [i for i, who in enumerate(images.ids) if who != images.ids[0]]
    without = told(images.subset(gone), asked, tmp_path / "without.sqlite")
    assert 0.05 < apart(here, without, bound) <= moves[Adjacency.ADD_REMOVE] * (1 + 1e-4)


@pytest.mark.parametrize("form", FORMS)
def test_a_record_adds_the_same_wherever_it_stands(form: str):
    images = records(tuple(map(str, range(700))), n=700)
    asked = FORMS[form]
    whole = Mixture(images).values(asked)
    order = torch.randperm(700, generator=torch.Generator().manual_seed(2)).tolist()
    assert torch.equal(Mixture(images.subset(order)).values(asked), whole)
    shares = [Mixture(images.subset(order[a:b])).values(asked) for a, b in ((0, 3), (3, 700))]
    assert torch.equal(shares[0] + shares[1], whole), "nor does the split among holders matter"


def test_a_block_follows_from_whole_numbers_not_from_how_a_sum_was_rounded():
    # Entries that cancel exactly, weighed equally: in floats the order of adding decides.
    row = torch.tensor([[0.1, 0.2, 0.3, -0.6, 0.0]]).double()
    cuts = torch.ones(1, 1, 5).double()
    label = torch.tensor([0])
    sides = {
        int(blocks_of(row[:, order], label, cuts[..., order])[0])
        for order in map(list, itertools.permutations(range(5)))
    }
    assert len(sides) == 1


def test_a_query_is_charged_once_and_replayed(ledger: Ledger):
    asked = holder(ledger)
    first, again = (asked.answer(FORMS["components"], PRIVATE) for _ in range(2))
    assert torch.equal(first.values, again.values)
    assert len(ledger.releases("run")) == 1
    assert ledger.releases("run")[0].mechanism == "noisy-block-products"


def test_a_spent_budget_is_noticed_before_a_record_is_touched(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
):
    def never(*_: object) -> torch.Tensor:
        raise AssertionError("looked at a record")

    monkeypatch.setattr(Mixture, "values", never)
    with pytest.raises(BudgetExhaustedError):
        holder(ledger).answer(query(), local(0.1))


def test_what_does_not_fit_is_refused_before_it_is_booked(ledger: Ledger):
    asked = holder(ledger)
    with pytest.raises(ModelMismatchError, match="centre of 64 frequencies"):
        asked.answer(query(d=D + 1), PRIVATE)
    with pytest.raises(ModelMismatchError, match="blocks of 3 classes, got 5"):
        asked.answer(query(classes=5), PRIVATE)
    with pytest.raises(ModelMismatchError, match="Expected 7 bands, got 6"):
        asked.answer(replace(FORMS["energies"], bands=6), PRIVATE)
    assert not ledger.releases("run")


@pytest.mark.parametrize(
    "shapes",
    [
        {"centre": (D,), "map": (D, K), "cuts": (CLASSES, 1, K)},
        {"centre": (D,), "map": (D + 1, K), "cuts": (CLASSES, 1, K + 1)},
        {"centre": (D,), "map": (D, K), "cuts": (CLASSES + 1, 1, K + 1)},
        {"centre": (D,), "map": (D, K), "cuts": (CLASSES, 9, K + 1)},
        {"centre": (D,), "map": (D, K), "cuts": (0, 10**15, K + 1)},
    ],
    ids=str,
)
def test_shapes_are_held_against_the_records_before_anything_is_made_of_them(shapes: dict):
    statistic = Mixture(records())
    right = {"centre": (D,), "map": (D, K), "cuts": (CLASSES, 1, K + 1)}
    assert statistic.expect(right, {}) == 1
    with pytest.raises(ConfigError, match="Expected"):
        statistic.expect(shapes, {})


@pytest.mark.parametrize("form", FORMS)
def test_a_summand_is_whole_numbers_with_this_holders_share_of_the_noise(tmp_path: Path, form: str):
    asked = FORMS[form]
    ample = Budget(1e6, 1e-5, Unit.RECORD, Adjacency.ZERO_OUT)
    plan = NoisePlan(NoiseMode.SECAGG, 0.01, 3, 1, 0)
    with Ledger.open(tmp_path / "masked.sqlite", "tiny", ample) as open_ledger:
        said = holder(open_ledger, bits=SeededBits(4)).summand(asked, plan).values[0]
    assert said.dtype is torch.int64
    exact = Mixture(records()).values(asked)[0]
    counts = bound_of(asked).counts
    weights = torch.ones(len(said)) if counts is None else counts
    off = (said - exact).double() * 2.0**-SUM_BITS * weights.sqrt()
    # Any two of the three holders' shares are the noise that was asked for; 7 numbers tell less.
    rel = 0.35 if len(off) > 10 else 0.6
    assert float(off.std()) == pytest.approx(3 * plan.strength / math.sqrt(2), rel=rel)


@pytest.mark.parametrize("form", FORMS)
def test_a_query_arrives_as_it_was_sent(form: str):
    sent = ask(Envelope(FORMS[form], PRIVATE, "run"))
    statistic = Mixture(records())
    arrived = read_query(sent, lambda kind, shapes, terms: statistic.expect(shapes, terms))
    assert arrived.query.digest() == FORMS[form].digest()
    kept = query_from(**FORMS[form].to_dict())
    assert kept.digest() == FORMS[form].digest()


def test_a_policy_for_whole_holders_allows_no_sums():
    policy = HolderPolicy(epsilon=1.0, unit=Unit.HOLDER)
    assert not any(is_sum(kind) for kind in policy.answered)
    assert {kind for kind in HolderPolicy(epsilon=1.0).answered if is_sum(kind)} == {
        Kind.MOMENTS,
        Kind.MIXTURE,
        Kind.DESCENT,
        Kind.CLASS_MOMENTS,
    }


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"centre": torch.zeros(D, 1)}, r"a centre \[d\] and a map"),
        ({"centre": torch.zeros(D + 1)}, r"map \[65, k\]"),
        ({"map": torch.zeros(D, 0)}, r"map \[64, k\] with k <= 64"),
        ({"cuts": torch.zeros(CLASSES, 1, K)}, r"cuts \[classes, j, 5\]"),
        ({"cuts": torch.zeros(CLASSES, 9, K + 1)}, "at most 8 cuts"),
        ({"cuts": torch.zeros(0, 1, K + 1)}, "none without classes"),
        ({"centre": torch.full((D,), float("nan"))}, "finite centre"),
        ({"rest": -1.0}, "rest=-1.0"),
        ({"rest": 1}, "rest=1 as"),
        ({"rest": float("inf")}, "rest=inf"),
        ({"bands": 1}, "bands=1 from 0 to 0"),
        ({"rest": 0.5}, "bands=0 from 1 to 64"),
        ({"rest": 0.5, "bands": 65}, "bands=65 from 1 to 64"),
        ({"rest": 0.5, "bands": True}, "bands=True"),
    ],
)
def test_queries_that_are_none_are_refused(change: dict, why: str):
    with pytest.raises(ConfigError, match=why):
        replace(query(), **change)
