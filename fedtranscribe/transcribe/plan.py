"""What a run will do, decided from public facts only and before anything is spent.

Public by decision: how many records there are, classes, image shape, cores, the settings. Nothing
here may look at an image, a label, or a teacher's accuracy.
"""

import math
from dataclasses import dataclass

from fedtranscribe.config import TranscribeSettings
from fedtranscribe.errors import ConfigError
from fedtranscribe.exchange import AnswerKind
from fedtranscribe.mechanisms import ExponentialVotes, NoisyMeanRows, TopKRandomizedResponse
from fedtranscribe.models import is_small
from fedtranscribe.privacy import (
    Adjacency,
    EnsembleLayout,
    Forecast,
    NoiseMode,
    Published,
    Unit,
    forecast,
    label_epsilon0,
    noise_std,
    published_sigma,
    vote_eta,
)

KINDS = {"data": AnswerKind.GRADIENT, "label": AnswerKind.LABEL, "vote": AnswerKind.VOTE}

# Below this many records a shard's teacher is little better than chance.
_RECORDS_PER_SHARD = 16
# Beyond this many shards, more of them cost time and bring little (privacy.md: ε = 10 wants 250).
_SHARDS = 250
# The paper's bound β, which its own formula squares and its noise does not see.
_PAPER_BETA_LOW, _PAPER_BETA_HIGH = 1e-3, 5e-3


@dataclass(frozen=True)
class Plan:
    """Everything that decides the guarantee of a run; fixed before the first query.

    Attributes:
        kind: what is asked per row.
        rows: how many rows in all.
        shards: disjoint teachers.
        mode: "full" trains a network per shard, "heads" a linear head per shard on a frozen
            backbone.
        mechanism: what every answer passes through.
        sharpness: 1/s², or ε0 in label mode.
        forecast: what can be learned at all.
        published: the paper's figure for the same run, where it has a formula.
        words: what was picked and what it trades, a line each.
    """

    kind: AnswerKind
    rows: int
    shards: int
    mode: str
    mechanism: NoisyMeanRows | TopKRandomizedResponse | ExponentialVotes
    sharpness: float
    forecast: Forecast
    published: Published | None
    words: tuple[str, ...]
