"""DP-SAD for the host: profile and options -> a plan with its noise, and the trainer.

Profile `quick` is ours: a tiny U-Net, a short training, a student that starts from its teacher.
Profile `paper` is the paper's supplement, for the set whose images have this shape.
"""

from dataclasses import fields, replace
from typing import Any

from fedtranscribe.config import DpSadOptions, SynthesizeSettings
from fedtranscribe.errors import ConfigError
from fedtranscribe.methods.dp_sad import (
    Concatenation,
    DpSad,
    DpSadSettings,
    Gradients,
    Stage,
    Start,
    Weighting,
    make_networks,
    paper_settings,
    tiny_settings,
)
from fedtranscribe.models.sampling import Sampling
from fedtranscribe.models.unet import Denoiser, UNetSize
from fedtranscribe.privacy.diffusion import Discriminator, Teacher
from fedtranscribe.privacy.diffusion_noise import CalibrateBy, calibrated
from fedtranscribe.privacy.release_plan import Release
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.synthesis.method import Facts, Material, MethodPlan, Trainer, expect_steps

NAME = "dp-sad"

# Stands where the noise is still to be found.
_NO_NOISE_YET = 1.0

_SHARED = ("pretrain_epochs", "pretrain_batch", "pretrain_lr", "ema_decay")
_KINDS = {
    "teacher": Teacher,
    "discriminator": Discriminator,
    "student_start": Start,
    "weighting": Weighting,
    "concatenation": Concatenation,
}


class DpSadMethod:
    """Settings of the host -> DP-SAD."""

    def public_data(self, settings: SynthesizeSettings, facts: Facts) -> str | None:
        """What was asked for; drawn shapes where a public teacher would have nothing."""
        if settings.pretrain_data is not None:
            return None if settings.pretrain_data == "none" else settings.pretrain_data
        resolved = _resolved(settings, facts)
        return "shapes" if resolved.teacher is Teacher.PUBLIC else None

    def plan(
        self,
        settings: SynthesizeSettings,
        facts: Facts,
        public_records: int,
        start: Release | None = None,
    ) -> MethodPlan:
        """Resolve, check, and find the noise.

        Raises:
            ConfigError: a batch larger than the data, no public images for a public teacher, an
                image side that the networks cannot have.
        """
        resolved = _resolved(settings, facts, started=start is not None)
        wanted = resolved.privacy_plan(facts.records, facts.dimensions)
        if not public_records and not resolved.private_teacher:
            raise ConfigError(
                "Expected public images for teacher=public; name some by --pretrain-data, or take "
                "--teacher dp."
            )
        classes = 0 if settings.conditional is False else facts.classes
        private = wanted.training.steps
        steps = {
            Stage.PRETRAINING.value: resolved.pretrain_steps(public_records),
            Stage.TEACHER.value: private if resolved.private_teacher else 0,
            Stage.STUDENT.value: private,
        }
        expect_steps(steps)
        # An impossible side is found before the noise, which takes longer.
        make_networks(resolved, facts.channels, facts.size, classes)
        published = None
        if settings.noise:
            adjacency, by = Adjacency(settings.adjacency), CalibrateBy(settings.calibrate_by)
            before = () if start is None else (start.event(Unit.RECORD, adjacency),)
            wanted = calibrated(wanted, settings.epsilon, settings.delta, adjacency, by, before)
            resolved = replace(resolved, noise_multiplier=wanted.sigma)
            published = wanted.published(settings.delta)
        return MethodPlan(
            method=NAME,
            settings=resolved,
            unet=resolved.unet,
            classes=classes,
            conditional=classes > 0 and resolved.student_conditioning,
            schedule=resolved.schedule,
            sampling=resolved.sampling,
            steps={stage: count for stage, count in steps.items() if count},
            release=resolved.release(facts.records),
            sigma=resolved.noise_multiplier,
            published=published,
            words=_words(settings, resolved, classes, private),
        )

    def trainer(self, plan: MethodPlan, facts: Facts, material: Material) -> DpSad:
        """Fresh networks and what trains them.

        Raises:
            ConfigError: images outside [-1, 1], labels absent or foreign.
        """
        networks = make_networks(
            plan.settings, facts.channels, facts.size, plan.classes, material.seed, material.device
        )
        return DpSad(
            networks,
            plan.settings,
            images=material.images,
            labels=material.labels(plan),
            ids=material.records.ids,
            public=material.public,
            public_labels=material.public_labels if plan.classes else None,
            noise=material.noise,
            bits=material.bits,
            rng=material.rng,
            backend=material.backend,
            physical_batch=material.physical_batch,
        )

    def network(self, trainer: Trainer) -> Denoiser:
        """The student's averaged weights."""
        assert isinstance(trainer, DpSad)
        return trainer.ema.network


