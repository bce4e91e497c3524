"""DP-SAD's teacher: trained on public images, on private records, or on one after the other.

Ordinary classifier-free diffusion training (Eqs. 2 and 5): the label is dropped now and then, so
that one network answers with and without it. Each of the two stages hands on its averaged weights.
"""

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fedtranscribe.mechanisms.dpsgd import Inputs
from fedtranscribe.mechanisms.draws import Draws, SharedDraws
from fedtranscribe.methods.denoising import noise_losses, random_rows, random_steps
from fedtranscribe.methods.dp_sad.networks import make_optimiser, set_rate
from fedtranscribe.methods.dp_sad.settings import DpSadSettings, Optimiser
from fedtranscribe.methods.private_records import PrivateRecords
from fedtranscribe.models.ema import Ema
from fedtranscribe.models.sampling import sample
from fedtranscribe.models.unet import Denoiser, drop_labels


class TeacherTraining:
    """Trains the teacher, a step at a time.

    Args:
        teacher: ε_ψ, trained in place.
        settings: public.
        public: public images [m, c, h, w] and labels [m], null labels where they have none; m may
            be 0.
        rng: of public batches, their time steps and noise, and of the pool.

    Attributes:
        network: ε_ψ.
        optimiser: of the stage that goes on; None outside of them.
    """

    def __init__(
        self,
        teacher: Denoiser,
        settings: DpSadSettings,
        public: tuple[Tensor, Tensor],
        rng: torch.Generator,
    ) -> None:
        self.network = teacher
        self.optimiser: Optimizer | None = None
        self._settings, self._public, self._rng = settings, public, rng
        self._device = next(teacher.parameters()).device
        self._ema = Ema(teacher, settings.ema_decay)

    def begin(self, divisor: float) -> None:
        """Start a stage, with what its gradients are divided by."""
        self.network.train().requires_grad_(True)
        self.optimiser = make_optimiser(Optimiser.ADAM, self.network, divisor)

    def settle(self) -> None:
        """Between stages: from now on the teacher is its average."""
        self.network.load_state_dict(self._ema.network.state_dict())
        self._ema.restart(self.network)

    def stop(self) -> None:
        """Answer only."""
        self.network.eval().requires_grad_(False)
        self.optimiser = None

    def public_step(self, done: int, total: int) -> None:
        """One step on public images."""
        assert self.optimiser is not None
        set_rate(self.optimiser, self._settings.pretrain_lr, done, total)
        batch = self._settings.pretrain_batch
        x_0, labels = random_rows(self._public, batch, self._rng, self._device)
        rows = self._rows(x_0, labels, SharedDraws(self._rng, batch))
        self.optimiser.zero_grad()
        noise_losses(self.network, *rows).mean().backward()
        self.optimiser.step()
        self._ema.update_parameters(self.network)

    def private_step(self, done: int, total: int, records: PrivateRecords) -> None:
        """One step on private records (Algorithm 1, line 1, with or without protection)."""
        assert self.optimiser is not None
        set_rate(self.optimiser, self._settings.teacher_lr, done, total)
        records.step("teacher", done, self.network, noise_losses, self._rows, self.optimiser)
        self._ema.update_parameters(self.network)

    def pool(self) -> tuple[Tensor, Tensor]:
        """Images and labels that a discriminator may learn on: the teacher's world.

        Those that a public teacher was trained on; drawn from the teacher, if it knows private
        records.
        """
        settings = self._settings
        if not settings.private_teacher:
            return self._public
        labels = torch.arange(settings.synthetic_images) % max(1, self.network.classes)
        drawn = sample(self.network, settings.schedule, labels, settings.sampling, self._rng)
        return drawn, labels

    def _rows(self, x_0: Tensor, labels: Tensor, draws: Draws) -> Inputs:
        """(x_t, t, y, z), for `noise_losses`."""
        t, z = random_steps(self._settings.schedule.times, x_0, draws)
        labels = drop_labels(labels, self.network.null_label, self._settings.label_drop, draws)
        return self._settings.schedule.noisy(x_0, t, z), t, labels, z

    def state(self) -> dict[str, Any]:
        """Everything `load_state` needs."""
        return {
            "network": self.network.state_dict(),
            "ema": self._ema.state_dict(),
            "optimiser": None if self.optimiser is None else self.optimiser.state_dict(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from `state()`, in the stage that it was made in."""
        self.network.load_state_dict(state["network"])
        self._ema.load_state_dict(state["ema"])
        if self.optimiser is not None:
            self.optimiser.load_state_dict(state["optimiser"])
