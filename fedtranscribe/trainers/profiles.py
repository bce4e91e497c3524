"""A user's options -> settings of a method, by profile, private start, and size of the data.

Profile `quick` is ours: minutes on two cores for a few thousand small images. Profile `paper` is
the paper's, for its data set whose images have this shape. What nobody asked for gives way to small
data; what somebody did is refused.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from fedtranscribe.config import DpSadOptions, SynthesizeSettings
from fedtranscribe.errors import ConfigError
from fedtranscribe.models.diffusion import Sampling
from fedtranscribe.models.unet import UNetSize, make_unet
from fedtranscribe.privacy.diffusion import Discriminator, Teacher
from fedtranscribe.privacy.published import TIME_STEPS
from fedtranscribe.trainers.dp_promise import (
    DpPromise,
    DpPromiseSettings,
    NoisyImages,
    PhaseOne,
    PromiseStage,
)
from fedtranscribe.trainers.dp_sad import DpSad, DpSadSettings, make_networks
from fedtranscribe.trainers.plan import DataFacts, Recipe, TrainingPlan
from fedtranscribe.trainers.stages import TrainingInputs

# Stands where the noise is still to be found.
_NO_NOISE_YET = 1.0

_SHARED = ("pretrain_epochs", "pretrain_batch", "pretrain_lr", "ema_decay")


def _named(source: Any, names: Any) -> dict[str, Any]:
    """What a user asked for."""
    return {name: value for name in names if (value := getattr(source, name)) is not None}


def _of_paper(profiles: Mapping[str, Any], dataset: str) -> Any:
    if dataset not in profiles:
        raise ConfigError(
            f"The paper has no settings for {dataset!r}; choose one of {', '.join(profiles)}."
        )
    return profiles[dataset]


def _grey_set(facts: DataFacts) -> str:
    return "fashion-mnist" if facts.data == "fashion-mnist" else "mnist"


def _large_batch(facts: DataFacts) -> int:
    """After a private start few large steps correct what its samples lack."""
    return min(2_048, max(64, facts.records // 8))


# ---------------------------------------------------------------- dp-promise

_PAPER_PUBLIC = {"mnist": "fashion-mnist", "fashion-mnist": "cifar10"}
_BATCHES = ("phase1_batch", "phase2_batch")
_PHASE1 = ("boundary", "phase1_batch", "phase1_epochs", "phase1_lr")
_PROMISE_NAMES = (
    *("phase1_batch", "phase1_epochs", "phase1_lr", "phase2_batch", "phase2_epochs", "phase2_lr"),
    *("copies", "clip", "label_drop", "freeze_time_embedding"),
)


def promise_paper_settings(dataset: str, noise_multiplier: float) -> DpPromiseSettings:
    """The settings of dp-promise's section 6.2; what it leaves open has our defaults.

    MNIST and Fashion-MNIST are conditional, the others are not: their network has 0 classes. At
    64x64 the paper takes phase1_batch = 16 instead for ε of 1 and 5.

    Args:
        dataset: mnist, fashion-mnist, celeba-32, celeba-64 or cifar-10; else a ConfigError.
        noise_multiplier: σ, calibrated to the ε wanted.
    """
    grey = DpPromiseSettings(noise_multiplier)
    colour = replace(grey, boundary=925, phase2_lr=3e-4, copies=4, unet=UNetSize.LARGE)
    profiles = {
        "mnist": grey,
        "fashion-mnist": replace(grey, pretrain_epochs=1000, unet=UNetSize.MEDIUM),
        "celeba-32": replace(colour, phase1_epochs=2),
        "celeba-64": replace(colour, boundary=950, phase1_epochs=1, phase2_epochs=15),
        "cifar-10": colour,
    }
    return _of_paper(profiles, dataset)


def _promise_set(facts: DataFacts) -> str:
    """The set of the paper whose images look like these."""
    if facts.channels == 1:
        return _grey_set(facts)
    return "cifar-10" if facts.size <= 32 else "celeba-64"


def _promise_quick(
    settings: SynthesizeSettings, facts: DataFacts, *, with_start: bool
) -> DpPromiseSettings:
    plain = DpPromiseSettings(
        _NO_NOISE_YET,
        boundary=900 if facts.size <= 28 else 925 if facts.size <= 32 else 950,
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
    if with_start:
        return replace(
            plain,
            pretrain_batch=32,
            pretrain_epochs=8,
            pretrain_lr=2e-3,
            phase1_epochs=0.5,
            phase2_batch=_large_batch(facts),
            phase2_epochs=4,
            phase2_lr=5e-4,
            sampling=Sampling(10, eta=0.0),
        )
    # Under noise a step is worth more, the more records share it.
    return replace(plain, phase2_batch=400, copies=2) if settings.noise else plain


def _boundary(settings: SynthesizeSettings, default: int, *, with_start: bool) -> int:
    """S; T + 1 for no Phase I.

    After a private start there is none, unless something of it was asked for: its samples show the
    late time steps as well, and training on these alone undoes what the network knows of others.
    """
    own, none = settings.dp_promise, TIME_STEPS + 1
    asked = _named(own, _PHASE1)
    wanted = bool(asked) or not with_start if own.phase1 is None else own.phase1
    if wanted and own.boundary != none:
        return asked.get("boundary", default)
    for name, value in asked.items():
        if (name, value) != ("boundary", none):
            raise ConfigError(
                f"Expected {name}={value} or no Phase I, not both; leave one of them out."
            )
    return none


class DpPromiseRecipe:
    """See `Recipe`."""

    def public_data(self, settings: SynthesizeSettings, facts: DataFacts) -> str | None:
        """The paper's, where its profile runs."""
        return _PAPER_PUBLIC.get(_promise_set(facts)) if settings.profile == "paper" else None

    def resolve(
        self, settings: SynthesizeSettings, facts: DataFacts, *, with_start: bool = False
    ) -> DpPromiseSettings:
        """Raises ConfigError for S outside 1..T+1."""
        if settings.profile == "paper":
            base = promise_paper_settings(_promise_set(facts), _NO_NOISE_YET)
        else:
            base = _promise_quick(settings, facts, with_start=with_start)
        own = settings.dp_promise
        changes = {name: min(getattr(base, name), facts.records) for name in _BATCHES}
        changes |= _named(own, _PROMISE_NAMES) | _named(settings, _SHARED)
        if settings.size is not None:
            changes["unet"] = UNetSize(settings.size)
        sampling = _named(settings, ("guidance",))
        if settings.sampling_steps is not None:
            sampling["steps"] = settings.sampling_steps
        published = settings.calibrate_by == "published"
        return replace(
            base,
            **changes,
            noise_multiplier=_NO_NOISE_YET if settings.noise else 0.0,
            boundary=_boundary(settings, base.boundary, with_start=with_start),
            phase1=PhaseOne.PUBLISHED if published else PhaseOne.SOUND,
            noisy_images=NoisyImages(own.noisy_images),
            pretrain_labels=with_start,
            sampling=replace(base.sampling, **sampling),
        )

    def conditional(
        self, settings: SynthesizeSettings, facts: DataFacts, resolved: DpPromiseSettings
    ) -> tuple[bool, bool]:
        """As asked for; the paper's sets in colour are unconditional."""
        usual = settings.profile == "quick" or facts.channels == 1
        return usual if settings.conditional is None else settings.conditional, True

    def words(
        self,
        settings: SynthesizeSettings,
        facts: DataFacts,
        resolved: DpPromiseSettings,
        steps: Mapping[str, int],
        labels: str,
    ) -> tuple[str, ...]:
        """Profile, Phase I, Phase II."""
        profile = f"paper, {_promise_set(facts)}" if settings.profile == "paper" else "quick"
        first, second = resolved.phase1_range, resolved.phase2_range
        phase1 = (
            f"Phase I over time steps {first.start}..{first.stop - 1}: "
            f"{steps[PromiseStage.PHASE1]:,} steps of {resolved.phase1_batch} records expected"
            if first
            else "no Phase I"
        )
        over = f"1..{second.stop - 1}" if second else "none"
        return (
            f"dp-promise, profile {profile}: {resolved.unet} U-Net, {labels}",
            phase1,
            f"Phase II over time steps {over}: {steps[PromiseStage.PHASE2]:,} steps of "
            f"{resolved.phase2_batch} records expected, K = {resolved.copies}, {_sigma(resolved)}",
        )

    def trainer(
        self,
        plan: TrainingPlan,
        facts: DataFacts,
        inputs: TrainingInputs,
        seed: int,
        device: torch.device,
    ) -> DpPromise:
        """Labels of public images are used where they are the records'."""
        assert isinstance(plan.settings, DpPromiseSettings)
        denoiser = make_unet(plan.settings.unet, facts.channels, facts.size, plan.classes, seed)
        if not plan.settings.pretrain_labels:
            inputs = replace(inputs, public_labels=None)
        return DpPromise(denoiser.to(device), plan.settings, inputs)


