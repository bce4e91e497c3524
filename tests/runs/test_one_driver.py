"""One machine is a federation of one holder: the same driver, and the same student to the byte."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fedtranscribe.config import RoundSettings, TranscribeSettings
from fedtranscribe.config.facts import Facts
from fedtranscribe.flower.client_app import make_client_app
from fedtranscribe.flower.over_flower import OverFlower
from fedtranscribe.holder import answering
from fedtranscribe.holder.node import Node
from fedtranscribe.holder.policy import HolderPolicy
from fedtranscribe.models.ensemble import Ensemble
from fedtranscribe.noise.sources import SeededNoise
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.questions.kinds import of_records, of_teachers
from fedtranscribe.questions.question import Kind
from fedtranscribe.results.run_directory import GENERATOR, STUDENT, RunDirectory
from fedtranscribe.runs.learning import HeldOut, finish_generator, learn
from fedtranscribe.runs.preparation import OWN, Prepared, prepare
from fedtranscribe.runs.transcription import transcribe
from tests.conftest import TINY_DPSD
from tests.federation.local_grid import LocalGrid

NOISE = SeededNoise(3)
POLICY = HolderPolicy(epsilon=51.0, kinds=tuple(Kind))


def settings_for(asked: str, data: Path) -> TranscribeSettings:
    common = {"data": str(data), "epsilon": 50.0, "budget": 51.0, "dpsd": TINY_DPSD}
    if asked in ("moments", "mixture", "descent"):
        common["mixture_share"] = None if asked == "mixture" else 0
        common["descent_rounds"] = 3 if asked == "descent" else 0
        few = TINY_DPSD.model_copy(update={"moments_steps": 2})
        return TranscribeSettings(**{**common, "dpsd": few})
    teachers = {"teacher": "cnn-small", "student": "cnn-small", "shards": 2, "rows": 20}
    return TranscribeSettings(**common, **teachers, privacy=asked)


def node_of(prepared: Prepared, run: Path, ledger: Path) -> Node:
    """A holder behind a policy, with the very teachers or records of a finished run."""
    images, plan = prepared.split.train, prepared.plan
    facts = Facts(
        classes=images.classes,
        channels=images.channels,
        size=images.size,
        shards=plan.facts.shards,
        positional_ids=images.positional,
    )
    if plan.facts.shards:
        statistics = of_teachers(Ensemble(run / "private" / "teachers", torch.device("cpu")))
    else:
        statistics = of_records(images, torch.device("cpu"), run / "private")
    return Node(
        OWN,
        statistics,
        lambda: facts,
        POLICY,
        lambda: Ledger.open(ledger, images.data_id, POLICY.budget),
        noise=NOISE,
    )


@pytest.mark.long
@pytest.mark.parametrize("asked", ["vote", "data", "label", "moments", "mixture", "descent"])
def test_a_federation_of_one_gives_the_student_of_one_machine(
    asked: str, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    settings = settings_for(asked, tiny_data)
    prepared, create = prepare(settings), RunDirectory.create
    monkeypatch.setattr(answering, "OsNoise", lambda: NOISE)
    monkeypatch.setattr(
        RunDirectory, "create", lambda path, chosen: create(path, chosen, "run-fixed")
    )
    transcribe(prepared, tmp_path / "own", force=True)

    node = node_of(prepared, tmp_path / "own", tmp_path / "other.sqlite")
    client = make_client_app(lambda context, number: node)
    transport = OverFlower(LocalGrid(client, {7: {}}), [(7, 0)], 60.0, 60.0)
    assert list(transport.capabilities()) == [OWN]
    run = create(tmp_path / "federated", settings, "run-fixed")
    learned = learn(
        prepared.settings,
        RoundSettings(),
        prepared.plan,
        transport,
        run,
        public=prepared.public,
        test=HeldOut(prepared.split.test, public=False),
    )
    finish_generator(learned.method, run)
    for name in (STUDENT, GENERATOR):
        alone, together = (tmp_path / run / name for run in ("own", "federated"))
        assert alone.read_bytes() == together.read_bytes()
    assert transport.payload > 0


HIDDEN = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"flwr", "ray", "grpc"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
import fedtranscribe.cli, fedtranscribe.evaluation, fedtranscribe.evaluation.report
import fedtranscribe.trainers.synthesize, fedtranscribe.runs.transcription
import fedtranscribe.questions.messages
"""


@pytest.mark.long
def test_the_base_install_needs_no_flower():
    done = subprocess.run(
        [sys.executable, "-c", HIDDEN], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
