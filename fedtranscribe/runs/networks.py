"""What a student and a generator are used for, whether they come from a run or from a release."""

import os
from pathlib import Path
from typing import ClassVar, Literal, overload

import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtranscribe.errors import ConfigError, InvalidDataError, ModelMismatchError
from fedtranscribe.models import Classifier, Generator
from fedtranscribe.models.diffusion import Synthesizer
from fedtranscribe.models.inference import labelled_samples, logits_of
from fedtranscribe.models.mixture import GaussianMixture
from fedtranscribe.tracking import Progress, silent

ImageArray = Tensor | NDArray


class Networks:
    """Base of what has a student, a generator, or both.

    Attributes:
        path: the folder that they were read from.
        student: the classifier, in evaluation mode; None for DP-SAD and dp-promise.
        generator: a network of images without labels, a mixture of images with labels, or a
            diffusion model, which is asked for labels; None for methods that have neither.
    """

    path: Path
    student: Classifier | None
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

    @overload
    def predict(self, images: ImageArray, names: Literal[False] = False) -> Tensor: ...

    @overload
    def predict(self, images: ImageArray, names: Literal[True]) -> list[str]: ...

    def predict(self, images: ImageArray, names: bool = False) -> Tensor | list[str]:
        """Likeliest class of each image.

        Args:
            images: [n, ch, s, s] or [n, s, s, ch], and [n, s, s] where they are grey; a tensor on
                any device or a numpy array, whole numbers from 0 to 255 or floating point in
                [0, 1].
            names: give the classes' names and not their numbers.

        Returns:
            int64 [n], on the CPU; or n names.

        Raises:
            ConfigError: there is no student, or nobody named its classes.
            ModelMismatchError: another shape than the student was made for.
            InvalidDataError: another type, or values outside of these.
        """
        if not names:
            return self._logits(images).argmax(-1)
        if self.class_names is None:
            raise ConfigError(
                f"The {self._kind} in {self.path} does not name its classes; leave out names=True."
            )
        return [self.class_names[label] for label in self.predict(images).tolist()]

    def probabilities(self, images: ImageArray) -> Tensor:
        """How likely the student takes each class to be; the card says how far to trust it.

        Args:
            images: as for `predict`.

        Returns:
            float32 [n, classes], rows that add up to one, on the CPU.

        Raises:
            ConfigError: there is no student.
            ModelMismatchError: as for `predict`.
            InvalidDataError: as for `predict`.
        """
        return self._logits(images).softmax(-1)

    def sample(self, n: int, seed: int | None = None) -> tuple[Tensor, Tensor]:
        """Synthetic images and their labels: costs no privacy.

        A mixture's images have the labels of its components; the student labels what a network
        makes; a diffusion model is asked for every class alike, and one without labels gives 0 to
        all.

        Args:
            n: how many.
            seed: the same one gives the same images; drawn afresh if not given.

        Returns:
            uint8 [n, ch, s, s], int64 [n].

        Raises:
            ConfigError: n < 1, or there is no generator.
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

    def _logits(self, images: ImageArray) -> Tensor:
        student = self.student
        if student is None:
            raise ConfigError(
                f"The {self._kind} in {self.path} (method {self.method}) has no student; train a "
                "classifier on what its sample() gives."
            )
        found = _channels_first(images, student)
        if not len(found):
            return torch.empty(0, student.classes)
        return logits_of(student, _pixels(found))


def _pixels(images: Tensor) -> Tensor:
    """As they are, or whole numbers of another type as uint8.

    Raises:
        InvalidDataError: neither whole numbers from 0 to 255 nor floating point in [0, 1].
    """
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
    """Images as the student takes them, [n, ch, s, s].

    Raises:
        ModelMismatchError: another shape.
    """
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
