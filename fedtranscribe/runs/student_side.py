"""The student side of a run before its first query: public images, features, pre-training."""

import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from fedtranscribe.config import PUBLIC_SHAPES, FederationSettings, StudentSettings
from fedtranscribe.data import ImageSet, NamedData, draw_shapes, load_public
from fedtranscribe.data.shapes import draw_leaves
from fedtranscribe.errors import ConfigError
from fedtranscribe.methods.moments import features_of, public_map
from fedtranscribe.methods.pretraining import GeneratorPretraining, train_classifier
from fedtranscribe.models import Classifier, Generator, build
from fedtranscribe.models.backbones import (
    NO_BACKBONES,
    Backbone,
    Backbones,
    FrozenBackbone,
    backbone_of,
    expect_backbone,
    find_weights,
)
from fedtranscribe.models.fixed_features import (
    FIXED,
    PATCHES,
    UnitFeatures,
    axis_floor,
    fixed_features,
    is_fixed,
    side_seen,
)
from fedtranscribe.models.generator import GENERATED
from fedtranscribe.results.parts import PublicFeatures
from fedtranscribe.results.progress import Progress, silent

S = TypeVar("S", bound=StudentSettings)


def with_features(settings: S, size: int | None) -> S:
    """The settings with the student that features and weights make, named by both.

    Resuming a run with other weights asks for another student, which is an error that says so.

    Args:
        settings: what was asked for.
        size: pixels a side of the images; None where nobody knows them yet.
    """
    network = settings.features
    if network is None:
        _expect_nothing_else(settings)
        return settings
    if isinstance(settings, FederationSettings) and settings.method != "feddpsd":
        raise ConfigError(
            f"Expected method=feddpsd with features={network}, got {settings.method!r}."
        )
    if network in FIXED:
        raise ConfigError(f"Expected --student {network}: these features need no weights.")
    expect_backbone(network)
    if settings.features_weights is None:
        raise ConfigError(
            f"Expected --features-weights with --features {network}: a file, imagenet, or "
            "hub:OWNER/NAME/FILE. The records do not change the features, so the weights must be "
            "trained already."
        )
    if settings.features_declared_by is None:
        raise ConfigError(
            f"Expected --features-declared-by with --features {network}: the name of the "
            "person who declares that its weights never saw the private records. The guarantee "
            "depends on it."
        )
    if size is None and settings.features_side is None:
        raise ConfigError(
            "Expected features-side with features in a deployment: the server does not know the "
            "holders' images when the run begins."
        )
    weights = find_weights(settings.features_weights, network)
    made = backbone_of(network, weights, size or 0, settings.features_side).name
    if settings.student not in (None, made):
        raise ConfigError(_other(settings.student, made))
    return settings.model_copy(update={"student": made})


def _other(student: str | None, made: str) -> str:
    if Backbone.parse(student):
        return f"The run began with the student {student}, but these weights give {made}."
    return f"Expected no --student {student} with --features: the student is linear in them."


def _expect_nothing_else(settings: StudentSettings) -> None:
    for name in ("weights", "side", "declared_by"):
        if getattr(settings, f"features_{name}") is not None:
            option = f"--features-{name.replace('_', '-')}"
            raise ConfigError(f"Expected --features with {option}: the name of a network.")
    if Backbone.parse(settings.student):
        raise ConfigError(
            f"Expected --features and --features-weights with the student {settings.student}."
        )


def public_backbones(settings: StudentSettings) -> Backbones:
    """What a holder on the machine of the run has and allows: the run's own network."""
    if settings.features is None or settings.features_weights is None:
        return NO_BACKBONES
    return Backbones.of({settings.features: _file(settings)})


def load_weights(student: Classifier, settings: StudentSettings) -> None:
    """Give a student the public weights that its features have, if any."""
    fixed = student.backbone.fixed if isinstance(student.backbone, UnitFeatures) else None
    if isinstance(fixed, FrozenBackbone):
        fixed.load(_file(settings))


def public_features(settings: StudentSettings) -> PublicFeatures | None:
    """What a result says of them; None where the features are our own."""
    backbone = Backbone.parse(settings.student)
    if backbone is None or settings.features_declared_by is None:
        return None
    return PublicFeatures(
        network=backbone.network,
        side=backbone.side,
        sha256=backbone.digest,
        declared_by=settings.features_declared_by,
    )


def _file(settings: StudentSettings) -> Path:
    assert settings.features is not None
    assert settings.features_weights is not None  # with_features has seen to both
    return find_weights(settings.features_weights, settings.features)


_PUBLIC_SHAPES, _FEWEST_SHAPES, _USUAL_SIDE = 8_000, 1_000, 64
# So many public images show the axes of the student's features well enough.
_AXES, _LEAVES = 4_000, 3_000


@dataclass
class StudentSide:
    """Student and generator after public pre-training."""

    student: Classifier  # the classifier to be
    generator: Generator | None  # maps z to images; None for images of a size that it cannot make
    rng: torch.Generator  # goes on where the pre-training stopped

    @property
    def network(self) -> Generator:
        """The generator, for methods that cannot do without."""
        if self.generator is None:
            sides, size = ", ".join(map(str, GENERATED)), self.student.size
            raise ConfigError(f"Expected images of {sides} pixels a side, got {size}; resize them.")
        return self.generator


