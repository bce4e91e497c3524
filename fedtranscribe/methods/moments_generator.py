"""A generator whose images have the features that the records' noisy moments describe: free."""

import math
from typing import Any

import torch

from fedtranscribe.config import DpsdSettings
from fedtranscribe.mechanisms import MomentSums
from fedtranscribe.methods.dpsd import generator_loss
from fedtranscribe.models import Classifier, Generator
from fedtranscribe.models.fixed_features import BIAS

_LR = 1e-3
_BATCH = 64
# Weight of the distance between moments, which is about one at the start.
_MATCHING = 10.0


class MomentsMatching:
    """Trains a generator in place, against a finished student; a `Course`.

    The loss is that of DPSD Eq. 8, with the student as the judge, plus the distance between the
    sums by class of what is generated, classed by the student, and those that the holder sent
    (DP-MERF, on features of ours).

    Args:
        generator: maps z [n, latent] to images.
        student: its head is set; only judges.
        moments: the answer to the second question.
        settings: of the method.
        rng: source of z.

    Guarantee:
        None of its own: a function of public values and of a private answer.
    """

    name = "generator"

    def __init__(
        self,
        generator: Generator,
        student: Classifier,
        moments: MomentSums,
        settings: DpsdSettings,
        rng: torch.Generator,
    ) -> None:
        self.steps, self.done = settings.moments_steps, 0
        self._generator, self._student = generator, student
        self._settings, self._rng = settings, rng
        self._device = next(generator.parameters()).device
        assert moments.by_class is not None
        # The constant entry counts the records, class by class.
        shares = moments.by_class[-1].clamp_min(0)
        constant = math.sqrt(1 + BIAS**2) / BIAS
        target = moments.by_class / (shares.sum() * constant).clamp_min(1)
        self._target = target.float().to(self._device)
        self._optimiser = torch.optim.Adam(generator.parameters(), lr=_LR, betas=(0.5, 0.99))

    def step(self) -> float:
        """One step; its loss."""
        self._student.eval().requires_grad_(False)
        z = torch.randn(_BATCH, self._generator.latent_dim, generator=self._rng)
        images = self._generator.train()(z.to(self._device))
        features = self._student.features(images)
        classes = self._student.head(features).softmax(-1)
        off = (features.T @ classes / _BATCH - self._target).square().sum()
        distance = off / self._target.square().sum()
        loss = _MATCHING * distance + generator_loss(self._student, images, self._settings)
        self._optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self._optimiser.step()
        self._student.requires_grad_(True)
        self.done += 1
        return float(loss.detach())

    def state(self) -> dict[str, Any]:
        """See `Course`."""
        return {"done": self.done, "optimiser": self._optimiser.state_dict()}

    def load_state(self, state: dict[str, Any]) -> None:
        """See `Course`."""
        self.done = state["done"]
        self._optimiser.load_state_dict(state["optimiser"])
