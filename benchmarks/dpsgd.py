"""What a step of DP-SGD costs over a step without privacy, for images of 28x28.

    OMP_NUM_THREADS=1 python benchmarks/dpsgd.py         # a quarter of an hour; a GPU if there is
    OMP_NUM_THREADS=1 python benchmarks/dpsgd.py --rounds 1 --only unet:4x32:4

The networks are dp-promise's U-Net of 1.6 million parameters and the classifier `cnn` of 34,000. A
case is network : records x copies : records per pass. The yardstick is an ordinary step (forward,
backward, SGD) on the same images, as many of them per pass. Private steps find one gradient per
record, clip and add up; noise is timed apart, because it comes once per logical step, however many
passes that has. All take turns in one process and the best round counts: CPU seconds on a CPU,
which bear other work on the machine where there is one thread, seconds between two synchronisations
on a GPU. Memory is the highest over what was there before the first pass, in a process of its own
for each way: resident set on a CPU, torch's own count on a GPU. A profile of the cases of one copy
says where the rest goes. The tables go to `results/dpsgd.md`.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.profiler import ProfilerActivity, profile

from fedtranscribe.models import build
from fedtranscribe.models.unet import make_unet
from fedtranscribe.noise.sources import OsNoise
from fedtranscribe.privacy.diffusion import DpSgdPlan
from fedtranscribe.trainers.per_sample import Backend, Loss
from fedtranscribe.trainers.private_steps import DpSgdStep

RESULT = Path(__file__).parent / "results" / "dpsgd.md"
PLAIN = "plain"
WAYS = [PLAIN, *Backend]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
MIB = 2**20
NETWORKS = ("unet", "cnn")
OPERATIONS = 8
"""Of a profile that are shown."""


@dataclass(frozen=True)
class Case:
    """A network, and so many records with so many copies, in passes of so many records."""

    network: str
    records: int
    copies: int
    physical: int

    @classmethod
    def parse(cls, text: str) -> "Case":
        network, images, physical = text.split(":")
        records, copies = images.split("x")
        return cls(network, int(records), int(copies), int(physical))

    def __str__(self) -> str:
        return f"{self.network}:{self.records}x{self.copies}:{self.physical}"


CASES = [
    *("unet:4x32:4", "unet:4x32:1", "unet:16x4:16", "unet:32x1:32"),
    *("cnn:64x8:64", "cnn:256x1:256"),
]


def made(network: str) -> nn.Module:
    if network == "cnn":
        return build(network, 10, 1, 28).to(DEVICE)
    return make_unet("small", 1, 28, 10).to(DEVICE)


def denoising(
    net: nn.Module, noisy: Tensor, times: Tensor, labels: Tensor, target: Tensor
) -> Tensor:
    return (net(noisy, times, labels) - target).square().flatten(1).mean(1)


def classifying(net: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(net(images), labels, reduction="none")


def task_of(case: Case) -> tuple[Loss, tuple[Tensor, ...]]:
    """A loss for each row, and what it takes."""
    rng = torch.Generator().manual_seed(0)
    shape = (case.records, case.copies)
    images = torch.randn(*shape, 1, 28, 28, generator=rng)
    if case.network == "cnn":
        inputs = images, torch.randint(0, 10, shape, generator=rng)
        return classifying, tuple(x.to(DEVICE) for x in inputs)
    times = torch.randint(1, 1001, shape, generator=rng)
    labels = torch.randint(0, 11, shape, generator=rng)
    inputs = images, times, labels, torch.randn(*shape, 1, 28, 28, generator=rng)
    return denoising, tuple(x.to(DEVICE) for x in inputs)


def step_of(way: str, case: Case) -> Callable[[], None]:
    """One step by one way, on a network and images of its own."""
    net = made(case.network)
    loss, inputs = task_of(case)
    optimizer = SGD(net.parameters(), lr=1e-4)

    def plain() -> None:
        optimizer.zero_grad()
        for first in range(0, case.records, case.physical):
            rows = (x[first : first + case.physical].flatten(0, 1) for x in inputs)
            (loss(net, *rows).sum() / (case.records * case.copies)).backward()
        optimizer.step()

    if way == PLAIN:
        return plain
    plan = DpSgdPlan(case.records, case.records, 10_000, 0.0, 1e-2, case.copies)
    private = DpSgdStep(net, plan, loss, Backend(way), OsNoise(), case.physical)
    everybody = torch.arange(case.records)
    return lambda: private.step(optimizer, lambda i: tuple(x[i] for x in inputs), everybody)


def seconds(work: Callable[[], object]) -> float:
    if DEVICE.type == "cpu":
        start = time.process_time()
        work()
        return time.process_time() - start
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def best_times(case: Case, rounds: int) -> dict[str, float]:
    steps = {way: step_of(way, case) for way in WAYS}
    for step in steps.values():
        step()
    best = dict.fromkeys(WAYS, float("inf"))
    for _ in range(rounds):
        for way, step in steps.items():
            best[way] = min(best[way], seconds(step))
    return best


def peak_bytes(way: str, case: Case) -> int:
    """Over what is there once a pass of a single image has loaded the libraries."""
    step_of(way, Case(case.network, 1, 1, 1))()
    step = step_of(way, case)
    if DEVICE.type == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        return torch.cuda.max_memory_allocated() - before
    before = resident("VmRSS")
    # Forget the peak so far; getrusage would even remember the parent's.
    Path("/proc/self/clear_refs").write_text("5")
    step()
    return resident("VmHWM") - before


def resident(entry: str) -> int:
    """Bytes of an entry of Linux's process status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(entry):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"Expected {entry} in /proc/self/status; peak memory wants Linux or a GPU.")


