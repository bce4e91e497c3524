"""What a student and a generator are used for, and networks as a server receives them."""

import hashlib
import math
import os
from pathlib import Path
from typing import ClassVar, Literal, overload

import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtranscribe.config import FederationSettings
from fedtranscribe.errors import (
    ConfigError,
    InvalidDataError,
    ModelMismatchError,
    ProtocolError,
    UnsupportedAdjacencyError,
)
from fedtranscribe.models import Classifier, Generator
from fedtranscribe.models.classifier import probabilities_of
from fedtranscribe.models.diffusion import Synthesizer
from fedtranscribe.models.inference import labelled_samples, logits_of, named_by
from fedtranscribe.models.mixture import GaussianMixture
from fedtranscribe.privacy.accountant import quote, sound_table
from fedtranscribe.privacy.release_plan import MechanismRelease
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.questions.training_messages import TrainedNetwork
from fedtranscribe.results.parts import StatedGuarantee
from fedtranscribe.results.progress import Progress, silent

ImageArray = Tensor | NDArray


class Networks:
    """Base of what has a student, a generator, or both."""

    path: Path  # the folder that they were read from
    student: Classifier | None  # the classifier, in evaluation mode; None for DP-SAD and dp-promise
    # a network of images without labels, a mixture of images with labels, or a diffusion model,
    # which is asked for labels; None for methods that have neither
    generator: Generator | GaussianMixture | Synthesizer | None

    _kind: ClassVar[str]

    @property
    def method(self) -> str:
        """That learned them."""
        raise NotImplementedError

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """What the classes are called, in order; None where nobody named them."""
        raise NotImplementedError

    @property
    def threshold(self) -> float | tuple[float, ...] | None:
        """From which probability of the second of two classes on it is named; None for half.

        Of several labels per image: from which one of each class.
        """
        return None

    @overload
    def predict(self, images: ImageArray, names: Literal[False] = False) -> Tensor: ...

    @overload
    def predict(
        self, images: ImageArray, names: Literal[True]
    ) -> list[str] | list[tuple[str, ...]]: ...

    def predict(
        self, images: ImageArray, names: bool = False
    ) -> Tensor | list[str] | list[tuple[str, ...]]:
        """Likeliest class of each image, or its classes where there may be several.

        A release may say from which probability on a class is named.

        Args:
            images: [n, ch, s, s] or [n, s, s, ch], and [n, s, s] where they are grey; a tensor on
                any device or a numpy array, whole numbers from 0 to 255 or floating point in
                [0, 1].
            names: give the classes' names and not their numbers.

        Returns:
            int64 [n], on the CPU, or [n, classes] of 0 and 1 where there may be several; or n
            names, or n tuples of them.
        """
        if not names:
            logits, threshold = self._logits(images), self.threshold
            if threshold is None:
                return named_by(self._known_student, logits)
            if isinstance(threshold, tuple):
                return (logits.sigmoid() >= torch.tensor(threshold)).long()
            return (logits.softmax(-1)[:, 1] >= threshold).long()
        called = self.class_names
        if called is None:
            raise ConfigError(
                f"The {self._kind} in {self.path} does not name its classes; leave out names=True."
            )
        found = self.predict(images)
        if found.ndim == 2:
            return [tuple(called[i] for i in row.nonzero().flatten().tolist()) for row in found]
        return [called[label] for label in found.tolist()]

    def probabilities(self, images: ImageArray) -> Tensor:
        """How likely the student takes each class to be; the card says how far to trust it.

        Args:
            images: as for `predict`.

        Returns:
            float32 [n, classes], on the CPU; rows add up to one, unless there may be several.
        """
        logits = self._logits(images)
        return probabilities_of(logits, multilabel=self._known_student.multilabel)

    def sample(self, n: int, seed: int | None = None) -> tuple[Tensor, Tensor]:
        """Synthetic images and their labels: costs no privacy.

        The student labels what a network makes and what has been sharpened; other images of a
        mixture have the labels of their components; a diffusion model is asked for every class
        alike, and one without labels gives 0 to all.

        Args:
            n: how many.
            seed: the same one gives the same images; drawn afresh if not given.

        Returns:
            uint8 [n, ch, s, s]; int64 [n], or [n, classes] of 0 and 1 where there may be several.
        """
        drawn = int.from_bytes(os.urandom(7), "big") if seed is None else seed
        return self._samples(n, drawn)

    def _samples(self, n: int, seed: int, progress: Progress = silent) -> tuple[Tensor, Tensor]:
        if self.generator is None:
            raise ConfigError(
                f"The {self._kind} in {self.path} (method {self.method}) has no generator; only "
                "its student can be used."
            )
        if n < 1:
            raise ConfigError(f"Expected n={n} >= 1.")

        def done(drawn: int, total: int) -> None:
            progress("synthetic images", drawn, total)

        return labelled_samples(self.generator, self.student, n, seed, done)

    @property
    def _known_student(self) -> Classifier:
        if self.student is None:
            raise ConfigError(
                f"The {self._kind} in {self.path} (method {self.method}) has no student; train a "
                "classifier on what its sample() gives."
            )
        return self.student

    def _logits(self, images: ImageArray) -> Tensor:
        student = self._known_student
        found = _channels_first(images, student)
        if not len(found):
            return torch.empty(0, student.classes)
        return logits_of(student, _pixels(found))


