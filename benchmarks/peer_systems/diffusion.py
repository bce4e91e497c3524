"""A class-conditional diffusion model by DP-SGD with Opacus, after DPDM (Dockhorn et al. 2023).

The smallest U-Net of the package, since there are minutes of a CPU instead of hours of GPUs. Each
record's gradient is the mean over four pairs of time and noise before it is clipped, as there.
"""

import copy
import time

import torch
from torch import Tensor, nn

from benchmarks.peer_systems.task import Task, calibrated
from fedtranscribe.models.unet import make_unet
from fedtranscribe.noise.sources import OsNoise
from fedtranscribe.privacy.diffusion import DpSgdPlan
from fedtranscribe.privacy.events import Event, PoissonGaussian
from fedtranscribe.privacy.units import Adjacency
from fedtranscribe.trainers.per_sample import Backend
from fedtranscribe.trainers.private_steps import DpSgdStep

LIMIT = 600.0
"""CPU seconds of training, about what a run of ours takes with sharpening."""
_BATCH, _COPIES, _LR, _CLIP, _PHYSICAL = 256, 4, 1e-3, 1.0, 16
_KEPT = 0.9  # of the moving average of weights, a step
_TIMES, _SAMPLING = 1_000, 25
_PASS = 250


def private_diffusion(task: Task, count: int) -> tuple[Tensor, Tensor, list[Event], str]:
    """Train for `LIMIT` CPU seconds, and draw `count` images with their labels."""
    from diffusers.schedulers.scheduling_ddim import DDIMScheduler

    train, rng = task.train, task.generator
    batch = min(_BATCH, len(train) // 4)
    schedule = DDIMScheduler(_TIMES)
    kept = schedule.alphas_cumprod

    def draw(rows: Tensor) -> tuple[Tensor, ...]:
        shape = len(rows), _COPIES
        times = torch.randint(1, _TIMES + 1, shape, generator=rng)
        image = train.images[rows, None].float() / 127.5 - 1
        noise = torch.randn(*shape, *image.shape[2:], generator=rng)
        share = kept[times - 1][..., None, None, None]
        noisy = share.sqrt() * image + (1 - share).sqrt() * noise
        labels = train.labels[rows, None].expand(shape)
        return noisy, times, labels, noise

    def events(sigma: float) -> list[Event]:
        return [PoissonGaussian(batch / len(train), sigma, steps, Adjacency.ADD_REMOVE)]

    network = make_unet("tiny", train.channels, train.size, task.classes)
    steps = 2
    trial = _stepper(copy.deepcopy(network), len(train), batch, steps, 1.0)
    nothing = torch.optim.SGD(trial[0].parameters(), lr=0.0)
    few = torch.arange(2 * _PHYSICAL)
    trial[1].step(nothing, draw, few)  # once for what is loaded
    began = time.process_time()
    trial[1].step(nothing, draw, few)
    steps = max(1, int(LIMIT / ((time.process_time() - began) * batch / len(few))))
    sigma = calibrated(events, task.target)
    _, step = _stepper(network, len(train), batch, steps, sigma)
    optimiser = torch.optim.Adam(network.parameters(), lr=_LR)
    averaged = copy.deepcopy(network)
    for _ in range(steps):
        picked = (torch.rand(len(train), generator=rng) < batch / len(train)).nonzero()[:, 0]
        step.step(optimiser, draw, picked)
        for old, new in zip(averaged.parameters(), network.parameters(), strict=True):
            old.data.lerp_(new.data, 1 - _KEPT)
    labels = torch.randint(0, task.classes, (count,), generator=rng)
    schedule.set_timesteps(_SAMPLING)
    parts = []
    with torch.no_grad():
        for part in labels.split(_PASS):
            shape = len(part), train.channels, train.size, train.size
            x = torch.randn(shape, generator=rng)
            for now in schedule.timesteps:
                guess = averaged(x, torch.full((len(part),), int(now) + 1), part)
                x = schedule.step(guess, int(now), x, return_dict=False)[0]
            parts.append(((x.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8))
    words = f"{steps} steps of {batch} records, noise multiplier {sigma:.2f}"
    return torch.cat(parts), labels, events(sigma), words


def _stepper(
    network: nn.Module, records: int, batch: int, steps: int, sigma: float
) -> tuple[nn.Module, DpSgdStep]:
    plan = DpSgdPlan(records, batch, steps, sigma, _CLIP, _COPIES)
    return network, DpSgdStep(network, plan, _loss, Backend.OPACUS, OsNoise(), _PHYSICAL)


def _loss(net: nn.Module, noisy: Tensor, times: Tensor, labels: Tensor, target: Tensor) -> Tensor:
    return (net(noisy, times, labels) - target).square().flatten(1).mean(1)
