"""dp-promise for the host: profile and options -> a plan with its noise, and the trainer.

Profile `quick` is ours: minutes on two cores for a few thousand small images. Profile `paper` is
section 6.2 of the paper, for the set whose images have this shape. What a profile leaves to the
data (batches larger than the set, S by image size) follows from public facts.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedtranscribe.config import SynthesizeSettings
from fedtranscribe.errors import ConfigError
from fedtranscribe.methods.dp_promise import DpPromise, Stage
from fedtranscribe.methods.dp_promise.settings import (
    DpPromiseSettings,
    NoisyImages,
    PhaseOne,
    paper_settings,
)
from fedtranscribe.models.sampling import Sampling
from fedtranscribe.models.unet import Denoiser, UNetSize, make_unet
from fedtranscribe.privacy.diffusion_noise import CalibrateBy, calibrated
from fedtranscribe.privacy.published import TIME_STEPS
from fedtranscribe.privacy.release_plan import Release
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.synthesis.method import Facts, Material, MethodPlan, Trainer, expect_steps

NAME = "dp-promise"

# Stands where the noise is still to be found.
_NO_NOISE_YET = 1.0

_PAPER_PUBLIC = {"mnist": "fashion-mnist", "fashion-mnist": "cifar10"}
_BATCHES = ("phase1_batch", "phase2_batch")
_PHASE1 = ("boundary", "phase1_batch", "phase1_epochs", "phase1_lr")
_NAMED = (
    *("phase1_batch", "phase1_epochs", "phase1_lr", "phase2_batch", "phase2_epochs", "phase2_lr"),
    *("copies", "clip", "label_drop", "freeze_time_embedding"),
)
_SHARED = ("pretrain_epochs", "pretrain_batch", "pretrain_lr", "ema_decay")


class DpPromiseMethod:
    """Settings of the host -> dp-promise."""

    def public_data(self, settings: SynthesizeSettings, facts: Facts) -> str | None:
        """What was asked for; the paper's where nothing was and its profile runs."""
        if settings.pretrain_data is not None:
            return None if settings.pretrain_data == "none" else settings.pretrain_data
        return _PAPER_PUBLIC.get(_paper_set(facts)) if settings.profile == "paper" else None

    def plan(
        self,
        settings: SynthesizeSettings,
        facts: Facts,
        public_records: int,
        start: Release | None = None,
    ) -> MethodPlan:
        """Resolve, check, and find the noise.

        Raises:
            ConfigError: S outside 1..T+1, or so small that Phase I alone exceeds the budget (names
                the smallest S that fits); a batch larger than the data; an image side that the
                network cannot halve.
            UnsupportedAdjacencyError: add-remove with Phase I.
        """
        resolved = _resolved(settings, facts, started=start is not None)
        wanted = resolved.privacy_plan(facts.records, facts.dimensions)
        classes = facts.classes if _conditional(settings, facts) else 0
        steps = {
            Stage.PRETRAINING.value: resolved.pretrain_steps(public_records),
            Stage.PHASE1.value: wanted.phase1_steps,
            Stage.PHASE2.value: wanted.phase2.steps if resolved.phase2_range else 0,
        }
        expect_steps(steps)
        # An impossible side is found before the noise, which takes longer.
        make_unet(resolved.unet, facts.channels, facts.size, classes)
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
            conditional=classes > 0,
            schedule=resolved.schedule,
            sampling=resolved.sampling,
            steps={stage: count for stage, count in steps.items() if count},
            release=resolved.release(facts.records, facts.dimensions),
            sigma=resolved.noise_multiplier,
            published=published,
            words=_words(settings, facts, resolved, steps, classes),
        )

    def trainer(self, plan: MethodPlan, facts: Facts, material: Material) -> DpPromise:
        """A fresh network and what trains it.

        Raises:
            ConfigError: images outside [-1, 1], labels absent or foreign.
        """
        denoiser = make_unet(
            plan.unet, facts.channels, facts.size, plan.classes, seed=material.seed
        )
        return DpPromise(
            denoiser.to(material.device),
            plan.settings,
            images=material.images,
            labels=material.labels(plan),
            ids=material.records.ids,
            public=material.public,
            public_labels=material.public_labels if plan.settings.pretrain_labels else None,
            noise=material.noise,
            bits=material.bits,
            rng=material.rng,
            backend=material.backend,
            physical_batch=material.physical_batch,
        )

    def network(self, trainer: Trainer) -> Denoiser:
        """The averaged weights."""
        assert isinstance(trainer, DpPromise)
        return trainer.ema.network


def _conditional(settings: SynthesizeSettings, facts: Facts) -> bool:
    if settings.conditional is not None:
        return settings.conditional
    return settings.profile == "quick" or facts.channels == 1  # the paper's sets in colour are not


