"""The functions of `import fedtranscribe as ft`: the commands of the command line, from Python.

transcription  transcribe
synthesis      synthesize
simulation     simulate
finished       a finished run, and what is done with one: evaluate, release
given          data in memory, as keyword arguments state them
reporting      progress on standard error, and errors in the words of Python

Each function goes the way of its command: the same settings, checks, ledger and run folder.
"""

from fedtranscribe.api.finished import Run, evaluate, release
from fedtranscribe.api.simulation import simulate
from fedtranscribe.api.synthesis import synthesize
from fedtranscribe.api.transcription import transcribe

__all__ = ["Run", "evaluate", "release", "simulate", "synthesize", "transcribe"]
