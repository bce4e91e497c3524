import io
from dataclasses import replace
from typing import Any

import pytest
import torch
from sad_runs import (
    CLASSES,
    PRIVATE_TEACHER,
    RECORDS,
    SIDE,
    TINY,
    blobs,
    drawn,
    parts,
    run,
    to_stage,
)
from torch import Tensor, nn

from fedtranscribe.errors import ConfigError
from fedtranscribe.models.diffusion import Sampling
from fedtranscribe.models.unet import Denoiser
from fedtranscribe.noise.sources import OsBits, OsNoise, SeededNoise
from fedtranscribe.privacy.diffusion import Discriminator as LearnsFrom
from fedtranscribe.privacy.diffusion import Teacher
from fedtranscribe.trainers.denoising import ImageDiscriminator
from fedtranscribe.trainers.dp_sad import SadStage
from fedtranscribe.trainers.per_sample import Backend

PUBLISHED = replace(TINY, gradients="published", clip=1.0)


def weights(network: nn.Module | None) -> dict[str, Tensor]:
    assert network is not None
    return {k: v.clone() for k, v in network.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def finite(network: nn.Module | None) -> bool:
    assert network is not None
    return all(bool(tensor.isfinite().all()) for tensor in network.state_dict().values())


# ---------------------------------------------------------------- bad input, before any work


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ({"images": blobs(RECORDS)[0] * 127.5 + 127.5}, r"private images as floats in \[-1, 1\]"),
        ({"images": blobs(RECORDS)[0] * float("nan")}, r"private images as floats in \[-1, 1\]"),
        ({"images": torch.zeros(RECORDS, 3, 8, 8)}, r"\[n, 1, 8, 8\]"),
        ({"public": torch.full((3, 1, 8, 8), 2.0)}, r"public images as floats in \[-1, 1\]"),
        ({"public": None, "public_labels": None}, "public images for teacher=public"),
        ({"public_labels": torch.zeros(3).long()}, r"int64 \[16\]"),
        ({"labels": None}, "labels for a network of 2 classes"),
        ({"labels": torch.full((RECORDS,), 2)}, r"within 0\.\.1"),
        ({"settings": replace(TINY, batch=25)}, "batch=25 <= 24 records"),
    ],
)
def test_bad_input_is_refused_before_any_work(others: dict, words: str):
    with pytest.raises(ConfigError, match=words) as error:
        run(**others)
    # Nothing derived from the images may stand in a message.
    assert "254" not in str(error.value)


# ---------------------------------------------------------------- what each stage touches


def test_stages_follow_each_other_and_progress_is_counts_only():
    seen: list[tuple] = []
    method = run()
    assert method.train(progress=lambda *entry: seen.append(entry))
    assert seen == [
        ("pre-training", 1, 1),
        ("student", 1, 2),
        ("student", 2, 2),
    ]
    assert method.finished
    assert method.train(5, progress=lambda *entry: seen.append(entry))
    assert len(seen) == 3
    assert [method.steps_of(stage) for stage in SadStage] == [1, 0, 2, 0]


def test_a_private_teacher_has_a_stage_of_its_own_with_or_without_public_images():
    seen: list[str] = []
    run(PRIVATE_TEACHER).train(progress=lambda stage, *_: seen.append(stage))
    assert seen == ["teacher"] * 2 + ["student"] * 2
    seen.clear()
    public, labels = blobs(16, seed=5)
    method = run(PRIVATE_TEACHER, public=public, public_labels=labels)
    method.train(progress=lambda stage, *_: seen.append(stage))
    assert seen == ["pre-training"] + ["teacher"] * 2 + ["student"] * 2


def test_the_teacher_is_settled_before_the_student_starts():
    method, networks, _ = parts(TINY)
    before, student = weights(networks.teacher), weights(networks.student)
    to_stage(method, SadStage.STUDENT)
    settled = weights(networks.teacher)
    assert not same(before, settled)
    # Nothing of the student has moved, and the teacher never will again.
    assert same(student, weights(networks.student))
    method.train()
    assert same(settled, weights(networks.teacher))
    assert not same(student, weights(networks.student))