def public_images(
    settings: StudentSettings,
    channels: int,
    size: int,
    private: NamedData | None,
    *,
    shapes: bool = True,
) -> ImageSet | None:
    """The public set that generator and student start from; None where there is none.

    Args:
        settings: name it.
        channels: of the private images.
        size: of the private images, in pixels.
        private: the records, which cannot be public at the same time; None only at a server,
            which knows none.
        shapes: whether drawn ones are of use.
    """
    if settings.public_data in (None, "none"):
        return None
    if settings.public_data != PUBLIC_SHAPES:
        root, download = settings.data_root, settings.download
        public = load_public(
            "public_data", settings.public_data, private, root, download, settings.as_public
        )
        if (public.channels, public.size) != (channels, size):
            raise ConfigError(
                f"The public set {public.name} has {public.channels}x{public.size}x{public.size} "
                f"images, the private data {channels}x{size}x{size}; choose "
                "another --public-data, or 'none'."
            )
        return public
    if not shapes:
        return None
    asked = math.ceil(settings.dpsd.public_share * (settings.rows or settings.dpsd.rows))
    images = _shapes(channels, size, settings.seed, max(_shape_count(size), asked))
    # Nominal labels: nobody trains on them.
    return ImageSet(PUBLIC_SHAPES, PUBLIC_SHAPES, images, torch.zeros(len(images)).long(), 2)


def _shape_count(size: int) -> int:
    """How many shapes show what there is to see: fewer large ones, which take long to draw."""
    return max(_FEWEST_SHAPES, min(_PUBLIC_SHAPES, _PUBLIC_SHAPES * _USUAL_SIDE**2 // size**2))


@lru_cache(maxsize=2)
def _shapes(channels: int, size: int, seed: int, count: int) -> Tensor:
    # Drawing thousands takes seconds, and one run after the other asks for the same.
    return draw_shapes(count, channels, size, torch.Generator().manual_seed(seed))


def _fit_axes(student: Classifier, public: ImageSet | None, seed: int) -> None:
    """Set a student's centre and map by public images: those given, or drawn ones."""
    features, name = features_of(student), student.architecture
    size, (_, width) = side_seen(name, student.size), features.map.shape
    device, floor = features.map.device, axis_floor(name)
    if public is not None and public.name != PUBLIC_SHAPES:
        images = public.images[:_AXES].to(device)
        fitted = public_map(features.fixed, images, width, seed, floor)
    elif name in FIXED:
        fitted = _drawn_map(name, student.channels, size, width, seed, device)
    else:  # a public network, whose weights the name does not tell
        images = _drawn(name, student.channels, size, seed).to(device)
        fitted = public_map(features.fixed, images, width, seed, floor)
    features.set_axes(*fitted)


@lru_cache(maxsize=1)
def _drawn_map(
    features: str, channels: int, size: int, width: int, seed: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    # It takes seconds, and one run after the other asks for the same.
    images = _drawn(features, channels, size, seed).to(device)
    fixed = fixed_features(features, channels).to(device)
    return public_map(fixed, images, width, seed, axis_floor(features))


def _drawn(features: str, channels: int, size: int, seed: int) -> Tensor:
    """Images by a formula that show the axes of features: uint8 [n, ch, s, s]."""
    # What photographs are for small patches, they are for networks that learned from photographs.
    if channels == 3 and (features == PATCHES or Backbone.parse(features)):
        rng = torch.Generator().manual_seed(seed)
        return draw_leaves(min(_LEAVES, _shape_count(size)), channels, size, rng)
    return _shapes(channels, size, seed, _shape_count(size))[:_AXES]


def build_student_side(
    settings: StudentSettings,
    classes: int,
    channels: int,
    size: int,
    public: ImageSet | None,
    device: torch.device,
    progress: Progress = silent,
    *,
    fresh: bool = True,
    pretrain: bool = True,
    products: int = 0,
) -> StudentSide:
    """Make student and generator from the seed, and pre-train them on public images.

    Args:
        settings: the run's settings.
        classes: classes of the task.
        channels: image channels.
        size: image height and width.
        public: public images, labelled or not, or None.
        device: where to train.
        progress: shows the pre-training.
        fresh: whether nothing is stored: what a checkpoint holds is not computed again.
        pretrain: whether generator and student are; where moments are asked, the generator comes
            last, and the student is set by the answers.
        products: of a student on fixed features, see `unit_rows_of`.
    """
    rng = torch.Generator().manual_seed(settings.seed)
    architecture = settings.student_architecture
    shape = classes, channels, size
    student = build(architecture, *shape, seed=settings.seed, products=products)
    load_weights(student, settings)
    student = student.to(device)
    generator = None
    if size in GENERATED:
        latent, width = settings.dpsd.latent_dim, settings.dpsd.generator_width
        generator = Generator(latent, channels, size, width, seed=settings.seed).to(device)
    if is_fixed(architecture) and fresh:
        _fit_axes(student, public, settings.seed)
    if public is not None and generator is not None and fresh and pretrain:
        steps = settings.dpsd.pretrain_steps
        training = GeneratorPretraining(generator, public.images, steps, rng)
        while training.done < steps:
            training.step()
            progress(training.name, training.done, steps)
        known = public.classes == classes and not public.multilabel
        if public.name != PUBLIC_SHAPES and known:
            train_classifier(student, public.images, public.labels, steps, rng)
    return StudentSide(student, generator, rng)
