"""What the ledger books is what was trained: sampling, steps, clipping and noise of every step."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from synthesis_settings import told
from torch import Tensor

from fedtranscribe.config import DpSadOptions, SynthesizeSettings
from fedtranscribe.errors import PrivacyError
from fedtranscribe.noise.sources import OsNoise
from fedtranscribe.privacy import Adjacency, PoissonGaussian, Unit, epsilon
from fedtranscribe.privacy.diffusion import DpSgdPlan
from fedtranscribe.privacy.events import Event, flat
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.released_images import ReleasedImages
from fedtranscribe.trainers.preparation import PreparedTraining, prepare
from fedtranscribe.trainers.private_steps import DpSgdStep, PoissonBatches
from fedtranscribe.trainers.synthesize import synthesize


@dataclass
class Seen:
    """What really happened.

    Attributes:
        batches: (n, m) of each Poisson batch that was drawn, and how often.
        steps: the plan of each protected step that was taken, and how often.
        stds: of the noise on gradients, and how many steps drew it.
    """

    batches: Counter[tuple[int, int]] = field(default_factory=Counter)
    steps: Counter[DpSgdPlan] = field(default_factory=Counter)
    stds: set[float] = field(default_factory=set)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Watches the coins and the steps themselves, below everything that plans them."""
    found = Seen()
    draw, take = PoissonBatches.draw, DpSgdStep.step

    def drawn(self: PoissonBatches) -> Tensor:
        found.batches[self._plan.records, self._plan.batch] += 1
        return draw(self)

    def taken(self: DpSgdStep, *args) -> None:
        found.steps[self.plan] += 1
        self._noise = _Watching(found)
        take(self, *args)

    monkeypatch.setattr(PoissonBatches, "draw", drawn)
    monkeypatch.setattr(DpSgdStep, "step", taken)
    return found


class _Watching(OsNoise):
    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    def gaussian(self, shape: Sequence[int], std: float) -> Tensor:
        self._seen.stds.add(std)
        return super().gaussian(shape, std)


def booked(prepared: PreparedTraining, adjacency: Adjacency) -> list[Event]:
    with Ledger.open_read_only(prepared.ledger.path) as ledger:
        (release,) = ledger.releases()
    return list(flat(release.event(Unit.RECORD, adjacency)))


@pytest.mark.long
@pytest.mark.parametrize("adjacency", [Adjacency.ZERO_OUT, Adjacency.REPLACE])
def test_the_event_of_dp_promise_is_the_steps_that_were_taken(
    tiny_synthesis: SynthesizeSettings, tmp_path: Path, seen: Seen, adjacency: Adjacency
):
    prepared = prepare(told(tiny_synthesis, phase2_batch=6))
    synthesize(prepared, tmp_path / "run")
    images, steps = booked(prepared, adjacency)
    assert isinstance(images, ReleasedImages)
    assert isinstance(steps, PoissonGaussian)
    ((plan, taken),) = seen.steps.items()
    assert steps == PoissonGaussian(
        plan.batch / plan.records, plan.noise_multiplier, taken, adjacency
    )
    assert seen.stds == {plan.noise_multiplier * plan.clip}
    # Coins were tossed for both phases, at the same n, and as often as is booked.
    assert seen.batches == {
        (images.records, images.batch): images.count,
        (plan.records, plan.batch): taken,
    }
    assert (images.records, images.batch, plan.records, plan.batch) == (48, 4, 48, 6)
    # How far two images are apart over the noise that x_S was drawn with.
    kept = float(prepared.plan.settings.schedule.alpha_bar[prepared.plan.settings.boundary])
    apart = 2 * math.sqrt(16 * 16 * kept / (1 - kept))
    assert images.mu == pytest.approx(apart, rel=1e-5)
    assert images.mu >= apart


@pytest.mark.long
@pytest.mark.parametrize(("teacher", "discriminator"), [("public", "outputs"), ("dp", "dp")])
def test_the_event_of_dp_sad_is_the_steps_that_were_taken(
    tiny_synthesis: SynthesizeSettings,
    tmp_path: Path,
    seen: Seen,
    teacher: str,
    discriminator: str,
):
    options = DpSadOptions(
        teacher=teacher,  # type: ignore[arg-type]
        discriminator=discriminator,  # type: ignore[arg-type]
        batch=8,
        epochs=0.25,
        copies=1,
        synthetic_images=4,
        time_steps=20,
    )
    settings = tiny_synthesis.model_copy(
        update={"method": "dp-sad", "dp_sad": options, "pretrain_epochs": 0.01}
    )
    prepared = prepare(settings)
    synthesize(prepared, tmp_path / "run")
    (event,) = booked(prepared, Adjacency.ZERO_OUT)
    ((plan, taken),) = seen.steps.items()
    trainings = 1 + (teacher == "dp") + (discriminator == "dp")
    assert taken == trainings * plan.steps == trainings * 2
    assert event == PoissonGaussian(plan.batch / plan.records, plan.noise_multiplier, taken)
    assert seen.stds == {plan.noise_multiplier * plan.clip}
    assert seen.batches == {(48, 8): taken}


@pytest.mark.long
def test_patients_with_many_images_are_counted_and_booked_as_patients(tmp_path: Path, seen: Seen):
    """400 images, 10 of each patient: an ε for 400 records would be another one for 40."""
    rng = np.random.default_rng(0)
    path = tmp_path / "scans.npz"
    arrays = {"images": rng.integers(0, 255, (400, 8, 8), dtype=np.uint8)}
    ids = np.array([f"patient-{i % 40}" for i in range(400)])
    labels = np.arange(400) % 2
    held_out = {"test_images": arrays["images"][:4], "test_labels": labels[:4]}
    np.savez(path, **arrays, labels=labels, ids=ids, classes=2, **held_out)
    settings = SynthesizeSettings(
        data=str(path), ledger=tmp_path / "book.sqlite", size="tiny", sampling_steps=2
    )
    prepared = prepare(
        told(
            settings,
            epsilon=1.0,
            samples=4,
            evaluate=False,
            phase1_batch=4,
            phase1_epochs=0.25,
            phase2_batch=4,
            phase2_epochs=0.25,
            copies=1,
            boundary=980,
        )
    )
    assert prepared.facts.records == 40
    synthesize(prepared, tmp_path / "run")
    for event in booked(prepared, Adjacency.ZERO_OUT):
        coin = event.sampling_probability  # type: ignore[union-attr]
        assert coin == pytest.approx(4 / 40)
    assert set(seen.batches) == {(40, 4)}
    assert epsilon(booked(prepared, Adjacency.ZERO_OUT), 1e-5) <= 1.0


@pytest.mark.long
def test_a_trainer_that_would_do_something_else_is_refused(tiny_synthesis: SynthesizeSettings):
    prepared = prepare(tiny_synthesis)
    longer = replace(prepared.plan.settings, phase2_epochs=0.5)
    other = replace(prepared, plan=replace(prepared.plan, settings=longer))
    with pytest.raises(PrivacyError, match="bug"):
        other.trainer()