def test_the_student_may_start_where_the_teacher_ended():
    method, networks, _ = parts(replace(TINY, student_start="teacher"))
    to_stage(method, SadStage.STUDENT)
    assert same(weights(networks.teacher), weights(networks.student))
    assert same(weights(networks.teacher), weights(method.ema.network))


def test_samples_are_those_of_the_averaged_student():
    method = run()
    method.train()
    assert method.ema.n_averaged == 1 + 2
    labels = torch.arange(4) % CLASSES
    images = drawn(method, labels)
    assert images.shape == (4, 1, SIDE, SIDE)
    assert float(images.abs().max()) <= 1


def test_without_adv_there_is_no_discriminator_and_switches_switch_terms_off():
    plain = replace(TINY, noise_multiplier=0.0, adversarial_weight=0.0, student_start="teacher")
    ends = []
    for changes in ({}, {"teacher_weight": 0.0}, {"data_weight": 0.0}):
        method, networks, _ = parts(replace(plain, **changes))
        assert networks.discriminator is None
        method.train()
        ends.append(weights(networks.student))
    assert not same(ends[0], ends[1])
    assert not same(ends[0], ends[2])
    assert not same(ends[1], ends[2])
    # A student that starts as an unguided teacher has nothing to learn from it.
    for guidance in (0.0, 1.8):
        settings = replace(plain, data_weight=0.0, guidance=guidance, optimiser="sgd", lr=0.1)
        method, networks, _ = parts(settings)
        method.train()
        student, teacher = weights(networks.student), weights(networks.teacher)
        moved = max(float((student[name] - teacher[name]).abs().max()) for name in teacher)
        assert (moved < 1e-3) is (guidance == 0), moved


@pytest.mark.long
@pytest.mark.parametrize(
    "changes",
    [
        {"concatenation": "channels"},
        {"weighting": "image"},
        {"optimiser": "sgd", "clip": 1.0},
        {"copies": 3},
        {"discriminator": LearnsFrom.DP},
        {"discriminator_conditioning": False},
        {"student_label_drop": 0.2, "sampling": Sampling(3, guidance=0.5)},
    ],
)
@pytest.mark.parametrize("base", [TINY, PUBLISHED])
def test_every_switch_goes_with_every_mode(base: Any, changes: dict):
    method, networks, _ = parts(replace(base, **changes))
    before = weights(networks.student), weights(networks.discriminator)
    method.train()
    assert not same(before[0], weights(networks.student))
    assert not same(before[1], weights(networks.discriminator))
    assert finite(networks.student)


# ---------------------------------------------------------------- who sees private records


def spy(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, Tensor]]:
    """Whether the discriminator was learning, and what it was shown."""
    seen: list[tuple[bool, Tensor]] = []
    inner = ImageDiscriminator.forward

    def forward(self: ImageDiscriminator, x: Tensor, t: Tensor, labels: Tensor) -> Tensor:
        seen.append((self.first.weight.requires_grad, x.detach()))
        return inner(self, x, t, labels)

    monkeypatch.setattr(ImageDiscriminator, "forward", forward)
    return seen


@pytest.mark.parametrize("sigma", [1.0, 0.0])
@pytest.mark.parametrize("base", [TINY, PRIVATE_TEACHER])
def test_the_sound_discriminator_learns_nothing_of_private_records(
    base: Any, sigma: float, monkeypatch: pytest.MonkeyPatch
):
    """Every private image turns into NaN as soon as the teacher is through."""
    method, networks, images = parts(replace(base, noise_multiplier=sigma))
    to_stage(method, SadStage.STUDENT)
    images.fill_(float("nan"))
    seen = spy(monkeypatch)
    if sigma == 0:
        # Nothing keeps NaN from a student without clipping, so it must not take a step.
        monkeypatch.setattr(method._optimisers["lr"], "step", lambda: None)
    before = weights(networks.discriminator)
    method.train()
    learnt_on = [x for learning, x in seen if learning]
    assert len(learnt_on) == 4
    assert all(bool(x.isfinite().all()) for x in learnt_on)
    assert finite(networks.discriminator)
    assert not same(before, weights(networks.discriminator))


