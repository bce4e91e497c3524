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
from fedtranscribe.mechanisms.draws import KEY_WORDS, Draws, OwnDraws
from fedtranscribe.mechanisms.noise import NoiseSource
from fedtranscribe.methods.record_images import RecordImages

Prepare = Callable[[Tensor, Tensor, Draws], Inputs]
"""(x_0 [n, c, h, w], labels [n], random numbers of these n rows) -> what the loss takes, each
[n, ...]; row by row, and with no other randomness than that."""

# Rows at a time where no per-record gradient is needed.
_PLAIN_ROWS = 512


class PrivateRecords:
    """Private images and labels, and the plan that every training on them follows.

    Args:
        images: by record, as many as the plan has.
        plan: of each training.
        protected: clip and add noise; otherwise steps are those of ordinary training.
        noise: of DP-SGD.
        bits: coins of the batches, and keys of the records' own streams.
        backend: of the per-record gradients.
        physical_batch: records at a time in DP-SGD; None measures it for each training.
        device: of the networks.

    Attributes:
        noise: as given, for DP-SAD's Eq. 17 as printed.
        measured: physical batch of each training that was measured, by name.

    Guarantee:
        Each training, by its name, is a DP-SGD of `plan` when `protected` (see `DpSgdPlan` and
        `DpSgdStep`); a step's Poisson batch and noise belong to its name and number alone. What
        `prepare` makes of a row may depend on that row, the record's own random numbers
        (`OwnDraws`, under a key that is drawn for the step and thrown away), and networks that are
        public or private outputs: it is inside the record's clipped term. No public stream is
        touched, so that none reveals afterwards how many records took part.
    """

    def __init__(
        self,
        images: RecordImages,
        plan: DpSgdPlan,
        *,
        protected: bool,
        noise: NoiseSource,
        bits: BitSource,
        backend: Backend,
        physical_batch: int | None,
        device: torch.device,
    ) -> None:
        self._images, self._plan = images, plan
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
            prepare: makes the rows of the loss, with all of its randomness.
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
        key = self._key(who, done)

        def draw(indices: Tensor) -> Inputs:
            rows = prepare(*self._copies(indices, key))
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

    def parts(self, who: str, done: int) -> Iterator[tuple[Tensor, Tensor, Draws]]:
        """What `prepare` takes of one step's batch, K times each, some records at a time."""
        indices, key = self._poisson(who, done), self._key(who, done)
        for part in indices.split(max(1, _PLAIN_ROWS // self._plan.multiplicity)):
            if len(part):
                yield self._copies(part, key)

    def _plain_step(self, losses: Iterable[Tensor], optimiser: torch.optim.Optimizer) -> None:
        """Without clipping and noise; NOT private."""
        total = self._plan.batch * self._plan.multiplicity
        optimiser.zero_grad()
        for part in losses:
            (part.sum() / total).backward()
        optimiser.step()

    def _poisson(self, who: str, done: int) -> Tensor:
        return PoissonBatches(self._plan, self._bits.for_query(f"{who}/{done}")).draw()

    def _key(self, who: str, done: int) -> bytes:
        return self._bits.for_query(f"{who}/{done}/rows").words(KEY_WORDS).tobytes()

    def _copies(self, indices: Tensor, key: bytes) -> tuple[Tensor, Tensor, Draws]:
        """On the device, each record K times in a row, with its own random numbers."""
        copies = self._plan.multiplicity
        draws = OwnDraws(key, indices, copies, self._device)
        images, labels = self._images.shown(indices.repeat_interleave(copies), draws)
        return images.to(self._device), labels.to(self._device), draws
