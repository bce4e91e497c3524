"""What scattering features cost, compared with a plain convolution of equal arithmetic and kymatio.

    OMP_NUM_THREADS=1 python benchmarks/features.py        # two minutes

CPU seconds of this process, one thread. Each way takes its turn in every round, and the best round
counts: other work on the machine only adds. `convolution` is one 3x3 convolution of 32 channels to
32 on 32x32 pixels, whose multiplications and additions are as many as those of the features of one
image. kymatio's torch back end computes two scales and eight orientations, too, with other filters.
"""

import argparse
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import torch
import torch.nn.functional as F

from fedtranscribe.models import Generator, build
from fedtranscribe.models.scattering import Scattering

RESULT = Path(__file__).parent / "results" / "features.md"
BATCH, IMAGES, SIZE = 200, 60_000, 28
# Multiplications with an addition each, per image, of the wavelets: fine, coarse, and second order.
WAVELETS = 16 * 9**2 * 28**2 + (1 + 8) * 16 * 17**2 * 14**2
PLAIN = 32 * 32 * 3**2 * 32**2


def seconds(work: Callable[[], object]) -> float:
    """CPU seconds of one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def ways() -> dict[str, Callable[[], object]]:
    """Each way over one batch of images."""
    images = torch.rand(BATCH, 1, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    maps, kernels = torch.rand(BATCH, 32, 32, 32), torch.rand(32, 32, 3, 3)
    scattering = Scattering()
    found = {
        "features": lambda: scattering(images),
        "convolution": lambda: F.conv2d(maps, kernels, padding=1),
    }
    try:
        from kymatio.torch import Scattering2D  # pyright: ignore[reportMissingImports]
    except ImportError:
        return found
    other = Scattering2D(J=2, shape=(SIZE, SIZE))
    return {**found, "kymatio": lambda: other(images)}


def generator_step() -> float:
    """CPU seconds of a forward and a backward pass of 64 generated images through the features."""
    student, generator = build("scatter", 10, 1, SIZE), Generator(64, 1, SIZE, 32)
    student.requires_grad_(False)

    def step() -> None:
        student.features(generator(torch.randn(64, 64))).sum().backward()

    step()
    return min(seconds(step) for _ in range(3))


def main() -> None:
    """Measure, print, and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    measured: dict[str, list[float]] = {}
    with torch.no_grad():
        chosen = ways()
        for _ in range(rounds):
            for name, work in chosen.items():
                measured.setdefault(name, []).append(seconds(work))
    best = {name: min(times) for name, times in measured.items()}
    lines = [
        "# What scattering features cost",
        "",
        f"`python benchmarks/features.py`, {datetime.now(UTC):%Y-%m-%d}, torch "
        f"{torch.__version__}, one thread, CPU seconds, best of {rounds} rounds. Grey images of "
        f"{SIZE} pixels; the wavelets take {WAVELETS / 1e6:.1f} million multiplications an image, "
        f"the plain convolution {PLAIN / 1e6:.1f}.",
        "",
        f"| way | ms per image | {IMAGES:,} images, s | over the convolution |",
        "| --- | --- | --- | --- |",
    ]
    for name, time_ in best.items():
        ratio = time_ / best["convolution"]
        lines.append(
            f"| {name} | {time_ / BATCH * 1e3:.3f} | {time_ / BATCH * IMAGES:.1f} | {ratio:.2f} |"
        )
    if "kymatio" not in best:
        lines += ["", "kymatio was not installed."]
    lines += [
        "",
        f"A step that trains a generator through them, 64 images: {generator_step():.2f} s.",
    ]
    RESULT.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
