"""The way to private images with their labels: training steps on Poisson batches of them."""

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn

from fedtranscribe.mechanisms.bits import BitSource
from fedtranscribe.mechanisms.dpsgd import (
    Backend,
    DpSgdPlan,
    DpSgdStep,
    Inputs,
    Loss,
    PoissonBatches,
)
from fedtranscribe.mechanisms.noise import NoiseSource

Prepare = Callable[[Tensor, Tensor], Inputs]
"""(x_0 [n, c, h, w], labels [n]) -> what the loss takes, each [n, ...]; row by row."""

# Rows at a time where no per-record gradient is needed.
_PLAIN_ROWS = 512


class PrivateRecords:
    """Private images and labels, and the plan that every training on them follows.

    Args:
        images: float32 [n, c, h, w] in [-1, 1].
        labels: int64 [n].
        plan: of each training.
        protected: clip and add noise; otherwise steps are those of ordinary training.
        noise: of DP-SGD.
        bits: coins of the batches.
        backend: of the per-record gradients.
        physical_batch: records at a time in DP-SGD; None measures it for each training.
        device: of the networks.

    Attributes:
        noise: as given, for DP-SAD's Eq. 17 as printed.
        measured: physical batch of each training that was measured, by name.

    Guarantee:
        Each training, by its name, is a DP-SGD of `plan` when `protected` (see `DpSgdPlan` and
        `DpSgdStep`); a step's Poisson batch and noise belong to its name and number alone. What
        `prepare` makes of a row may depend on that row, fresh randomness, and networks that are
        public or private outputs: it is inside the record's clipped term.
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        plan: DpSgdPlan,
        *,
        protected: bool,
        noise: NoiseSource,
        bits: BitSource,
        backend: Backend,
        physical_batch: int | None,
        device: torch.device,
    ) -> None:
        self._images, self._labels, self._plan = images, labels, plan
        self._protected = protected
        self.noise, self._bits = noise, bits
        self._backend, self._given_batch = backend, physical_batch
        self._device = device
        self.measured: dict[str, int | None] = {}

    def step(
        self,
        who: str,
        done: int,
        network: nn.Module,
        loss: Loss,
        prepare: Prepare,
        optimiser: torch.optim.Optimizer,
    ) -> None:
        """One step of one training.

        Args:
            who: names the training.
            done: its steps before this one.
            network: that learns.
            loss: (network, *rows) -> losses [rows], as `prepare` makes the rows.
            prepare: draws all randomness of the loss.
            optimiser: of the network.

        Raises:
            ConfigError: memory ran out.
            PrivacyError: all steps of the plan were taken.
        """
        plan = self._plan
        if not self._protected:
            parts = self.parts(who, done)
            self._plain_step((loss(network, *prepare(*part)) for part in parts), optimiser)
            return

        def draw(indices: Tensor) -> Inputs:
            rows = prepare(*self._copies(indices))
            return tuple(tensor.unflatten(0, (-1, plan.multiplicity)) for tensor in rows)

        step = DpSgdStep(
            network,
            plan,
            loss,
            self._backend,
            self.noise.for_query(f"{who}/{done}"),
            self.measured.get(who, self._given_batch),
            taken=done,
        )
        step.step(optimiser, draw, self._poisson(who, done))
        self.measured[who] = step.physical_batch

    def parts(self, who: str, done: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Images and labels of one step's batch, K times each, some records at a time."""
        indices = self._poisson(who, done)
        for part in indices.split(max(1, _PLAIN_ROWS // self._plan.multiplicity)):
            if len(part):
                yield self._copies(part)

    def _plain_step(self, losses: Iterable[Tensor], optimiser: torch.optim.Optimizer) -> None:
        """Without clipping and noise; NOT private."""
        total = self._plan.batch * self._plan.multiplicity
        optimiser.zero_grad()
        for part in losses:
            (part.sum() / total).backward()
        optimiser.step()

    def _poisson(self, who: str, done: int) -> Tensor:
        return PoissonBatches(self._plan, self._bits.for_query(f"{who}/{done}")).draw()

    def _copies(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """On the device, each record K times in a row."""
        copies = self._plan.multiplicity
        images, labels = self._images[indices], self._labels[indices]
        return (
            images.to(self._device).repeat_interleave(copies, 0),
            labels.to(self._device).repeat_interleave(copies, 0),
        )
