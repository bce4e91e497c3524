"""A public network's features for a run: which, from which file, and who vouches for them."""

from pathlib import Path
from typing import TypeVar

from fedtranscribe.config import FederationSettings, StudentSettings
from fedtranscribe.errors import ConfigError
from fedtranscribe.models import Classifier
from fedtranscribe.models.backbones import (
    NO_BACKBONES,
    Backbone,
    Backbones,
    FrozenBackbone,
    backbone_of,
    expect_backbone,
)
from fedtranscribe.models.fixed_features import FIXED, UnitFeatures
from fedtranscribe.models.public_weights import find_weights
from fedtranscribe.result_parts import PublicFeatures

S = TypeVar("S", bound=StudentSettings)


def with_features(settings: S, size: int | None) -> S:
    """The settings with the student that features and weights make, named by both.

    Resuming a run with other weights asks for another student, which is an error that says so.

    Args:
        settings: what was asked for.
        size: pixels a side of the images; None where nobody knows them yet.

    Raises:
        ConfigError: features without weights or without anybody who vouches for them, or a student
            that is none of theirs.
        ModelError: the network or its weights are unknown.
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


def given_backbones(settings: StudentSettings) -> Backbones:
    """What a holder on the machine of the run has and allows: the run's own network.

    Raises:
        ModelError: the file is gone.
    """
    if settings.features is None or settings.features_weights is None:
        return NO_BACKBONES
    return Backbones.of({settings.features: _file(settings)})


def load_weights(student: Classifier, settings: StudentSettings) -> None:
    """Give a student the public weights that its features have, if any.

    Raises:
        ModelError: another file than the student is named by, or a damaged one.
    """
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
