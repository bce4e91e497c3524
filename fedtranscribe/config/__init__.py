"""Frozen, typed settings, built alike from the command line, TOML, and Flower's run-config.

`build` reports every error at once, in one line, each with the value and what was expected.

base        what all settings have in common, and what a field says of itself
run         shared by several kinds of runs: own data, place, privacy, ledger, tracking
student     runs that teach a student
training    private trainings
federation  federated runs
evaluation  what is done with finished runs: evaluations and audits; not imported here
"""

from fedtranscribe.config.base import (
    CIRCUMSTANCE,
    Mark,
    Metavar,
    Settings,
    Topic,
    build,
    marked,
    read_toml,
)
from fedtranscribe.config.federation import BaselineSettings, FederationSettings, RoundSettings
from fedtranscribe.config.run import (
    LONGEST_NAME,
    MOST_CLASSES,
    MOST_RECORDS,
    PUBLIC_SHAPES,
    SCRATCH,
    UNSTATED,
    LedgerOptions,
    OwnData,
    Place,
    RunOptions,
    TrackingOptions,
    is_name,
)
from fedtranscribe.config.student import (
    STUDENT,
    DpsdSettings,
    StudentSettings,
    TeacherSettings,
    TranscribeSettings,
)
from fedtranscribe.config.training import (
    DpPromiseOptions,
    DpSadOptions,
    RecordOptions,
    SynthesizeSettings,
    TrainingOptions,
)

OF_RUNS = (TranscribeSettings, FederationSettings, SynthesizeSettings)
"""The settings that a run's folder may hold."""

__all__ = [
    "CIRCUMSTANCE",
    "LONGEST_NAME",
    "MOST_CLASSES",
    "MOST_RECORDS",
    "OF_RUNS",
    "PUBLIC_SHAPES",
    "SCRATCH",
    "STUDENT",
    "UNSTATED",
    "BaselineSettings",
    "DpPromiseOptions",
    "DpSadOptions",
    "DpsdSettings",
    "FederationSettings",
    "LedgerOptions",
    "Mark",
    "Metavar",
    "OwnData",
    "Place",
    "RecordOptions",
    "RoundSettings",
    "RunOptions",
    "Settings",
    "StudentSettings",
    "SynthesizeSettings",
    "TeacherSettings",
    "Topic",
    "TrackingOptions",
    "TrainingOptions",
    "TranscribeSettings",
    "build",
    "is_name",
    "marked",
    "read_toml",
]
