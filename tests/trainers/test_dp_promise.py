import io
from dataclasses import replace
from typing import Any

import pytest
import torch
from sad_runs import drawn
from torch import Tensor

from fedtranscribe.errors import ConfigError
from fedtranscribe.models.diffusion import Sampling, Schedule
from fedtranscribe.models.unet import Denoiser, UNetSize, make_unet
from fedtranscribe.noise.sources import OsBits, OsNoise, SeededBits, SeededNoise
from fedtranscribe.trainers.dp_promise import (
    DpPromise,
    DpPromiseSettings,
    NoisyImages,
    PhaseOne,
    PromiseStage,
    published_regression,
)
from fedtranscribe.trainers.per_sample import Backend
from fedtranscribe.trainers.profiles import promise_paper_settings
from fedtranscribe.trainers.stages import TrainingInputs

RECORDS, SIDE, CLASSES = 24, 8, 2
TINY = DpPromiseSettings(
    noise_multiplier=1.0,
    boundary=30,
    phase1_batch=8,
    phase1_epochs=1,
    phase2_batch=6,
    phase2_epochs=0.7,
    phase2_lr=1e-3,
    copies=2,
    clip=1.0,
    pretrain_batch=8,
    pretrain_epochs=2,
    ema_decay=0.9,
    unet=UNetSize.TINY,
    schedule=Schedule(40, 1e-3, 0.2),
    sampling=Sampling(4),
)