def test_a_private_discriminator_learns_from_private_records_by_dp_sgd_of_its_own():
    method, networks, images = parts(replace(TINY, discriminator=LearnsFrom.DP))
    to_stage(method, SadStage.STUDENT)
    images.fill_(float("nan"))
    before = weights(networks.discriminator)
    method.train()
    # A gradient that is not finite counts as zero: what is left is the noise.
    assert finite(networks.discriminator)
    assert not same(before, weights(networks.discriminator))


def test_as_printed_private_records_reach_the_discriminator():
    method, networks, images = parts(PUBLISHED)
    to_stage(method, SadStage.STUDENT)
    images.fill_(float("nan"))
    method.train()
    assert not finite(networks.discriminator)
    assert not finite(networks.student)


def test_one_nan_record_does_not_reach_the_sound_student():
    method, networks, images = parts(PRIVATE_TEACHER)
    images[3].fill_(float("nan"))
    method.train()
    assert finite(networks.teacher)
    assert finite(networks.student)
    assert finite(networks.discriminator)


def test_a_public_teacher_never_meets_private_records_while_it_learns():
    results = []
    for seed in (0, 1):
        method, networks, _ = parts(TINY, images=blobs(RECORDS, seed)[0])
        to_stage(method, SadStage.STUDENT)
        results.append(weights(networks.teacher))
    assert same(*results)


def test_trainings_have_batches_and_noise_of_their_own():
    names: list[str] = []

    class Listening(SeededNoise):
        def for_query(self, query_id: str) -> SeededNoise:
            names.append(query_id)
            return super().for_query(query_id)

    run(replace(PRIVATE_TEACHER, discriminator=LearnsFrom.DP), noise=Listening(0)).train()
    assert sorted(names) == sorted(
        f"{who}/{i}" for who in ("teacher", "student", "discriminator") for i in range(2)
    )


# ---------------------------------------------------------------- is it private?


def test_only_os_entropy_noise_and_sound_gradients_have_no_caveat():
    trusted = {"noise": OsNoise(), "bits": OsBits()}
    assert run(**trusted).caveats() == ()
    assert run(PRIVATE_TEACHER, **trusted).caveats() == ()
    assert "seed" in run().caveats()[0]
    assert "seed" in run(noise=OsNoise()).caveats()[0]
    assert "noise_multiplier=0" in run(replace(TINY, noise_multiplier=0.0), **trusted).caveats()[0]


def test_published_mode_says_that_it_has_no_guarantee_and_who_is_unprotected():
    trusted = {"noise": OsNoise(), "bits": OsBits()}
    first, *others = run(PUBLISHED, **trusted).caveats()
    assert "no guarantee" in first
    assert "T=40" in first
    assert [words.split()[1] for words in others] == ["discriminator"]
    everything = run(replace(PUBLISHED, teacher=Teacher.DP), **trusted).caveats()
    assert [words.split()[1] for words in everything[1:]] == ["teacher", "discriminator"]


def test_the_plan_is_that_of_each_private_training():
    plan = run(replace(TINY, copies=2)).plan
    assert (plan.records, plan.batch, plan.steps) == (RECORDS, 6, 2)
    assert (plan.noise_multiplier, plan.clip, plan.multiplicity) == (1.0, 1e-6, 2)


def test_the_student_is_noisy():
    results = []
    for seed in (0, 1):
        method, networks, _ = parts(TINY, noise=SeededNoise(seed))
        method.train()
        results.append(weights(networks.student))
    assert not same(*results)


@pytest.mark.parametrize("backend", [Backend.OPACUS, Backend.FUNCTIONAL])
def test_back_ends_train_the_same_student(backend: Backend):
    # Hardly any noise, a C that clips everything, SGD: Adam would show rounding where it divides.
    settings = replace(TINY, noise_multiplier=1e-9, optimiser="sgd", clip=0.1, lr=1.0, copies=2)
    ends = []
    for chosen in (Backend.CONTRACTED, backend):
        method, networks, _ = parts(settings, backend=chosen)
        method.train()
        ends.append(weights(networks.student))
    assert not same(*ends)
    for name, tensor in ends[0].items():
        torch.testing.assert_close(tensor, ends[1][name], rtol=1e-3, atol=1e-5, msg=name)


