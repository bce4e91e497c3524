"""Private diffusion models, trained where the data are: plan, ledger, checkpoints, samples.

method       what a method has to offer
methods      the table of them
dp_promise   dp-promise's adapter
dp_sad       DP-SAD's
public       public images to start from
mixture_start  what a private start asks, and what that costs
started      the method that begins with one
preparation  what is settled before anything is spent
training     one training: booked, checkpointed, committed
run          a whole synthesis on one machine
samples      images from a finished one
"""

from fedtranscribe.synthesis.preparation import Prepared, prepare
from fedtranscribe.synthesis.run import show_plan, synthesize
from fedtranscribe.synthesis.training import Trained, Training

__all__ = ["Prepared", "Trained", "Training", "prepare", "show_plan", "synthesize"]
