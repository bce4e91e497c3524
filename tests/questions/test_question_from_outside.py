"""A kind of question that fedtranscribe does not know: that of docs/question.md, as printed."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedtranscribe.config import TranscribeSettings, build
from fedtranscribe.errors import ConfigError, QuorumError
from fedtranscribe.holder.policy import HolderPolicy
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.release_plan import NoisePlan
from fedtranscribe.privacy.units import Adjacency, NoiseMode, Unit
from fedtranscribe.questions import kinds
from fedtranscribe.questions.kinds import query_from, register
from fedtranscribe.questions.refusals import Refusal
from fedtranscribe.results.run_directory import STUDENT
from fedtranscribe.runs.preparation import prepare
from fedtranscribe.runs.transcription import transcribe
from fedtranscribe.runs.transports import InProcess
from tests.conftest import TINY_DPSD
from tests.docs import doc_pages as pages
from tests.federation.conftest import no_figures, open_nodes, settings, split  # noqa: F401
from tests.federation.runs import go, ledger_file, start

PAGE = pages.DOCS / "question.md"
NAME = "class-counts"


@pytest.fixture(scope="module")
def code() -> dict[str, Any]:
    """What the page's file defines."""
    (file,) = [b for b in pages.blocks(PAGE, "python") if b.title == "class_counts.py"]
    namespace: dict[str, Any] = {"__name__": "class_counts"}
    exec(compile(file.text, str(PAGE), "exec"), namespace)
    return namespace


@pytest.fixture(autouse=True)
def known(code: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "_REGISTERED", {})
    register(code["QUESTION"])


def counted(images) -> torch.Tensor:
    return torch.bincount(images.labels, minlength=images.classes).double()


def booked(path: Path) -> list[str]:
    with Ledger.open_read_only(path) as ledger:
        return [release.mechanism for release in ledger.releases()]


def test_the_question_takes_eighty_lines():
    (file,) = [b for b in pages.blocks(PAGE, "python") if b.title == "class_counts.py"]
    assert len(file.text.splitlines()) <= 80


def test_no_record_moves_the_answer_further_than_its_bound(code, tiny_data, split):  # noqa: F811
    """Ids with several records included: their weights add up to one."""
    bound = code["counts_bound"](3)
    images, query = split.train, code["CountsQuery"]("q", NAME, 3)
    rng, furthest = np.random.default_rng(0), {Adjacency.ZERO_OUT: 0.0, Adjacency.REPLACE: 0.0}
    for ids in (images.ids, [f"p{i // 4}" for i in range(len(images))]):
        for _ in range(50):
            one = ids[int(rng.integers(len(ids)))]
            mine = torch.tensor([name == one for name in ids])
            others = SimpleNamespace(classes=3, labels=images.labels.clone(), ids=list(ids))
            whole = code["Counts"](others).values(query)
            others.labels[mine] = torch.from_numpy(rng.integers(0, 3, int(mine.sum())))
            replaced = code["Counts"](others).values(query)
            kept = [name for name in ids if name != one]
            others = SimpleNamespace(classes=3, labels=images.labels[~mine], ids=kept)
            without = code["Counts"](others).values(query)
            for adjacency, other in ((Adjacency.ZERO_OUT, without), (Adjacency.REPLACE, replaced)):
                moved = float((whole - other).double().norm()) / bound.scale
                furthest[adjacency] = max(furthest[adjacency], moved)
    assert furthest[Adjacency.ZERO_OUT] == bound.moves[Unit.RECORD][Adjacency.ZERO_OUT]
    assert 1 < furthest[Adjacency.REPLACE] <= bound.moves[Unit.RECORD][Adjacency.REPLACE] + 1e-12


# ---------------------------------------------------------------- on one machine


def own_settings(tiny_data: Path, **more: Any) -> TranscribeSettings:
    dpsd = TINY_DPSD.model_copy(update={"moments_steps": 1})
    given = {"descent_rounds": 0, "mixture_share": 0, "with_generator": False, "ask": NAME}
    return TranscribeSettings(
        data=str(tiny_data), epsilon=50, budget=51, dpsd=dpsd, **{**given, **more}
    )


def test_a_run_asks_it_last_and_pays_for_it(tiny_data, tmp_path, split):  # noqa: F811
    result = transcribe(prepare(own_settings(tiny_data)), tmp_path / "run")
    answer = json.loads((tmp_path / "run" / "answers.json").read_text())[NAME]
    found = torch.tensor(answer["values"], dtype=torch.float64)
    assert float((found - counted(split.train)).abs().max()) < 6 * answer["noise_std"]
    assert result.to_json()["epsilon"] == pytest.approx(50, rel=1e-6)
    ledger = next(tiny_data.parent.glob("*.ledger.sqlite"))
    assert booked(ledger) == ["noisy-moments", "noisy-moments", "noisy-class-counts"]