# ---------------------------------------------------------------- interrupt and resume


@pytest.mark.long
@pytest.mark.parametrize(
    ("changes", "after"),
    [
        ({}, 2),
        ({"noise_multiplier": 0.0}, 1),
        ({"teacher": Teacher.DP, "student_start": "teacher"}, 1),
        ({"teacher": Teacher.DP}, 3),
        ({"discriminator": LearnsFrom.DP}, 2),
        ({"gradients": "published", "teacher": Teacher.DP}, 3),
    ],
)
def test_a_resumed_run_ends_with_the_same_bytes(changes: dict, after: int):
    settings = replace(TINY, **changes)
    whole = run(settings)
    whole.train()
    first = run(settings)
    assert not first.train(after)
    buffer = io.BytesIO()
    torch.save(first.state(), buffer)
    buffer.seek(0)
    # Whatever the new run was given is replaced, but for the seeds of noise and coins.
    resumed = run(settings, seed=9, rng=torch.Generator().manual_seed(9))
    resumed.load_state(torch.load(buffer, weights_only=True))
    assert resumed.train()
    assert same(weights(whole.denoiser), weights(resumed.denoiser))
    assert same(weights(whole.ema.network), weights(resumed.ema.network))
    assert same(whole.state()["discriminator"], resumed.state()["discriminator"])


def test_a_finished_run_comes_back_finished():
    whole = run()
    whole.train()
    again = run(seed=9)
    again.load_state(whole.state())
    assert again.finished
    assert same(weights(whole.ema.network), weights(again.ema.network))


@pytest.mark.long
def test_a_measured_physical_batch_is_part_of_the_state():
    settings = replace(TINY, batch=20, epochs=1.5)
    whole, first = run(settings, physical_batch=None), run(settings, physical_batch=None)
    whole.train()
    to_stage(first, SadStage.STUDENT)
    first.train(1)
    assert first.state()["physical_batch"]["student"] >= 1
    resumed = run(settings, physical_batch=None)
    resumed.load_state(first.state())
    resumed.train()
    assert same(weights(whole.denoiser), weights(resumed.denoiser))


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"guidance": 2.0}, "guidance=1.8"), ({"noise_multiplier": 2.0}, "noise_multiplier=1.0")],
)
def test_a_checkpoint_of_another_plan_is_refused(changes: dict, words: str):
    state = run().state()
    with pytest.raises(ConfigError, match=words):
        run(replace(TINY, **changes)).load_state(state)
    with pytest.raises(ConfigError, match="public_labels=True"):
        run(public_labels=None).load_state(state)


@pytest.mark.parametrize(("stage", "word"), [("pre", "pretrain_batch"), ("st", "physical_batch")])
def test_running_out_of_memory_names_the_setting_to_lower(
    stage: str, word: str, monkeypatch: pytest.MonkeyPatch
):
    method = run()
    if stage == "st":
        to_stage(method, SadStage.STUDENT)

    def forward(*_: Any) -> Tensor:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(Denoiser, "forward", forward)
    with pytest.raises(ConfigError, match=word):
        method.train()


# ---------------------------------------------------------------- end to end


@pytest.mark.long
def test_blobs_are_learnt_and_come_out_by_label():
    """A teacher of public blobs, then a private student."""
    public, labels = blobs(64, seed=5)
    settings = replace(
        TINY,
        noise_multiplier=0.0,
        pretrain_epochs=20,
        pretrain_batch=16,
        pretrain_lr=3e-3,
        batch=12,
        epochs=20,
        lr=3e-3,
        student_start="teacher",
        sampling=Sampling(10),
    )
    method = run(settings, public=public, public_labels=labels)
    method.train()
    labels = torch.arange(20) % CLASSES
    images = drawn(method, labels)
    brighter_left = images[..., :4].mean((1, 2, 3)) > images[..., 4:].mean((1, 2, 3))
    assert int((brighter_left == (labels == 0)).sum()) >= 17
