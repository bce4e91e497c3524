"""A whole private training on one machine: plan, ledger, checkpoints, samples."""

from fedtranscribe.synthesis.preparation import Prepared, prepare
from fedtranscribe.synthesis.run import show_plan, synthesize
from fedtranscribe.synthesis.training import Trained, Training

__all__ = ["Prepared", "Trained", "Training", "prepare", "show_plan", "synthesize"]
