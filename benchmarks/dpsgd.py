"""What a step of DP-SGD costs over a step without privacy, for images of 28x28.

The networks are dp-promise's U-Net of 1.6 million parameters and the classifier `cnn` of 34,000. A
case is a network, so many records with so many copies, and so many records per pass. The yardstick
is an ordinary step (forward, backward, SGD) on the same images, as many of them per pass. Private
steps find one gradient per record, clip and add up; noise is timed apart, because it comes once per
logical step, however many passes that has. All take turns in one process and the best round counts:
CPU seconds on a CPU (set OMP_NUM_THREADS=1: one thread bears other work on the machine), seconds
between two synchronisations on a GPU. Memory is the highest over what was there before the first
pass, in a process of its own for each way: resident set on a CPU, torch's own count on a GPU. For
cases of one copy, a profile says where the rest goes.
"""

import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.profiler import ProfilerActivity, profile

from benchmarks.harness import (
    MIB,
    Benchmark,
    Case,
    Line,
    Options,
    grid,
    in_a_fresh_process,
    page,
    resident,
)
from fedtranscribe.models import build
from fedtranscribe.models.unet import make_unet
from fedtranscribe.noise.sources import OsNoise
from fedtranscribe.privacy.diffusion import DpSgdPlan
from fedtranscribe.trainers.per_sample import Backend, Loss
from fedtranscribe.trainers.private_steps import DpSgdStep

PLAIN = "plain"
WAYS = [PLAIN, *Backend]
ROUNDS = 4
OPERATIONS = 8
"""Of a profile that are shown."""
CASES: list[Case] = [
    {"network": network, "records": records, "copies": copies, "physical": physical}
    for network, records, copies, physical in (
        *(("unet", 4, 32, 4), ("unet", 4, 32, 1), ("unet", 16, 4, 16), ("unet", 32, 1, 32)),
        *(("cnn", 64, 8, 64), ("cnn", 256, 1, 256)),
    )
]


def make(case: Case, device: str) -> nn.Module:
    if case["network"] == "cnn":
        return build("cnn", 10, 1, 28).to(device)
    return make_unet("small", 1, 28, 10).to(device)


def denoising(
    net: nn.Module, noisy: Tensor, times: Tensor, labels: Tensor, target: Tensor
) -> Tensor:
    return (net(noisy, times, labels) - target).square().flatten(1).mean(1)


