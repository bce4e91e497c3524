"""DP-SGD on Poisson batches with K copies per record, one logical step at a time.

Every record tosses its own secret coin for every step: a shuffled pass over the data, cut into
batches of one size, has no such guarantee.

A step goes over its batch in physical parts, finds one gradient per record (`per_sample.py`), clips
it, adds up, adds noise once, divides by the EXPECTED batch and hands the result to an ordinary
optimiser. Several processes may share a step: each adds up its own part of the batch, one
all-reduce per parameter makes the whole of it, and rank 0 alone adds the noise.

That reduction is our own: Opacus's distributed optimiser presumes a wrapper for the network, its
own back end, and its data loader; and it hands an average of local averages to the optimiser. Here
all back ends share the lines below, and a rank whose part is empty needs nothing special.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.optim import Optimizer

from fedtranscribe.errors import ConfigError, PrivacyError
from fedtranscribe.noise.gaussian import on_grid
from fedtranscribe.noise.sources import BitSource, NoiseSource, OsBits
from fedtranscribe.privacy.calibrate import ROUNDING
from fedtranscribe.privacy.diffusion import DpSgdPlan
from fedtranscribe.trainers.per_sample import (
    Backend,
    Inputs,
    Loss,
    record_gradients,
    rows_of,
    trainable,
)

_CPU_BUDGET = 2 * 2**30
"""A CPU gains nothing from larger batches, and containers have less memory than they show."""

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


# ---------------------------------------------------------------- batches


class PoissonBatches:
    """The batches of a plan, or one process's part of them.

    Args:
        plan: n records, expected batch m.
        bits: where coins come from; OS entropy unless a test seeds it. Processes that sample
            together need different bits.
        rank: this process's place among `ranks`; it tosses for records rank, rank + ranks, ….
        ranks: processes that train one model together.

    Guarantee:
        Exact: a record is in with probability m/n and nothing else. A 64-bit word below the
        largest multiple of n is uniform modulo n, others are drawn again, and a record is in when
        its remainder is below m. Coins of different records and steps are independent. Parts of
        several ranks are disjoint, and their union is such a batch; no rank need know another's.
        Which records are in is as secret as the records: indices must not be logged, nor |I|.

    Raises:
        ConfigError: a rank that is none.
    """

    def __init__(
        self, plan: DpSgdPlan, bits: BitSource | None = None, rank: int = 0, ranks: int = 1
    ) -> None:
        if not 0 <= rank < ranks:
            raise ConfigError(f"Expected rank={rank} between 0 and ranks-1={ranks - 1}.")
        self._plan = plan
        self._bits = OsBits() if bits is None else bits
        self._own = np.arange(rank, plan.records, ranks)

    @property
    def private(self) -> bool:
        """Whether a run that used these batches may call itself private."""
        return self._bits.private

    def draw(self) -> Tensor:
        """One step's indices, int64 [|I|], ascending; often enough there are none."""
        remainders = self._remainders(len(self._own))
        return torch.from_numpy(self._own[remainders < np.uint64(self._plan.batch)])

    def __iter__(self) -> Iterator[Tensor]:
        """The batches of all steps of the plan."""
        for _ in range(self._plan.steps):
            yield self.draw()

    def _remainders(self, count: int) -> np.ndarray:
        """So many numbers, uniform in [0, n)."""
        words = self._bits.words(count).copy()
        n = self._plan.records
        last = np.uint64(2**64 // n * n - 1)
        while (beyond := words > last).any():
            words[beyond] = self._bits.words(int(beyond.sum()))
        return words % np.uint64(n)


def shuffled(records: Tensor, bits: BitSource) -> Tensor:
    """The same records in a secret order, every one equally likely.

    Args:
        records: int64 [b].
        bits: where the order comes from.

    Guarantee:
        The order is that of b uniform 64-bit words. Two of them are equal with probability
        b² 2⁻⁶⁵, and then stand in the order given.
    """
    order = np.argsort(bits.words(len(records)), kind="stable")
    return records[torch.from_numpy(order)]


# ---------------------------------------------------------------- memory


def memory_budget(device: torch.device) -> int:
    """Bytes that a training may take unless a limit is set: half of what is free."""
    if device.type == "cuda":
        return int(0.5 * torch.cuda.mem_get_info(device)[0])
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return _CPU_BUDGET
    return min(_CPU_BUDGET, int(0.5 * free))


def records_that_fit(
    losses: Callable[[], Tensor],
    parameters: Sequence[Tensor],
    gradients: int,
    slack: float,
    budget: int,
) -> int:
    """The physical batch for a memory budget, at least 1.

    Args:
        losses: the forward pass of one record with all of its copies.
        parameters: those that take part.
        gradients: how many gradients of the network are held for each record.
        slack: memory of a pass over the activations that it keeps.
        budget: bytes.
    """
    own = {p.untyped_storage().data_ptr() for p in parameters}
    saved: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.enable_grad(), saved_tensors_hooks(keep, lambda tensor: tensor):
        losses()
    gradient = sum(p.numel() * p.element_size() for p in parameters)
    # The sum in float64 is there whatever the batch.
    left = budget - 2 * gradient
    return max(1, int(left / (slack * sum(saved.values()) + gradients * gradient)))


@contextmanager
def explained_memory(physical_batch: int | None, multiplicity: int) -> Iterator[None]:
    """Turns running out of memory into a message that names the setting to lower.

    Raises:
        ConfigError: memory ran out. Only public settings are named, never |I|.
    """
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError):
        raise _too_large(physical_batch, multiplicity) from None
    except RuntimeError as error:
        if "can't allocate memory" not in str(error):
            raise
        raise _too_large(physical_batch, multiplicity) from None


def _too_large(physical_batch: int | None, multiplicity: int) -> ConfigError:
    copies = f"{multiplicity} copies each"
    if physical_batch is None or physical_batch == 1:
        return ConfigError(
            f"Expected one record of {copies} to fit into memory; lower multiplicity="
            f"{multiplicity} or take a smaller network."
        )
    return ConfigError(
        f"Expected physical_batch={physical_batch} records of {copies} to fit into memory; "
        f"set physical_batch={physical_batch // 2} or lower."
    )
