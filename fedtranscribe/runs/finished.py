"""A finished run as evaluation, release and report read it, and labelled images of one."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from fedtranscribe.config import OwnData, build
from fedtranscribe.data import DataSplit, is_published, load
from fedtranscribe.data.memory import digest_of
from fedtranscribe.errors import ConfigError, CorruptWeightsError, StorageError
from fedtranscribe.models import Classifier, Generator, load_network
from fedtranscribe.models.diffusion import Synthesizer, load_synthesizer
from fedtranscribe.models.inference import draw_classes, label_sets
from fedtranscribe.models.mixture import GaussianMixture
from fedtranscribe.results.parts import OWN_LABELS
from fedtranscribe.results.progress import Progress, silent
from fedtranscribe.results.result import Result
from fedtranscribe.results.run_directory import (
    DENOISER,
    GENERATOR,
    HOLDERS,
    STUDENT,
    expect_same_records,
)
from fedtranscribe.runs.networks import Networks
from fedtranscribe.trainers.samples import ALL, UNIFORM, chosen_labels

_DIFFUSION_SAMPLES = 3_000


@dataclass(frozen=True, eq=False)
class FinishedRun(Networks):
    """Result and networks of a run that came to its end; `open` reads them.

    Attributes:
        path: the run's folder.
        result: what `metrics.json` holds.
        student: the learned classifier, in evaluation mode; None for DP-SAD and dp-promise.
        generator: what synthetic images come from; None for FedAvg and FedDF, which have none.
        split: the real images, where they are in memory; see `about`.
    """

    path: Path
    result: Result
    student: Classifier | None
    generator: Generator | GaussianMixture | Synthesizer | None
    split: DataSplit | None = None

    _kind = "run"

    @classmethod
    def open(cls, path: Path) -> Self:
        """Read the run in a folder.

        Raises:
            StorageError: there is no run, it is not finished, or it has a network per holder.
            ModelError: a network's file is damaged.
        """
        result = Result.read(path)
        if (path / HOLDERS).is_dir() and not (path / DENOISER).exists():
            raise StorageError(
                f"The run in {path} has a network of each holder: give one of the folders in "
                f"{path / HOLDERS}, or read {path / 'samples.npz'}."
            )
        if (path / DENOISER).exists():
            return cls(path, result, None, load_synthesizer(path / DENOISER))
        student = load_network(path / STUDENT)
        generator = load_network(path / GENERATOR) if (path / GENERATOR).exists() else None
        if not isinstance(student, Classifier):
            raise CorruptWeightsError(f"Expected a classifier in {path / STUDENT}.")
        if generator is not None and not isinstance(generator, Generator | GaussianMixture):
            raise CorruptWeightsError(f"Expected a generator in {path / GENERATOR}.")
        return cls(path, result, student, generator)

    @property
    def method(self) -> str:
        """That learned them."""
        return self.result.method

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """What the classes are called, in order; None where nobody named them."""
        return self.result.class_names

    @property
    def private(self) -> Path:
        """What stays with the data holder; never part of a release."""
        return self.path / "private"

    @property
    def declared_public(self) -> bool:
        """Whether results on its held-out images may be published: those of a public benchmark."""
        return is_published(self.result.asked.data)

    def data(self, root: Path | None = None, download: bool = False) -> DataSplit:
        """The real images of the run: PRIVATE records to compare with, and held-out ones.

        Args:
            root: where data sets lie; where the run found them if not given.
            download: fetch an absent set.

        Raises:
            DataError: the set is absent or has changed its shape.
        """
        if self.split is not None:
            return self.split
        asked = self.result.asked
        return load(asked.data, root or asked.data_root, download, self.own_data)

    def about(self, split: DataSplit) -> Self:
        """The same run with its real images in memory.

        Args:
            split: the data that the run began with.

        Raises:
            ConfigError: they are other data, or the run read its own from a name or a path.
        """
        if self.result.asked.data != split.train.name:
            raise ConfigError(
                f"Expected no images with the run in {self.path}, which was made from "
                f"data={self.result.asked.data!r}, not from {split.train.name!r}."
            )
        expect_same_records(self.path, digest_of(split))
        return replace(self, split=split)

    @property
    def own_data(self) -> OwnData:
        """How the run read its data."""
        settings = self.result.settings
        return build(OwnData, {k: v for k, v in settings.items() if k in OwnData.model_fields})

    @property
    def labelled(self) -> bool:
        """Whether its synthetic images come with the records' labels, and not clusters or none."""
        if not isinstance(self.generator, Synthesizer):
            return True
        trained = self.result.diffusion
        return self.generator.conditional and (trained is None or trained.labels == OWN_LABELS)

    def usual_samples(self, most: int) -> int:
        """How many images to draw where nobody says; 0 where none can be.

        A diffusion model draws a hundred times slower than a generator: no more than its run did.
        """
        if self.generator is None:
            return 0
        if isinstance(self.generator, Synthesizer):
            return min(most, self.result.asked.samples or _DIFFUSION_SAMPLES)
        return most

    def synthesise(
        self, n: int, seed: int = 0, progress: Progress = silent
    ) -> tuple[Tensor, Tensor]:
        """Synthetic images and their labels: post-processing.

        See `labelled_samples`. Where nobody knows labels they are all 0.

        Args:
            n: how many.
            seed: public randomness.
            progress: shows long work.

        Returns:
            uint8 [n, ch, s, s]; int64 [n], or [n, classes] of 0 and 1 where there may be several.

        Raises:
            ConfigError: the run has no generator, or n < 1.
        """
        return self._samples(n, seed, progress)