def blobs(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A bright half on dark ground, left or right by class, [n, 1, 8, 8] in [-1, 1]."""
    labels = torch.arange(n) % CLASSES
    images = torch.full((n, 1, SIDE, SIDE), -0.9)
    images[labels == 0, :, :, :4] = 0.8
    images[labels == 1, :, :, 4:] = 0.8
    rng = torch.Generator().manual_seed(seed)
    return (images + 0.1 * torch.randn(images.shape, generator=rng)).clamp(-1, 1), labels


def run(
    settings: DpPromiseSettings = TINY,
    *,
    public: bool | Tensor = True,
    denoiser: Denoiser | None = None,
    **others: Any,
) -> DpPromise:
    images, labels = blobs(RECORDS)
    arguments: dict[str, Any] = {
        "images": images,
        "labels": labels,
        "public": blobs(16, seed=5)[0] if public is True else None if public is False else public,
        "noise": SeededNoise(0),
        "bits": SeededBits(0),
        "rng": torch.Generator().manual_seed(0),
        "physical_batch": 3,
    }
    network = make_unet("tiny", 1, SIDE, CLASSES) if denoiser is None else denoiser
    return DpPromise(network, settings, TrainingInputs(**(arguments | others)))


def weights(method: DpPromise) -> dict[str, Tensor]:
    return {k: v.clone() for k, v in method.denoiser.state_dict().items()}


def to_stage(method: DpPromise, stage: PromiseStage) -> DpPromise:
    while method.stage is not stage:
        method.train(1)
    return method


def loss_on_public(method: DpPromise, images: Tensor) -> float:
    """The mean squared error of the averaged network's guess of z; on public images only."""
    rng, schedule = torch.Generator().manual_seed(9), method.settings.schedule
    t = torch.randint(1, schedule.steps + 1, (len(images),), generator=rng)
    z = torch.randn(images.shape, generator=rng)
    with torch.no_grad():
        losses = published_regression(schedule, images, t, z).loss(method.ema.network)
    return float(losses.mean())


# ---------------------------------------------------------------- settings


def test_the_paper_profile_holds_the_settings_of_section_6_2():
    mnist, fashion = (
        promise_paper_settings("mnist", 7.0),
        promise_paper_settings("fashion-mnist", 7.0),
    )
    assert (mnist.boundary, mnist.copies, mnist.clip) == (900, 32, 1e-2)
    assert (mnist.phase1_lr, mnist.phase2_lr) == (3e-4, 6e-4)
    assert (mnist.phase1_batch, mnist.phase2_batch) == (32, 4096)
    assert (mnist.sampling.steps, mnist.sampling.eta, mnist.sampling.guidance) == (200, 1, 0)
    assert (mnist.unet, fashion.unet) == ("small", "medium")
    assert (mnist.pretrain_epochs, fashion.pretrain_epochs) == (50, 1000)
    for name, s, phase1, phase2 in (
        ("celeba-32", 925, 2, 50),
        ("celeba-64", 950, 1, 15),
        ("cifar-10", 925, 3, 50),
    ):
        colour = promise_paper_settings(name, 1.0)
        assert (colour.boundary, colour.phase1_epochs, colour.phase2_epochs) == (s, phase1, phase2)
        assert (colour.copies, colour.phase2_lr, colour.unet) == (4, 3e-4, "large")
    with pytest.raises(ConfigError, match="svhn"):
        promise_paper_settings("svhn", 1.0)


def test_steps_are_epochs_over_the_expected_batch_rounded_up():
    mnist = promise_paper_settings("mnist", 7.0)
    plan = mnist.privacy_plan(60_000)
    assert plan.phase1_steps == 5625
    assert plan.phase2.steps == 733  # 732.4
    assert mnist.pretrain_steps(60_000) == 23_438  # 23,437.5


@pytest.mark.parametrize("phase1", list(PhaseOne))
@pytest.mark.parametrize("boundary", [1, 2, 20, 39, 41])
def test_the_two_phases_share_all_time_steps(phase1: PhaseOne, boundary: int):
    settings = replace(TINY, boundary=boundary, phase1=phase1)
    assert [*settings.phase2_range, *settings.phase1_range] == list(range(1, 41))
    if boundary == 41:
        assert settings.privacy_plan(100).phase1_steps == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"boundary": 0}, r"S=0 in 1\.\.41"),
        ({"boundary": 42}, r"S=42 in 1\.\.41"),
        ({"boundary": 40}, "Phase I would be empty"),
        ({"copies": 0}, "copies=0 >= 1"),
        ({"clip": 0.0}, "clip=0"),
        ({"phase1_lr": float("inf")}, "phase1_lr=inf"),
        ({"phase2_epochs": 0}, "phase2_epochs=0"),
        ({"noise_multiplier": -1.0}, "noise_multiplier=-1"),
        ({"label_drop": 1.0}, "label_drop=1"),
        ({"phase1_batch": 0}, "phase1_batch=0"),
        ({"sampling": Sampling(41)}, "steps=41 <= T=40"),
    ],
)
def test_impossible_settings_are_refused(changes: dict, words: str):
    with pytest.raises(ConfigError, match=words):
        replace(TINY, **changes)


# ---------------------------------------------------------------- bad input, before any work


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ({"images": blobs(RECORDS)[0] * 127.5 + 127.5}, r"private images as floats in \[-1, 1\]"),
        ({"images": blobs(RECORDS)[0] * float("nan")}, r"private images as floats in \[-1, 1\]"),
        ({"images": torch.zeros(RECORDS, 1, 8, 8).byte()}, r"floats in \[-1, 1\]"),
        ({"images": torch.zeros(RECORDS, 3, 8, 8)}, r"\[n, 1, 8, 8\]"),
        ({"public": torch.full((3, 1, 8, 8), 2.0)}, r"public images as floats in \[-1, 1\]"),
        ({"labels": None}, "labels for a network of 2 classes"),
        ({"labels": torch.zeros(3).long()}, r"int64 \[24\]"),
        ({"labels": torch.full((RECORDS,), 2)}, r"within 0\.\.1"),
        ({"settings": replace(TINY, phase2_batch=25)}, "phase2_batch=25 <= 24 records"),
        ({"settings": replace(TINY, phase1_batch=25)}, "phase1_batch=25 <= 24 records"),
    ],
)
def test_bad_input_is_refused_before_any_work(others: dict, words: str):
    with pytest.raises(ConfigError, match=words) as error:
        run(**others)
    # Nothing derived from the images may stand in a message.
    assert "254" not in str(error.value)