def _sigma(resolved: DpPromiseSettings | DpSadSettings) -> str:
    sigma = resolved.noise_multiplier
    return f"σ = {sigma:.4g}" if sigma else "no clipping, no noise"


# ---------------------------------------------------------------- DP-SAD


def sad_paper_settings(
    dataset: str, noise_multiplier: float, gradients: str = "sound"
) -> DpSadSettings:
    """The settings of DP-SAD's supplement; networks and what else it leaves open are ours.

    Args:
        dataset: mnist, fashion-mnist or celeba (with hair colour or gender as the label, at 32, 64
            or 128 pixels a side); else a ConfigError.
        noise_multiplier: σ, calibrated to the ε wanted.
        gradients: sound; or published, which is Algorithm 1 as printed, with an unprotected
            teacher, plain SGD, and errors of images.
    """
    sizes = {
        "mnist": UNetSize.SMALL,
        "fashion-mnist": UNetSize.MEDIUM,
        "celeba": UNetSize.LARGE,
    }
    ours = DpSadSettings(noise_multiplier, unet=_of_paper(sizes, dataset))
    if gradients == "sound":
        return ours
    printed = {"teacher": Teacher.DP, "optimiser": "sgd", "weighting": "image"}
    return replace(ours, gradients="published", **printed)