@dataclass(frozen=True)
class Drawn:
    """What was drawn, and from what.

    Attributes:
        images: uint8 [n, ch, s, s].
        labels: int64 [n], or [n, classes] of 0 and 1 where there may be several; None where nobody
            knows any.
        classes: that there are; 0 without labels.
        steps, guidance: of a diffusion model; None of others.
    """

    images: Tensor
    labels: Tensor | None
    classes: int
    steps: int | None = None
    guidance: float | None = None


class Sampler:
    """Draws from one finished run; everything is checked before the first image.

    Args:
        path: the run's folder.
        words: `all` for every class alike, `uniform` for classes by lot, or classes by commas.
        num: how many images.
        seed: the same one draws the same images.
        device: where a network draws them.
        steps: of a diffusion model, if not the run's.
        guidance: the same.
        sharpen: whether a mixture's images are sharpened, where the run has a sharpener.

    Raises:
        StorageError: there is no finished run.
        ConfigError: it has no generator, or one that takes no such wish.
        ModelError: its network is damaged.
    """

    def __init__(
        self,
        path: Path,
        words: str,
        num: int,
        seed: int,
        device: torch.device,
        steps: int | None = None,
        guidance: float | None = None,
        sharpen: bool = True,
    ) -> None:
        self._run = FinishedRun.open(path)
        self._num, self._seed = num, seed
        generator = self._run.generator
        if isinstance(generator, Synthesizer):
            generator = generator.to(device).with_sampling(steps, guidance)
        else:
            for name, value in (("steps", steps), ("guidance", guidance)):
                if value is not None:
                    raise ConfigError(
                        f"Expected no --{name} {value} with the run in {path}: only diffusion "
                        "models have this option; leave it out."
                    )
        if generator is None:
            raise ConfigError(f"The run in {path} has no generator; make one, or take another run.")
        if isinstance(generator, GaussianMixture) and not sharpen:
            generator = generator.blurred
        self._generator = generator
        if isinstance(generator, Generator):
            if words != ALL:
                raise ConfigError(
                    f"Expected --labels {words!r} to be left out: this generator knows no "
                    "classes, and the student labels what it draws."
                )
            self._labels = chosen_labels(ALL, num, 0, seed)
            generator.to(device)
        elif self._several and words not in (ALL, UNIFORM):
            # After images of none of the classes.
            self._labels = 1 + chosen_labels(words, num, generator.classes - 1, seed)
        else:
            self._labels = chosen_labels(words, num, generator.classes, seed)
        if isinstance(generator, GaussianMixture):
            generator.expect_known(self._labels)

    @property
    def _several(self) -> bool:
        """Whether an image may have several labels."""
        return self._run.student is not None and self._run.student.multilabel

    @property
    def result(self) -> Result:
        """Of the run."""
        return self._run.result

    def draw(self, progress: Callable[[int, int], None]) -> Drawn:
        """All of them.

        Args:
            progress: called with (images done, images in all) where it takes long.
        """
        generator, labels = self._generator, self._labels
        if isinstance(generator, Synthesizer):
            images = generator.draw(labels, self._seed, progress)
            before = generator.sampling.steps, generator.sampling.guidance
            return Drawn(images, labels if generator.classes else None, generator.classes, *before)
        if isinstance(generator, GaussianMixture):
            rng = torch.Generator().manual_seed(self._seed)
            student = self._run.student
            images = draw_classes(generator, student, labels, rng)
            if student is not None and self._several:
                found = label_sets(student, generator, images, labels)
                return Drawn(images, found, student.classes)
            return Drawn(images, labels, generator.classes)
        images, drawn_labels = self._run.synthesise(self._num, self._seed)
        assert self._run.student is not None
        return Drawn(images, drawn_labels, self._run.student.classes)