def test_the_batch_of_a_phase_that_is_left_out_does_not_matter():
    run(replace(TINY, boundary=41, phase1_batch=1000))


# ---------------------------------------------------------------- what each stage touches


def test_stages_follow_each_other_and_progress_is_counts_only():
    seen: list[tuple] = []
    method = run()
    assert method.train(progress=lambda *entry: seen.append(entry))
    assert seen == [
        *[("pre-training", i, 4) for i in range(1, 5)],
        *[("phase I", i, 3) for i in range(1, 4)],
        *[("phase II", i, 3) for i in range(1, 4)],
    ]
    assert method.finished
    assert method.train(5, progress=lambda *entry: seen.append(entry))
    assert len(seen) == 10


@pytest.mark.parametrize("boundary", [30, 41])
def test_without_public_images_it_starts_with_the_first_phase_there_is(boundary: int):
    method = run(replace(TINY, boundary=boundary), public=False)
    assert method.stage is (PromiseStage.PHASE1 if boundary == 30 else PromiseStage.PHASE2)
    assert method.train()


def test_s_of_one_as_printed_leaves_phase_ii_out():
    method = run(replace(TINY, boundary=1, phase1=PhaseOne.PUBLISHED))
    assert method.plan is None
    assert method.train()


def test_pre_training_freezes_the_time_embedding_and_nothing_else():
    method = to_stage(run(), PromiseStage.PHASE1)
    before = weights(method)
    assert {n for n, p in method.denoiser.named_parameters() if not p.requires_grad} == {
        n for n in before if ".time_embedding." in n
    }
    method.train()
    after = weights(method)
    for name in before:
        assert torch.equal(before[name], after[name]) is (".time_embedding." in name), name


@pytest.mark.parametrize(
    "others", [{"public": False}, {"settings": replace(TINY, freeze_time_embedding=False)}]
)
def test_the_time_embedding_learns_where_it_must_or_may(others: dict):
    method = run(**others).denoiser
    assert all(p.requires_grad for p in method.parameters())


def test_labels_reach_the_network_in_phase_ii_only():
    method = run(replace(TINY, label_drop=0.0))
    embedding = method.denoiser.unet.class_embedding.weight
    start = embedding.detach().clone()
    to_stage(method, PromiseStage.PHASE2)
    assert torch.equal(embedding[:CLASSES], start[:CLASSES])
    assert not torch.equal(embedding[CLASSES], start[CLASSES])
    method.train()
    assert not torch.equal(embedding[:CLASSES], start[:CLASSES])


def spy(method: DpPromise, monkeypatch: pytest.MonkeyPatch) -> dict[str, list]:
    """(t, labels) of every row that the network is shown, by stage."""
    seen: dict[str, list] = {stage: [] for stage in PromiseStage}
    inner = type(method.denoiser).forward

    def forward(self: Denoiser, x: Tensor, t: Tensor, labels: Tensor) -> Tensor:
        seen[method.stage] += zip(t.tolist(), labels.tolist(), strict=True)
        return inner(self, x, t, labels)

    monkeypatch.setattr(type(method.denoiser), "forward", forward)
    return seen


@pytest.mark.long
@pytest.mark.parametrize("phase1", list(PhaseOne))
def test_each_phase_sees_its_own_time_steps(phase1: PhaseOne, monkeypatch: pytest.MonkeyPatch):
    short = replace(TINY, schedule=Schedule(8, 0.01, 0.5), boundary=6, noise_multiplier=0.0)
    settings = replace(short, phase1=phase1, pretrain_epochs=4, phase1_epochs=2, phase2_epochs=8)
    method = run(settings)
    seen = spy(method, monkeypatch)
    method.train()
    steps = {stage: {t for t, _ in rows} for stage, rows in seen.items()}
    assert steps[PromiseStage.PRETRAINING] == set(range(1, 9))
    assert steps[PromiseStage.PHASE1] == set(method.settings.phase1_range)
    assert steps[PromiseStage.PHASE2] == set(method.settings.phase2_range)
    assert {y for _, y in seen[PromiseStage.PHASE1] + seen[PromiseStage.PRETRAINING]} == {CLASSES}
    dropped = [y == CLASSES for _, y in seen[PromiseStage.PHASE2]]
    assert sum(dropped) / len(dropped) == pytest.approx(0.1, abs=0.06)