def _paper_set(facts: Facts) -> str:
    """The set of the paper whose images look like these."""
    if facts.channels == 1:
        return "fashion-mnist" if facts.data == "fashion-mnist" else "mnist"
    return "cifar-10" if facts.size <= 32 else "celeba-64"


def _quick(settings: SynthesizeSettings, facts: Facts, *, started: bool) -> DpPromiseSettings:
    boundary = 900 if facts.size <= 28 else 925 if facts.size <= 32 else 950
    plain = DpPromiseSettings(
        _NO_NOISE_YET,
        boundary=boundary,
        phase1_batch=32,
        phase1_epochs=3,
        phase1_lr=1e-3,
        phase2_batch=64,
        phase2_epochs=10,
        phase2_lr=2e-3,
        copies=1,
        pretrain_epochs=5,
        pretrain_batch=64,
        pretrain_lr=1e-3,
        unet=UNetSize.TINY,
        sampling=Sampling(25),
    )
    if started:
        # Few large steps correct what the samples lack.
        return replace(
            plain,
            pretrain_batch=32,
            pretrain_epochs=8,
            pretrain_lr=2e-3,
            phase1_epochs=0.5,
            phase2_batch=min(2_048, max(64, facts.records // 8)),
            phase2_epochs=4,
            phase2_lr=5e-4,
            sampling=Sampling(10, eta=0.0),
        )
    # Under noise a step is worth more, the more records share it.
    return replace(plain, phase2_batch=400, copies=2) if settings.noise else plain


def _resolved(settings: SynthesizeSettings, facts: Facts, *, started: bool) -> DpPromiseSettings:
    paper = settings.profile == "paper"
    if paper:
        base = paper_settings(_paper_set(facts), _NO_NOISE_YET)
    else:
        base = _quick(settings, facts, started=started)
    own = settings.dp_promise
    changes: dict[str, Any] = {
        name: value
        for source, names in ((own, _NAMED), (settings, _SHARED))
        for name in names
        if (value := getattr(source, name)) is not None
    }
    # What nobody asked for gives way to small data; what somebody did is refused.
    changes |= {
        name: min(getattr(base, name), facts.records) for name in _BATCHES if name not in changes
    }
    if settings.size is not None:
        changes["unet"] = UNetSize(settings.size)
    sampling = base.sampling
    if settings.sampling_steps is not None:
        sampling = replace(sampling, steps=settings.sampling_steps)
    if settings.guidance is not None:
        sampling = replace(sampling, guidance=settings.guidance)
    published = settings.calibrate_by == "published"
    return replace(
        base,
        **changes,
        noise_multiplier=_NO_NOISE_YET if settings.noise else 0.0,
        boundary=_boundary(settings, base.boundary, started=started),
        phase1=PhaseOne.PUBLISHED if published else PhaseOne.SOUND,
        noisy_images=NoisyImages(own.noisy_images),
        pretrain_labels=started,
        sampling=sampling,
    )


def _boundary(settings: SynthesizeSettings, default: int, *, started: bool) -> int:
    """S; T + 1 for no Phase I.

    After a private start there is none, unless something of it was asked for: its samples show the
    late time steps as well, and training on these alone undoes what the network knows of others.

    Raises:
        ConfigError: something of a Phase I was asked for, and to leave it out.
    """
    own, none = settings.dp_promise, TIME_STEPS + 1
    asked = {name: value for name in _PHASE1 if (value := getattr(own, name)) is not None}
    wanted = bool(asked) or not started if own.phase1 is None else own.phase1
    if wanted and own.boundary != none:
        return asked.get("boundary", default)
    for name, value in asked.items():
        if (name, value) != ("boundary", none):
            raise ConfigError(
                f"Expected {name}={value} or no Phase I, not both; leave one of them out."
            )
    return none


def _words(
    settings: SynthesizeSettings,
    facts: Facts,
    resolved: DpPromiseSettings,
    steps: Mapping[str, int],
    classes: int,
) -> tuple[str, ...]:
    profile = f"paper, {_paper_set(facts)}" if settings.profile == "paper" else "quick"
    labels = f"{classes} classes" if classes else "unconditional"
    first = resolved.phase1_range
    phase1 = (
        f"Phase I over time steps {first.start}..{first.stop - 1}: "
        f"{steps[Stage.PHASE1.value]:,} steps of {resolved.phase1_batch} records expected"
        if first
        else "no Phase I"
    )
    sigma = f"σ = {resolved.noise_multiplier:.4g}" if settings.noise else "no clipping, no noise"
    second = resolved.phase2_range
    over = f"1..{second.stop - 1}" if second else "none"
    return (
        f"dp-promise, profile {profile}: {resolved.unet} U-Net, {labels}",
        phase1,
        f"Phase II over time steps {over}: {steps[Stage.PHASE2.value]:,} steps of "
        f"{resolved.phase2_batch} records expected, K = {resolved.copies}, {sigma}",
    )
