"""DP-SGD on Poisson batches with K copies per record, one logical step at a time.

A step goes over its batch in physical parts, finds one gradient per record (`per_sample.py`), clips
it, adds up, adds noise once, divides by the EXPECTED batch and hands the result to an ordinary
optimiser. Several processes may share a step: each adds up its own part of the batch, one
all-reduce per parameter makes the whole of it, and rank 0 alone adds the noise.

That reduction is our own: Opacus's distributed optimiser presumes a wrapper for the network, its
own back end, and its data loader; and it hands an average of local averages to the optimiser. Here
all back ends share the lines below, and a rank whose part is empty needs nothing special.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from fedtranscribe.errors import ConfigError, PrivacyError
from fedtranscribe.mechanisms.noise import NoiseSource
from fedtranscribe.mechanisms.per_sample import (
    Backend,
    Inputs,
    Loss,
    record_gradients,
    rows_of,
    trainable,
)
from fedtranscribe.mechanisms.physical import explained_memory, memory_budget, records_that_fit
from fedtranscribe.mechanisms.poisson import PoissonBatches
from fedtranscribe.mechanisms.public_grid import on_grid
from fedtranscribe.privacy.calibrate import ROUNDING
from fedtranscribe.privacy.dpsgd_plan import DpSgdPlan

__all__ = ["Backend", "DpSgdPlan", "DpSgdStep", "Inputs", "Loss", "PoissonBatches", "add_clipped"]

Draw = Callable[[Tensor], Inputs]
"""Indices [b] -> what the loss takes, each [b, K, ...]; called once for each index of a step."""


class DpSgdStep:
    """Takes the steps of a plan on one network.

    Args:
        model: trainable parameters take part, frozen ones do not. No layer may mix rows.
        plan: sampling, clipping, noise and copies.
        loss: (network, *rows [r, ...]) -> losses [r], each from its own row. Random numbers of
            the loss are drawn beforehand, in `draw`.
        backend: how gradients are found.
        noise: OS entropy, or a seeded source in tests.
        physical_batch: records at a time; None finds it at the first record.
        memory: bytes to find it for; None takes half of what is free, on a CPU at most 2 GiB.
        taken: steps of the plan that were taken before, by a run that is resumed.
        group: the processes that train this network together; None for this one alone. Weights
            and buffers become those of rank 0.

    Guarantee:
        Unit, adjacencies, sampling and pairs: `DpSgdPlan`. What is needed here:
        Sensitivity. What record i adds to a step's sum has norm at most C and depends on record i
        and fresh randomness only: its gradient is that of its own rows, as long as the network
        treats rows one by one (layers known to mix them are refused; `functional` maps over
        records, so that nothing can mix) and `draw` uses nothing of other records. Gradients are
        scaled by min(1, C'/norm), C' = C/(1 + 1e-6), norm over all trainable parameters together,
        in float64; one that is not finite counts as zero. Indices of a step are distinct.
        Rounding. Terms are scaled and added in float64: of k terms the sum is off by at most
        k²C 2⁻⁵³, which the 1e-6 covers for steps of up to 60,000 records. Other records'
        gradients are float32 and might change in their last bit with the physical batch they
        are in. Under zero-out and replace every record keeps its place, hence its bits, but
        removing one moves the next ones up: under add-remove the guarantee is that of real
        numbers. (So it is in every DP-SGD that we know.)
        Noise: N(0, (σC)²) in float64 from `noise`, once per step, whatever the batch: an empty
        batch is noise only. Sum and noise are rounded to a public grid, 1/256 of the std or
        finer, as in `NoisyMeanRows`.
        What stays unreleased: losses, norms, |I| and which gradients were clipped; `step` returns
        nothing. The time that a step takes reveals |I| to anyone who can measure it.
        Against other ranks: none, all of them see private records.

    Raises:
        ModelMismatchError: a layer mixes records, or the back end does not know it.
        ConfigError: a value is out of range, or nothing is trainable.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: DpSgdPlan,
        loss: Loss,
        backend: Backend,
        noise: NoiseSource,
        physical_batch: int | None = None,
        *,
        memory: int | None = None,
        taken: int = 0,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        if physical_batch is not None and physical_batch < 1:
            raise ConfigError(f"Expected physical_batch={physical_batch} >= 1.")
        if not 0 <= taken <= plan.steps:
            raise ConfigError(f"Expected taken={taken} between 0 and steps={plan.steps}.")
        self._gradients = record_gradients(backend, model, loss)
        self._parameters = list(trainable(model).values())
        self._model, self._loss, self._backend = model, loss, backend
        self._noise, self._memory, self._group = noise, memory, group
        self.plan, self.taken = plan, taken
        self.physical_batch = physical_batch
        if group is not None:
            for tensor in (*model.parameters(), *model.buffers()):
                dist.broadcast(tensor.detach(), group=group, group_src=0)

    @property
    def private(self) -> bool:
        """Whether the noise protects anybody: there is some, and no seed repeats it."""
        return self._noise.private and self.plan.noise_multiplier > 0

    def step(self, optimizer: Optimizer, draw: Draw, indices: Tensor) -> None:
        """One logical step: a noisy gradient, and the optimiser's step with it.

        Args:
            optimizer: over the network's trainable parameters.
            draw: gives records' inputs with K copies, in the network's device.
            indices: int64 [|I|] of a Poisson batch, or this rank's part of it; may be empty.

        Raises:
            PrivacyError: all steps of the plan were taken.
            ConfigError: repeated or foreign indices, inputs of another shape, or memory ran out;
                nothing was released.
        """
        if self.taken >= self.plan.steps:
            raise PrivacyError(
                f"Expected at most steps={self.plan.steps}, as planned and accounted; "
                "make a plan with more."
            )
        self._expect_distinct(indices)
        with explained_memory(self.physical_batch, self.plan.multiplicity):
            total = self._clipped_sum(draw, indices)
        self.taken += 1
        for parameter, gradient in zip(self._parameters, self._noisy(total), strict=True):
            parameter.grad = (gradient / self.plan.batch).to(parameter.dtype)
        optimizer.step()

    def _clipped_sum(self, draw: Draw, indices: Tensor) -> list[Tensor]:
        total = [torch.zeros_like(p, dtype=torch.float64) for p in self._parameters]
        if self.physical_batch is None and len(indices):
            # The first record comes alone, to be measured; it is not drawn a second time.
            first, indices = indices[:1], indices[1:]
            inputs = self._drawn(draw, first)
            self.physical_batch = self._measured(inputs)
            add_clipped(total, self._gradients(inputs), self.plan.clip)
        for part in indices.split(self.physical_batch or 1):
            if len(part):
                add_clipped(total, self._gradients(self._drawn(draw, part)), self.plan.clip)
        return total

    def _noisy(self, total: list[Tensor]) -> list[Tensor]:
        """The sum over all ranks plus the noise, the same on every rank."""
        std = self.plan.noise_std
        first = self._group is None or dist.get_rank(self._group) == 0
        for tensor in total:
            if std > 0 and first:
                tensor += self._noise.gaussian(tensor.shape, std).to(tensor.device)
            if self._group is not None:
                dist.all_reduce(tensor, group=self._group)
        if std == 0:
            return total
        # Low bits of a float64 sum still depend on the records; see `NoisyMeanRows`.
        return [on_grid(tensor, std) for tensor in total]

    def _drawn(self, draw: Draw, indices: Tensor) -> Inputs:
        inputs = draw(indices)
        expected = (len(indices), self.plan.multiplicity)
        for tensor in inputs:
            if tensor.shape[:2] != expected:
                raise ConfigError(
                    f"Expected inputs of multiplicity={self.plan.multiplicity} copies per record, "
                    f"[b, K, ...], got {tuple(tensor.shape[1:])} per record."
                )
        return inputs

    def _measured(self, inputs: Inputs) -> int:
        return records_that_fit(
            lambda: self._loss(self._model, *rows_of(inputs)),
            self._parameters,
            self._backend.gradients_held(self.plan.multiplicity),
            self._backend.slack,
            memory_budget(inputs[0].device) if self._memory is None else self._memory,
        )

    def _expect_distinct(self, indices: Tensor) -> None:
        if len(indices) == 0:
            return
        ordered = indices.sort().values
        in_range = int(ordered[0]) >= 0 and int(ordered[-1]) < self.plan.records
        if not in_range or bool((ordered[1:] == ordered[:-1]).any()):
            raise ConfigError(
                f"Expected distinct indices of {self.plan.records} records; a repeated one would "
                "count twice. Take them from PoissonBatches."
            )


def add_clipped(total: list[Tensor], gradients: list[Tensor], clip: float) -> None:
    """Add records' clipped gradients to a sum, in place and in float64.

    Args:
        total: [*shape] per parameter, float64.
        gradients: [b, *shape] per parameter; overwritten.
        clip: C, the largest norm that one record adds; see `DpSgdStep` for the proof.
    """
    norms = torch.stack([_norms(g) for g in gradients]).square().sum(0).sqrt()
    bound = clip / (1 + ROUNDING)
    finite = norms.isfinite()
    factors = torch.where(finite, bound / norms.clamp(min=bound), 0.0)
    all_finite = bool(finite.all())
    for tensor, gradient in zip(total, gradients, strict=True):
        rows = gradient.flatten(1)
        if not all_finite:
            # Zero times NaN would be NaN.
            rows[~finite] = 0
        tensor += (factors @ rows.double()).view_as(tensor)


def _norms(gradient: Tensor) -> Tensor:
    return torch.linalg.vector_norm(gradient.flatten(1), dim=1, dtype=torch.float64)