def test_k_copies_of_a_record_have_steps_and_noise_of_their_own(monkeypatch: pytest.MonkeyPatch):
    settings = replace(TINY, noise_multiplier=0.0, copies=5, phase2_batch=1, label_drop=0.0)
    method = to_stage(run(settings, bits=SeededBits(3)), PromiseStage.PHASE2)
    seen = spy(method, monkeypatch)
    while not seen[PromiseStage.PHASE2]:
        method.train(1)
    rows = seen[PromiseStage.PHASE2]
    assert len(rows) % 5 == 0
    first = rows[:5]
    assert len({t for t, _ in first}) > 1
    assert len({y for _, y in first}) == 1


def test_gradients_are_divided_by_the_expected_batch():
    # A batch of all records, and the same plan that expects half of them: coins all show heads.
    class Heads(SeededBits):
        def for_query(self, query_id: str) -> SeededBits:
            return self

        def words(self, count: int) -> Any:
            return super().words(count) * 0

    def bias_gradient(batch: int) -> Tensor:
        settings = replace(TINY, noise_multiplier=0.0, phase1_batch=batch, phase2_batch=batch)
        method = run(settings, public=False, bits=Heads(0))
        method.train(1)
        gradient = method.denoiser.unet.conv_out.bias.grad
        assert gradient is not None
        return gradient

    torch.testing.assert_close(bias_gradient(12), 2 * bias_gradient(24))


def test_averaged_weights_restart_with_phase_ii():
    method = to_stage(run(), PromiseStage.PHASE2)
    assert method.ema.n_averaged == 1
    for name, tensor in method.ema.network.state_dict().items():
        assert torch.equal(tensor, method.denoiser.state_dict()[name])
    method.train()
    assert method.ema.n_averaged == 1 + 3


# ---------------------------------------------------------------- is it private?


def test_only_os_entropy_noise_and_the_sound_phase_i_have_no_caveat():
    trusted = {"noise": OsNoise(), "bits": OsBits()}
    assert run(**trusted).caveats() == ()
    assert "seed" in run().caveats()[0]
    assert "seed" in run(noise=OsNoise()).caveats()[0]
    published = replace(TINY, phase1=PhaseOne.PUBLISHED)
    assert "no guarantee" in run(published, **trusted).caveats()[0]
    # Without Phase I it does not matter which.
    assert run(replace(published, boundary=41), **trusted).caveats() == ()
    assert "noise_multiplier=0" in run(replace(TINY, noise_multiplier=0.0), **trusted).caveats()[0]


def test_the_plan_is_that_of_phase_ii():
    plan = run().plan
    assert plan is not None
    assert (plan.records, plan.batch, plan.steps) == (RECORDS, 6, 3)
    assert (plan.noise_multiplier, plan.clip, plan.multiplicity) == (1.0, 1.0, 2)


def test_phase_ii_is_noisy():
    # Same coins and seeds, other noise: the weights differ by what a clip of 1 and σ = 1 explain.
    results = [
        to_stage(run(noise=SeededNoise(seed), public=False), PromiseStage.DONE) for seed in (0, 1)
    ]
    first, second = (weights(method) for method in results)
    assert any(not torch.equal(first[name], second[name]) for name in first)


@pytest.mark.long
@pytest.mark.parametrize("backend", [Backend.OPACUS, Backend.CONTRACTED])
def test_back_ends_train_the_same_network(backend: Backend):
    reference = to_stage(run(replace(TINY, noise_multiplier=1e-9)), PromiseStage.DONE)
    other = run(replace(TINY, noise_multiplier=1e-9), backend=backend)
    other.train()
    for name, tensor in weights(reference).items():
        # Adam divides by the gradient's size, so that rounding shows where it is near zero.
        difference = (tensor - weights(other)[name]).abs()
        assert float(difference.mean()) < 1e-4, name


