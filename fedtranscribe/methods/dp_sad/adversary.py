"""DP-SAD's discriminator and what it may learn on (Algorithm 1, line 7)."""

from typing import Any

import torch
from torch import Tensor

from fedtranscribe.mechanisms.dpsgd import Inputs
from fedtranscribe.mechanisms.draws import Draws, SharedDraws
from fedtranscribe.methods.denoising import random_rows
from fedtranscribe.methods.dp_sad.losses import Course, discriminator_losses, output_of, shown
from fedtranscribe.methods.dp_sad.networks import make_optimiser, set_rate
from fedtranscribe.methods.dp_sad.settings import DpSadSettings
from fedtranscribe.methods.private_records import PrivateRecords
from fedtranscribe.models.discriminator import Discriminator
from fedtranscribe.models.unet import Denoiser


class Adversary:
    """Trains the discriminator, a step at a time.

    Args:
        discriminator: ε_φ, trained in place.
        settings: public.
        rng: of batches of the pool, their time steps and noise; no private record touches it.
        divisor: what its gradients are divided by.

    Attributes:
        discriminator: ε_φ.
        pool: public or synthetic images and labels to learn on; None for the private records.

    Guarantee:
        With a pool: x_r, the teacher's output on it and the student's are made of the pool and of
        networks that are public or private outputs, so that this is post-processing. Without one
        it is a training of `PrivateRecords`, accounted as one more DP-SGD.
    """

    def __init__(
        self,
        discriminator: Discriminator,
        settings: DpSadSettings,
        rng: torch.Generator,
        divisor: float,
    ) -> None:
        self.discriminator = discriminator.requires_grad_(False)
        self.pool: tuple[Tensor, Tensor] | None = None
        self._optimiser = make_optimiser(settings.optimiser, discriminator, divisor)
        self._settings, self._rng = settings, rng

    def step(
        self, done: int, total: int, student: Denoiser, course: Course, records: PrivateRecords
    ) -> None:
        """One step on the outputs of teacher and student.

        Args:
            done: steps before this one.
            total: steps in all.
            student: as it is now.
            course: gives the teacher's outputs.
            records: learnt on only where there is no pool.
        """

        def compared(x_0: Tensor, labels: Tensor, draws: Draws) -> Inputs:
            rows = course.rows(x_0, labels, draws)
            with torch.no_grad():
                output = output_of(student, rows)
            first, second = shown(self._settings.concatenation, rows.taught, output)
            return first, second, rows.r, rows.judged

        set_rate(self._optimiser, self._settings.discriminator_lr, done, total)
        network = self.discriminator.requires_grad_(True)
        if self.pool is None:
            records.step(
                "discriminator", done, network, discriminator_losses, compared, self._optimiser
            )
        else:
            self._optimiser.zero_grad()
            batch, device = self._settings.discriminator_batch, next(student.parameters()).device
            x_0, labels = random_rows(self.pool, batch, self._rng, device)
            rows = compared(x_0, labels, SharedDraws(self._rng, batch))
            discriminator_losses(network, *rows).mean().backward()
            self._optimiser.step()
        # The student's loss looks through it, and must not gather gradients for it.
        network.requires_grad_(False)

    def state(self) -> dict[str, Any]:
        """Everything `load_state` needs but the network and public images."""
        return {
            "optimiser": self._optimiser.state_dict(),
            "drawn": self.pool if self._settings.private_teacher else None,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from `state()`; network and public pool have to be there already."""
        self._optimiser.load_state_dict(state["optimiser"])
        if state["drawn"] is not None:
            self.pool = state["drawn"]