def _base(settings: SynthesizeSettings, facts: Facts) -> DpSadSettings:
    gradients = Gradients(settings.calibrate_by)
    if settings.profile == "paper":
        return paper_settings(_paper_set(facts), _NO_NOISE_YET, gradients)
    return replace(tiny_settings(_NO_NOISE_YET if settings.noise else 0.0), gradients=gradients)


def _begun(base: DpSadSettings, facts: Facts, *, quick: bool) -> DpSadSettings:
    """On samples of a private start, which are a public teacher's, and show the records."""
    base = replace(base, teacher=Teacher.PUBLIC, student_start=Start.TEACHER)
    if not quick:
        return base
    batch = min(2_048, max(64, facts.records // 8))
    return replace(
        base,
        pretrain_batch=32,
        pretrain_epochs=8,
        batch=batch,
        epochs=4,
        lr=5e-4,
        sampling=Sampling(25, eta=0.0),
    )


def _paper_set(facts: Facts) -> str:
    """The set of the paper whose images look like these."""
    if facts.channels == 1:
        return "fashion-mnist" if facts.data == "fashion-mnist" else "mnist"
    return "celeba"


def _resolved(
    settings: SynthesizeSettings, facts: Facts, *, started: bool = False
) -> DpSadSettings:
    base, own = _base(settings, facts), settings.dp_sad
    if started:
        base = _begun(base, facts, quick=settings.profile == "quick")
    changes: dict[str, Any] = {
        name: value for name in _SHARED if (value := getattr(settings, name)) is not None
    }
    named = {option: getattr(own, option) for option in DpSadOptions.model_fields}
    given = {name: value for name, value in named.items() if value is not None}
    time_steps = given.pop("time_steps", base.schedule.steps)
    if "teacher_guidance" in given:
        given["guidance"] = given.pop("teacher_guidance")
    changes |= {n: _KINDS[n](value) if n in _KINDS else value for n, value in given.items()}
    # What nobody asked for gives way to small data; what somebody did is refused.
    changes.setdefault("batch", min(base.batch, facts.records))
    if settings.size is not None:
        changes["unet"] = UNetSize(settings.size)
    visited = settings.sampling_steps or min(base.sampling.steps, time_steps)
    guidance = base.sampling.guidance if settings.guidance is None else settings.guidance
    assert changes.keys() <= {field.name for field in fields(base)}
    return replace(
        base,
        **changes,
        noise_multiplier=_NO_NOISE_YET if settings.noise else 0.0,
        schedule=replace(base.schedule, steps=time_steps),
        sampling=replace(base.sampling, steps=visited, guidance=guidance),
    )


def _words(
    settings: SynthesizeSettings, resolved: DpSadSettings, classes: int, private: int
) -> tuple[str, ...]:
    labels = f"{classes} classes" if classes else "unconditional"
    sigma = f"σ = {resolved.noise_multiplier:.4g}" if settings.noise else "no clipping, no noise"
    judge = (
        f"λ = {resolved.adversarial_weight:g}, discriminator from {resolved.discriminator}"
        if resolved.adversarial
        else "no discriminator"
    )
    return (
        f"dp-sad, profile {settings.profile}: {resolved.unet} U-Nets, {labels}, "
        f"T = {resolved.schedule.steps}",
        f"teacher {resolved.teacher} with w = {resolved.guidance:g}, {judge}",
        f"{private:,} steps of {resolved.batch} records expected in each private training, "
        f"K = {resolved.copies}, {sigma}",
    )