# ---------------------------------------------------------------- interrupt and resume


@pytest.mark.long
@pytest.mark.parametrize(
    ("sigma", "kept", "after"),
    [
        (1.0, NoisyImages.FRESH, 2),
        (1.0, NoisyImages.CACHED, 6),
        (1.0, NoisyImages.FRESH, 9),
        (0.0, NoisyImages.FRESH, 5),
        (0.0, NoisyImages.CACHED, 10),
    ],
)
def test_a_resumed_run_ends_with_the_same_bytes(sigma: float, kept: NoisyImages, after: int):
    settings = replace(TINY, noise_multiplier=sigma, noisy_images=kept, phase1_epochs=1.5)
    whole = run(settings)
    whole.train()
    first = run(settings)
    assert not first.train(after)
    buffer = io.BytesIO()
    torch.save(first.state(), buffer)
    buffer.seek(0)
    # Whatever the new run was given is replaced, but for the seeds of noise and coins.
    resumed = run(settings, denoiser=make_unet("tiny", 1, SIDE, CLASSES, seed=9))
    resumed.load_state(torch.load(buffer, weights_only=True))
    assert resumed.train()
    for one, other in (
        (whole.denoiser, resumed.denoiser),
        (whole.ema.network, resumed.ema.network),
    ):
        for name, tensor in one.state_dict().items():
            assert torch.equal(tensor, other.state_dict()[name]), name


@pytest.mark.long
def test_a_measured_physical_batch_is_part_of_the_state():
    settings = replace(TINY, phase2_batch=20)
    whole, first = run(settings, physical_batch=None), run(settings, physical_batch=None)
    whole.train()
    to_stage(first, PromiseStage.PHASE2)
    first.train(1)
    resumed = run(settings, physical_batch=None)
    resumed.load_state(first.state())
    resumed.train()
    for name, tensor in weights(whole).items():
        assert torch.equal(tensor, weights(resumed)[name]), name


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"boundary": 20}, "boundary=30"), ({"noise_multiplier": 2.0}, "noise_multiplier=1.0")],
)
def test_a_checkpoint_of_another_plan_is_refused(changes: dict, words: str):
    state = run().state()
    with pytest.raises(ConfigError, match=words):
        run(replace(TINY, **changes)).load_state(state)
    with pytest.raises(ConfigError, match="public_images=16"):
        run(public=False).load_state(state)


# ---------------------------------------------------------------- out of memory


def test_running_out_of_memory_names_the_setting_to_lower(monkeypatch: pytest.MonkeyPatch):
    method = run()

    def forward(*_: Any) -> Tensor:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(type(method.denoiser), "forward", forward)
    with pytest.raises(ConfigError, match="pretrain_batch"):
        method.train()


# ---------------------------------------------------------------- end to end


@pytest.mark.long
def test_blobs_are_learnt_and_come_out_by_label():
    """Public blobs, then a few private steps; seconds on one core."""
    public = blobs(64, seed=5)[0]
    settings = replace(
        TINY,
        noise_multiplier=0.0,
        pretrain_epochs=12,
        pretrain_batch=16,
        pretrain_lr=3e-3,
        phase2_batch=12,
        phase2_epochs=20,
        phase2_lr=3e-3,
        sampling=Sampling(10),
    )
    method = run(settings, public=public)
    untrained = loss_on_public(method, public)
    to_stage(method, PromiseStage.PHASE1)
    pretrained = loss_on_public(method, public)
    assert pretrained < 0.7 * untrained
    method.train()
    labels = torch.arange(20) % CLASSES
    images = drawn(method, labels)
    assert images.shape == (20, 1, SIDE, SIDE)
    brighter_left = images[..., :4].mean((1, 2, 3)) > images[..., 4:].mean((1, 2, 3))
    assert int((brighter_left == (labels == 0)).sum()) >= 17