def classifying(net: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(net(images), labels, reduction="none")


def task_of(case: Case, device: str) -> tuple[Loss, tuple[Tensor, ...]]:
    """A loss for each row, and what it takes."""
    rng = torch.Generator().manual_seed(0)
    shape = (case["records"], case["copies"])
    images = torch.randn(*shape, 1, 28, 28, generator=rng)
    if case["network"] == "cnn":
        inputs = images, torch.randint(0, 10, shape, generator=rng)
        return classifying, tuple(x.to(device) for x in inputs)
    times = torch.randint(1, 1001, shape, generator=rng)
    labels = torch.randint(0, 11, shape, generator=rng)
    inputs = images, times, labels, torch.randn(*shape, 1, 28, 28, generator=rng)
    return denoising, tuple(x.to(device) for x in inputs)


def step_of(way: str, case: Case, device: str) -> Callable[[], None]:
    """One step by one way, on a network and images of its own."""
    net = make(case, device)
    loss, inputs = task_of(case, device)
    optimizer = SGD(net.parameters(), lr=1e-4)
    records, copies, physical = case["records"], case["copies"], case["physical"]

    def plain() -> None:
        optimizer.zero_grad()
        for first in range(0, records, physical):
            rows = (x[first : first + physical].flatten(0, 1) for x in inputs)
            (loss(net, *rows).sum() / (records * copies)).backward()
        optimizer.step()

    if way == PLAIN:
        return plain
    plan = DpSgdPlan(records, records, 10_000, 0.0, 1e-2, copies)
    private = DpSgdStep(net, plan, loss, Backend(way), OsNoise(), physical)
    everybody = torch.arange(records)
    return lambda: private.step(optimizer, lambda i: tuple(x[i] for x in inputs), everybody)


def seconds(work: Callable[[], object], device: str) -> float:
    if device == "cpu":
        start = time.process_time()
        work()
        return time.process_time() - start
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def best_times(case: Case, device: str) -> dict[str, float]:
    steps = {way: step_of(way, case, device) for way in WAYS}
    for step in steps.values():
        step()
    best = dict.fromkeys(WAYS, float("inf"))
    for _ in range(ROUNDS):
        for way, step in steps.items():
            best[way] = min(best[way], seconds(step, device))
    return best


def peak_bytes(way: str, case: Case, device: str) -> int:
    """Over what is there once a pass of a single image has loaded the libraries."""
    step_of(way, {**case, "records": 1, "copies": 1, "physical": 1}, device)()
    step = step_of(way, case, device)
    if device != "cpu":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        return torch.cuda.max_memory_allocated() - before
    before = resident("VmRSS")
    # Forget the peak so far; getrusage would even remember the parent's.
    Path("/proc/self/clear_refs").write_text("5")
    step()
    return resident("VmHWM") - before


def profiled(case: Case, device: str) -> dict[str, list[float]]:
    """Seconds of torch's own operations in a plain step and a private one."""
    found: list[dict[str, float]] = []
    for way in (PLAIN, Backend.CONTRACTED):
        step = step_of(way, case, device)
        step()
        with profile(activities=[ProfilerActivity.CPU]) as watched:
            step()
        found.append({e.key: e.self_cpu_time_total / 1e6 for e in watched.key_averages()})
    plain, private = found
    first = sorted(private, key=lambda key: plain.get(key, 0.0) - private[key])[:OPERATIONS]
    shown = {key: [plain.get(key, 0.0), private[key]] for key in first}
    shown["all"] = [sum(plain.values()), sum(private.values())]
    return {key: [round(x, 3) for x in pair] for key, pair in shown.items()}


def measure(case: Case, options: Options) -> Line:
    device = options.device
    times = best_times(case, device)
    peaks = {way: in_a_fresh_process(peak_bytes, way, case, device) for way in WAYS}
    line: Line = {
        "parameters": sum(p.numel() for p in make(case, device).parameters()),
        "processor": "cpu" if device == "cpu" else torch.cuda.get_device_name(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "steps": {way: round(took, 3) for way, took in times.items()},
        "peaks": {way: round(peak / MIB) for way, peak in peaks.items()},
    }
    source = OsNoise()
    for name, numbers in (("noise", line["parameters"]), ("noise_of_a_million", 1_000_000)):
        noises = (seconds(lambda n=numbers: source.gaussian((n,), 1.0), "cpu") for _ in range(5))
        line[name] = round(min(noises), 3)
    if case["copies"] == 1 and device == "cpu":
        line["operations"] = profiled(case, device)
    return line


def table(lines: list[Line]) -> str:
    sizes = {line["network"]: line["parameters"] for line in lines}
    networks = " and ".join(f"{name} of {size:,}" for name, size in sizes.items())
    last = lines[-1]
    return page(
        "# A step of DP-SGD over a step without privacy",
        f"Networks: {networks} parameters; images of 1x28x28, {last['processor']}, "
        f"{last['threads']} thread(s), torch {last['torch']}. `plain` is a step without privacy on "
        "the same images, as many per pass.",
        grid(
            (
                *("network", "records x copies", "records per pass", "way", "seconds"),
                *("over plain", "peak MiB", "peak over plain", "over opacus"),
            ),
            (
                (
                    *(line["network"], f"{line['records']} x {line['copies']}", line["physical"]),
                    *(way, f"{took:.3f}", f"{took / line['steps'][PLAIN]:.2f}"),
                    *(f"{(peak := line['peaks'][way])}", f"{peak / line['peaks'][PLAIN]:.2f}"),
                    f"{peak / line['peaks'][Backend.OPACUS]:.2f}",
                )
                for line in lines
                for way, took in line["steps"].items()
            ),
        ),
        f"Noise from the operating system, once per logical step: {lines[0]['noise']:.3f} s for "
        f"{lines[0]['network']}, {lines[0]['noise_of_a_million']:.3f} s per million parameters "
        "(one core).",
        *(part for line in lines if "operations" in line for part in _where(line)),
    )


def _where(line: Line) -> tuple[str, str]:
    rows = (
        (key if key == "all" else f"`{key}`", *(f"{x:.3f}" for x in (plain, own, own - plain)))
        for key, (plain, own) in line["operations"].items()
    )
    return (
        f"## Where the time of {line['network']}, {line['records']} records, goes",
        grid(("operation", "plain, s", "contracted, s", "more, s"), rows),
    )


BENCHMARK = Benchmark(
    table,
    CASES,
    measure,
    quick=({"network": "cnn", "records": 8, "copies": 1, "physical": 8},),
)
