"""How many records fit into memory at once, and the error message when they do not.

A logical batch is worked off in physical ones; their size changes time and memory, and nothing
that is released. It is found from the shapes of one record's pass alone.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from fedtranscribe.errors import ConfigError

_CPU_BUDGET = 2 * 2**30
"""A CPU gains nothing from larger batches, and containers have less memory than they show."""
_FREE_SHARE = 0.5
_CPU_MESSAGE = "can't allocate memory"


def memory_budget(device: torch.device) -> int:
    """Bytes that a training may take unless a limit is set: half of what is free."""
    if device.type == "cuda":
        return int(_FREE_SHARE * torch.cuda.mem_get_info(device)[0])
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return _CPU_BUDGET
    return min(_CPU_BUDGET, int(_FREE_SHARE * free))


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
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.enable_grad(), saved_tensors_hooks(keep, lambda tensor: tensor):
        losses()
    gradient = sum(p.numel() * p.element_size() for p in parameters)
    # The sum in float64 is there whatever the batch.
    left = budget - 2 * gradient
    return max(1, int(left / (slack * sum(kept.values()) + gradients * gradient)))


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
        if _CPU_MESSAGE not in str(error):
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
