"""Two gloo processes on the CPU take the steps that one takes: same sums, same noise, same cost."""

import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from dpsgd_nets import plan_for, squared_loss
from scipy import stats
from torch import Tensor, nn
from torch.optim import SGD

from fedtranscribe.noise.sources import OsNoise, SeededBits, SeededNoise
from fedtranscribe.privacy.units import Adjacency
from fedtranscribe.trainers.per_sample import Backend
from fedtranscribe.trainers.private_steps import DpSgdStep, PoissonBatches

RANKS = 2
PLAN = plan_for(records=8, batch=4, noise_multiplier=0.3, clip=0.5, multiplicity=2)
# Parts of one batch; in the second step rank 1 has nobody, in the third nobody is in.
BATCHES = [[[0, 3, 5], [1]], [[2], []], [[], []]]
COORDINATES = 200_000


def network(seed: int) -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=rng))
    return net


def draw(indices: Tensor) -> tuple[Tensor, ...]:
    rng = torch.Generator().manual_seed(1)
    x, y = torch.randn(8, 2, 3, generator=rng), torch.randn(8, 2, 2, generator=rng)
    return x[indices], y[indices]


def silent_loss(net: nn.Module, x: Tensor) -> Tensor:
    return net(x).sum((1, 2)) * 0.0


def trained(batches: list[list[int]], seed: int, group: dist.ProcessGroup | None) -> dict:
    """Three steps on parts of batches, then one step whose gradient is noise only."""
    net = network(seed)
    step = DpSgdStep(
        net, PLAN, squared_loss, Backend.CONTRACTED, SeededNoise(4), physical_batch=2, group=group
    )
    optimizer = SGD(net.parameters(), lr=0.5)
    for indices in batches:
        step.step(optimizer, draw, torch.tensor(indices, dtype=torch.int64))
    weights = torch.cat([p.detach().flatten() for p in net.parameters()])

    silent = nn.Embedding(1, COORDINATES)
    noise_only = DpSgdStep(
        silent, PLAN, silent_loss, Backend.CONTRACTED, OsNoise(), physical_batch=1, group=group
    )
    zeros = torch.zeros(8, 2, 1, dtype=torch.int64)
    noise_only.step(SGD(silent.parameters(), lr=0.1), lambda i: (zeros[i],), torch.tensor([3, 4]))
    return {
        "weights": weights,
        "noise": silent.weight.grad.flatten(),
        "event": step.plan.event(Adjacency.ZERO_OUT).to_json(),
        "taken": step.taken,
    }


def one_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=Path(folder, "meet").as_uri(), rank=rank, world_size=RANKS
    )
    try:
        # Rank 1 starts from other weights; it has to take those of rank 0.
        parts = [batch[rank] for batch in BATCHES]
        found = trained(parts, seed=rank, group=dist.group.WORLD)
        found["drawn"] = PoissonBatches(
            PLAN, SeededBits(0, str(rank)), dist.get_rank(), dist.get_world_size()
        ).draw()
        torch.save(found, Path(folder, f"{rank}.pt"))
    finally:
        dist.destroy_process_group()


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="gloo meets in a file")
def test_two_processes_are_as_one(tmp_path):
    mp.spawn(one_rank, args=(str(tmp_path),), nprocs=RANKS, join=True)
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(RANKS)]
    alone = trained([a + b for a, b in BATCHES], seed=0, group=None)
    for place, rank in enumerate(ranks):
        torch.testing.assert_close(rank["weights"], alone["weights"], atol=1e-5, rtol=0)
        assert rank["event"] == alone["event"]
        assert rank["taken"] == alone["taken"] == 3
        # Each rank samples among its own records.
        assert set(rank["drawn"].tolist()) <= set(range(place, 8, RANKS))
    assert torch.equal(ranks[0]["weights"], ranks[1]["weights"])
    assert torch.equal(ranks[0]["noise"], ranks[1]["noise"])
    # Noise from OS entropy, once: neither √2 nor 1/√2 of what is planned.
    for noise in (ranks[0]["noise"], alone["noise"]):
        ratio = float(noise.double().square().mean()) / (PLAN.noise_std / PLAN.batch) ** 2
        low, high = stats.chi2.ppf([1e-7, 1 - 1e-7], COORDINATES) / COORDINATES
        assert low < ratio < high
