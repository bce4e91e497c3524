"""dp-promise: a private diffusion model, whose early time steps learn from noisy images.

algorithm.py   the paper's Algorithms 1 and 2, in stages
phase1.py      Phase I, sound and as printed
settings.py    what is asked for, the paper's sizes and ours
"""

from fedtranscribe.methods.dp_promise.algorithm import DpPromise, Stage
from fedtranscribe.methods.dp_promise.settings import (
    DpPromiseSettings,
    NoisyImages,
    PhaseOne,
    paper_settings,
)

__all__ = ["DpPromise", "DpPromiseSettings", "NoisyImages", "PhaseOne", "Stage", "paper_settings"]
