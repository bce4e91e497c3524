"""DP-SAD: a private diffusion student of a diffusion teacher, with a discriminator.

algorithm.py    the paper's Algorithm 1, in stages
settings.py     what is asked for, the paper's sizes and ours
networks.py     teacher, student and discriminator
teacher.py, adversary.py, losses.py     the parts of a step
as_printed.py   the step as the paper prints it, which has no sound ε
"""

from fedtranscribe.methods.dp_sad.algorithm import DpSad, Stage
from fedtranscribe.methods.dp_sad.networks import Networks, make_networks
from fedtranscribe.methods.dp_sad.settings import (
    Concatenation,
    DpSadSettings,
    Gradients,
    Optimiser,
    Start,
    Weighting,
    paper_settings,
    tiny_settings,
)

__all__ = [
    "Concatenation",
    "DpSad",
    "DpSadSettings",
    "Gradients",
    "Networks",
    "Optimiser",
    "Stage",
    "Start",
    "Weighting",
    "make_networks",
    "paper_settings",
    "tiny_settings",
]
