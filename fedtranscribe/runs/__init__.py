"""Whole runs, from settings to a folder with a result.

picking.py, preparation.py   transcribe: what is asked, and what it costs, before it is spent
transcription.py             transcribe: one holder in this process
federate.py, simulation.py   holders that a transport reaches, and those of one machine
single_node.py               a private training at one holder
learning.py                  what all of them share: networks, method, rounds, what is kept
finished.py                  the run folder, opened again
"""

from fedtranscribe.runs.preparation import Prepared, given_generator, prepare
from fedtranscribe.runs.transcription import show_plan, transcribe

__all__ = ["Prepared", "given_generator", "prepare", "show_plan", "transcribe"]
