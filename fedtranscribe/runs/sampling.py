"""As many labelled images of a finished run as somebody wants: post-processing, at no cost."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fedtranscribe.errors import ConfigError
from fedtranscribe.models import Generator
from fedtranscribe.models.diffusion import Synthesizer
from fedtranscribe.models.inference import as_bytes
from fedtranscribe.models.mixture import GaussianMixture
from fedtranscribe.result import Result
from fedtranscribe.runs.finished import FinishedRun
from fedtranscribe.synthesis.samples import ALL, chosen_labels


@dataclass(frozen=True)
class Drawn:
    """What was drawn, and from what.

    Attributes:
        images: uint8 [n, ch, s, s].
        labels: int64 [n]; None where nobody knows any.
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
    ) -> None:
        self._run = FinishedRun.open(path)
        self._num, self._seed = num, seed
        generator = self._run.generator
        if isinstance(generator, Synthesizer):
            generator = generator.to(device).told(steps, guidance)
        else:
            for name, value in (("steps", steps), ("guidance", guidance)):
                if value is not None:
                    raise ConfigError(
                        f"Expected no --{name} {value} with the run in {path}: only diffusion "
                        "models have this option; leave it out."
                    )
        if generator is None:
            raise ConfigError(f"The run in {path} has no generator; make one, or take another run.")
        self._generator = generator
        if isinstance(generator, Generator):
            if words != ALL:
                raise ConfigError(
                    f"Expected --labels {words!r} to be left out: this generator knows no "
                    "classes, and the student labels what it draws."
                )
            self._labels = chosen_labels(ALL, num, 0, seed)
            generator.to(device)
        else:
            self._labels = chosen_labels(words, num, generator.classes, seed)
        if isinstance(generator, GaussianMixture):
            generator.expect_known(self._labels)

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
            told = generator.sampling.steps, generator.sampling.guidance
            return Drawn(images, labels if generator.classes else None, generator.classes, *told)
        if isinstance(generator, GaussianMixture):
            rng = torch.Generator().manual_seed(self._seed)
            return Drawn(as_bytes(generator.draw(labels, rng)), labels, generator.classes)
        images, given = self._run.synthesise(self._num, self._seed)
        assert self._run.student is not None
        return Drawn(images, given, self._run.student.classes)