def peak_apart(way: str, case: Case) -> int:
    asked = [sys.executable, __file__, "--peak", way, "--only", str(case)]
    found = subprocess.run(asked, check=True, capture_output=True, text=True)
    return json.loads(found.stdout)


def noise_seconds(parameters: int) -> float:
    source = OsNoise()
    return min(seconds(lambda: source.gaussian((parameters,), 1.0)) for _ in range(5))


def lines(cases: list[Case], rounds: int) -> list[str]:
    table = [
        "| network | records x copies | records per pass | way | seconds | over plain | peak MiB "
        "| peak over plain | over opacus |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for case in cases:
        times = best_times(case, rounds)
        peaks = {way: peak_apart(way, case) for way in WAYS}
        for way in WAYS:
            table.append(
                f"| {case.network} | {case.records} x {case.copies} | {case.physical} | {way} "
                f"| {times[way]:.3f} | {times[way] / times[PLAIN]:.2f} | {peaks[way] / MIB:.0f} "
                f"| {peaks[way] / peaks[PLAIN]:.2f} | {peaks[way] / peaks[Backend.OPACUS]:.2f} |"
            )
            print(table[-1], flush=True)
    return table


def profiled(case: Case) -> list[str]:
    """Where a private step spends what a plain one does not, by torch's own operations."""
    found: dict[str, dict[str, float]] = {}
    for way in (PLAIN, Backend.CONTRACTED):
        step = step_of(way, case)
        step()
        with profile(activities=[ProfilerActivity.CPU]) as watched:
            step()
        found[way] = {e.key: e.self_cpu_time_total / 1e6 for e in watched.key_averages()}
    plain, private = found[PLAIN], found[Backend.CONTRACTED]
    more = {key: private[key] - plain.get(key, 0.0) for key in private}
    table = [
        "| operation | plain, s | contracted, s | more, s |",
        "| --- | --- | --- | --- |",
    ]
    for key in sorted(more, key=lambda key: -more[key])[:OPERATIONS]:
        cells = plain.get(key, 0.0), private[key], more[key]
        table.append(f"| `{key}` | " + " | ".join(f"{cell:.3f}" for cell in cells) + " |")
    total = sum(plain.values()), sum(private.values())
    table.append(f"| all | {total[0]:.3f} | {total[1]:.3f} | {total[1] - total[0]:.3f} |")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description="What a step of DP-SGD costs.")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--only", action="append", help="a case, such as 4x32:1")
    parser.add_argument("--peak", choices=WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    cases = [Case.parse(text) for text in args.only or CASES]
    if args.peak:
        print(json.dumps(peak_bytes(args.peak, cases[0])))
        return
    name = torch.cuda.get_device_name() if DEVICE.type == "cuda" else "cpu"
    table = lines(cases, args.rounds)
    sizes = {network: sum(p.numel() for p in made(network).parameters()) for network in NETWORKS}
    noise = [noise_seconds(n) for n in (sizes["unet"], 1_000_000)]
    text = [
        "# A step of DP-SGD over a step without privacy",
        "",
        f"U-Net of {sizes['unet']:,} and CNN of {sizes['cnn']:,} parameters, images of 1x28x28, "
        f"{name}, {torch.get_num_threads()} thread(s), torch {torch.__version__}. `plain` is a "
        "step without privacy on the same images, as many per pass.",
        "",
        *table,
        "",
        f"Noise from the operating system, once per logical step: {noise[0]:.3f} s for this "
        f"U-Net, {noise[1]:.3f} s per million parameters (one core).",
    ]
    for case in cases:
        if case.copies == 1 and DEVICE.type == "cpu":
            text += ["", f"## Where the time of {case} goes", "", *profiled(case)]
    print("\n".join(text))
    if not args.only:
        RESULT.write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    main()
