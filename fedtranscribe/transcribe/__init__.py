"""From settings to a result on one machine: plan, run folder, rounds, figures."""

from fedtranscribe.transcribe.plan import Plan, TaskFacts, make_plan
from fedtranscribe.transcribe.preparation import Prepared, prepare
from fedtranscribe.transcribe.transcription import transcribe

__all__ = ["Plan", "Prepared", "TaskFacts", "make_plan", "prepare", "transcribe"]