def sad_tiny_settings(noise_multiplier: float) -> DpSadSettings:
    """For a few thousand small grey images on two cores: a private teacher, few epochs.

    The teacher may start from public images; alone those teach too little of another data set.
    """
    private = noise_multiplier > 0
    return DpSadSettings(
        noise_multiplier,
        teacher=Teacher.DP,
        # Noise asks for large batches; epochs are what two cores do in a quarter of an hour.
        batch=256 if private else 64,
        epochs=5 if private else 8,
        lr=1e-3,
        teacher_lr=1e-3,
        discriminator_lr=1e-3,
        student_start="teacher",
        pretrain_batch=64,
        pretrain_epochs=20,
        pretrain_lr=2e-3,
        discriminator_batch=32,
        synthetic_images=512,
        ema_decay=0.99,
        unet=UNetSize.TINY,
        sampling=Sampling(25),
    )


def _sad_base(settings: SynthesizeSettings, facts: DataFacts, *, with_start: bool) -> DpSadSettings:
    paper, gradients = settings.profile == "paper", settings.calibrate_by
    if paper:
        dataset = _grey_set(facts) if facts.channels == 1 else "celeba"
        base = sad_paper_settings(dataset, _NO_NOISE_YET, gradients)
    else:
        tiny = sad_tiny_settings(_NO_NOISE_YET if settings.noise else 0.0)
        base = replace(tiny, gradients=gradients)
    if not with_start:
        return base
    # Samples of a private start are a public teacher's, and show the records.
    base = replace(base, teacher=Teacher.PUBLIC, student_start="teacher")
    if paper:
        return base
    few = {"pretrain_batch": 32, "pretrain_epochs": 8, "epochs": 4, "lr": 5e-4}
    return replace(base, **few, batch=_large_batch(facts), sampling=Sampling(25, eta=0.0))