def test_an_interrupted_question_is_asked_again_and_charged_once(
    tiny_data, tmp_path, code, monkeypatch
):
    settings = own_settings(tiny_data)  # noqa: F811

    def killed(self, query):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(code["Counts"], "values", killed)
        with pytest.raises(KeyboardInterrupt):
            transcribe(prepare(settings), tmp_path / "run")
    ledger = next(tiny_data.parent.glob("*.ledger.sqlite"))
    assert booked(ledger)[-1] == "noisy-class-counts", "charged before it was computed"
    result = transcribe(prepare(settings), tmp_path / "run", resume=True)
    assert len(booked(ledger)) == 3
    assert result.to_json()["epsilon"] == pytest.approx(50, rel=1e-6)
    assert (tmp_path / "run" / "answers.json").exists()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"ask": "class-count"}, "got 'class-count'; known: class-counts"),
        ({"teacher": "cnn-small", "privacy": "label"}, "no ask=… .* privacy=label"),
    ],
)
def test_a_question_that_cannot_be_asked_is_refused_before_anything_is_spent(
    tiny_data, tmp_path, more, words
):
    with pytest.raises(ConfigError, match=words):
        prepare(own_settings(tiny_data, **{**more, "descent_rounds": None, "mixture_share": None}))
    assert not list(tiny_data.parent.glob("*.ledger.sqlite"))


def test_a_name_of_ours_is_not_for_others(code):
    with pytest.raises(ConfigError, match="another kind than 'moments'"):
        kinds.Question("moments", code["CountsQuery"], len, len, len)


# ---------------------------------------------------------------- three holders


class Silent(InProcess):
    """Nobody answers the question."""

    def exchange(self, message_type, holders, make):
        asked = str(make(0, holders[0]).terms.get("query-id", ""))
        return {} if asked.endswith(NAME) else super().exchange(message_type, holders, make)

    def ask(self, holders, query, plan, run):
        return {} if query.id.endswith(NAME) else super().ask(holders, query, plan, run)


@pytest.mark.parametrize("noise", [mode.value for mode in NoiseMode])
def test_three_holders_answer_it_once_each(settings, split, open_nodes, tmp_path, noise):  # noqa: F811
    asked = {"student": None, "descent_rounds": 0, "mixture_share": 0, "noise": noise}
    settings = settings.model_copy(update={**asked, "ask": NAME, "quorum": 3, "retries": 0})
    nodes, run = open_nodes(settings), start(tmp_path / "run", settings)
    with pytest.raises(QuorumError):
        go(settings, Silent(nodes), run, split)
    result = go(settings, InProcess(nodes), run, split)
    assert 9.9 < result["epsilon"] <= 10 * (1 + 1e-6)
    answer = json.loads((run.path / "answers.json").read_text())[NAME]
    found = torch.tensor(answer["values"], dtype=torch.float64)
    assert float((found - counted(split.train)).abs().max()) < 6 * answer["noise_std"]
    for node in nodes:
        names = booked(ledger_file(node))
        assert [name.split("-", 1)[1] for name in names] == ["moments", "moments", NAME]
    assert (run.path / STUDENT).exists()


def test_a_holder_whose_policy_does_not_name_it_refuses(settings, open_nodes, tmp_path):  # noqa: F811
    asked = {"student": None, "descent_rounds": 0, "mixture_share": 0, "noise": "local"}
    settings = settings.model_copy(update={**asked, "ask": NAME})
    nodes = open_nodes(settings, policies={1: HolderPolicy(epsilon=20.0)})
    assert NAME in nodes[0].capabilities().kinds
    assert NAME not in nodes[1].capabilities().kinds
    with pytest.raises(ConfigError, match=f"holder-1 does not allow the question '{NAME}'"):
        go(settings, InProcess(nodes), start(tmp_path / "run", settings))
    assert not any(ledger_file(node).exists() for node in nodes)
    query = query_from(NAME, "run-x/counts", {}, {"classes": 3})
    with pytest.raises(Refusal, match="POLICY_REFUSED"):
        nodes[1].answer(query, NoisePlan(NoiseMode.LOCAL, 5.0, 3), "run-x", "1")
    with pytest.raises(ConfigError, match=r"expected kinds out of .*class-counts"):
        build(HolderPolicy, {"epsilon": 1.0, "kinds": ["vote", "class-count"]})