def _pixels(images: Tensor) -> Tensor:
    """As they are, or whole numbers of another type as uint8."""
    real = images.is_floating_point()
    # Not a number fails this comparison too.
    inside = bool(((images >= 0) & (images <= (1 if real else 255))).all())
    if images.dtype == torch.bool or not inside:
        raise InvalidDataError(
            "Expected images of whole numbers from 0 to 255, or floating point in [0, 1], got "
            f"{images.dtype}{' outside of it' if not inside else ''}."
        )
    return images if real else images.to(torch.uint8)


def _channels_first(images: ImageArray, student: Classifier) -> Tensor:
    """Images as the student takes them, [n, ch, s, s]."""
    found = images if isinstance(images, Tensor) else torch.as_tensor(images)
    channels, size = student.channels, student.size
    shape = tuple(found.shape)
    if channels == 1 and shape[1:] == (size, size):
        found = found[:, None]
    elif shape[1:] == (size, size, channels) and shape[1:] != (channels, size, size):
        found = found.permute(0, 3, 1, 2)
    if tuple(found.shape[1:]) != (channels, size, size):
        raise ModelMismatchError(
            f"Expected images [n, {channels}, {size}, {size}], got {list(shape)}."
        )
    return found


# Two machines may round a sum of many numbers in other ways.
_ROUNDING = 1e-6
_MOST_RECORDS = 2**53


def expect_described(holder: str, trained: TrainedNetwork) -> None:
    """Refuse a network that is not the one that its holder describes, before it is written."""
    described = trained.facts.diffusion
    if hashlib.sha256(trained.network).hexdigest() != described.sha256:
        raise ProtocolError(f"The network of holder {holder} is not the one that it describes.")
    if not 1 <= described.records <= _MOST_RECORDS:
        raise ProtocolError(f"Holder {holder} says that it has {described.records} records.")


def expect_shape(holder: str, trained: TrainedNetwork, model: Synthesizer) -> None:
    """Refuse a network of other images or classes than its holder says."""
    described, network = trained.facts.diffusion, model.denoiser
    shape = described.channels, described.size, described.classes
    got = network.channels, network.size, model.classes
    if shape != got:
        raise ProtocolError(
            f"Holder {holder} describes a network of {_shape(shape)}, and sent one of "
            f"{_shape(got)}."
        )


def verified(settings: FederationSettings, holder: str, trained: TrainedNetwork) -> StatedGuarantee:
    """What a holder says its training cost, once it follows from the release that it sent."""
    stated, asked = trained.facts.guarantee, Adjacency(settings.training.adjacency)
    claim = trained.facts.method, stated.delta, stated.unit, stated.adjacency
    if claim != (settings.method, settings.delta, Unit.RECORD, asked):
        raise ProtocolError(
            f"Holder {holder} trained with method={claim[0]}, delta={claim[1]}, unit={claim[2]}, "
            f"adjacency={claim[3]}; that is not what it was asked for."
        )
    release = MechanismRelease.from_json(dict(trained.release))
    try:
        epsilon, accountant = quote([release.event(Unit.RECORD, asked)], settings.delta)
    except UnsupportedAdjacencyError as error:
        raise ProtocolError(f"Holder {holder}: {error}") from None
    if stated.epsilon is None or not math.isclose(stated.epsilon, epsilon, rel_tol=_ROUNDING):
        raise ProtocolError(
            f"Holder {holder} says that its training cost ε = {stated.epsilon}; what it booked "
            f"costs {epsilon:.6g}."
        )
    sound = sound_table([release], Unit.RECORD, settings.delta)
    words = stated.model_dump(exclude={"units"}, exclude_unset=True)
    figures = {"epsilon": epsilon, "accountant": accountant, "sound": sound}
    return StatedGuarantee.model_validate({**words, **figures})


def _shape(shape: tuple[int, int, int]) -> str:
    channels, side, classes = shape
    return f"{channels}x{side}x{side}, {classes} classes"