class DpSadRecipe:
    """See `Recipe`."""

    def public_data(self, settings: SynthesizeSettings, facts: DataFacts) -> str | None:
        """Drawn shapes where a public teacher would have nothing."""
        return "shapes" if self.resolve(settings, facts).teacher is Teacher.PUBLIC else None

    def resolve(
        self, settings: SynthesizeSettings, facts: DataFacts, *, with_start: bool = False
    ) -> DpSadSettings:
        """Options in their own words, in the names of the method."""
        base = _sad_base(settings, facts, with_start=with_start)
        changes: dict[str, Any] = {"batch": min(base.batch, facts.records)}
        changes |= _named(settings, _SHARED) | _named(settings.dp_sad, DpSadOptions.model_fields)
        time_steps = changes.pop("time_steps", base.schedule.steps)
        if "teacher_guidance" in changes:
            changes["guidance"] = changes.pop("teacher_guidance")
        for name, kind in {"teacher": Teacher, "discriminator": Discriminator}.items():
            if name in changes:
                changes[name] = kind(changes[name])
        if settings.size is not None:
            changes["unet"] = UNetSize(settings.size)
        visited = settings.sampling_steps or min(base.sampling.steps, time_steps)
        guidance = base.sampling.guidance if settings.guidance is None else settings.guidance
        return replace(
            base,
            **changes,
            noise_multiplier=_NO_NOISE_YET if settings.noise else 0.0,
            schedule=replace(base.schedule, steps=time_steps),
            sampling=replace(base.sampling, steps=visited, guidance=guidance),
        )

    def conditional(
        self, settings: SynthesizeSettings, facts: DataFacts, resolved: DpSadSettings
    ) -> tuple[bool, bool]:
        """Unless asked otherwise; a student without labels gives images without."""
        return settings.conditional is not False, resolved.student_conditioning

    def words(
        self,
        settings: SynthesizeSettings,
        facts: DataFacts,
        resolved: DpSadSettings,
        steps: Mapping[str, int],
        labels: str,
    ) -> tuple[str, ...]:
        """Profile, teacher and discriminator, private trainings."""
        judge = (
            f"λ = {resolved.adversarial_weight:g}, discriminator from {resolved.discriminator}"
            if resolved.adversarial_weight
            else "no discriminator"
        )
        return (
            f"dp-sad, profile {settings.profile}: {resolved.unet} U-Nets, {labels}, "
            f"T = {resolved.schedule.steps}",
            f"teacher {resolved.teacher} with w = {resolved.guidance:g}, {judge}",
            f"{steps['student']:,} steps of {resolved.batch} records expected in each private "
            f"training, K = {resolved.copies}, {_sigma(resolved)}",
        )

    def trainer(
        self,
        plan: TrainingPlan,
        facts: DataFacts,
        inputs: TrainingInputs,
        seed: int,
        device: torch.device,
    ) -> DpSad:
        """Labels of public images are used where networks know labels."""
        assert isinstance(plan.settings, DpSadSettings)
        shape = facts.channels, facts.size, plan.classes
        networks = make_networks(plan.settings, shape, seed, device)
        if not plan.classes:
            inputs = replace(inputs, public_labels=None)
        return DpSad(networks, plan.settings, inputs)


# ---------------------------------------------------------------- by name

RECIPES: dict[str, Recipe] = {"dp-promise": DpPromiseRecipe(), "dp-sad": DpSadRecipe()}


def recipe_named(name: str) -> Recipe:
    """The recipe of a method; ConfigError if there is none."""
    if name not in RECIPES:
        raise ConfigError(f"No method {name!r}; choose one of {', '.join(RECIPES)}.")
    return RECIPES[name]
