"""Tensors in, private tensors out; each mechanism knows its own sensitivity and cost."""

from fedtranscribe.mechanisms.bits import BitSource, OsBits, SeededBits
from fedtranscribe.mechanisms.discrete import QuantisedMeanRows
from fedtranscribe.mechanisms.gaussian import CentralNoise, MeanRows, NoisyMeanRows, RawMeanRows
from fedtranscribe.mechanisms.labels import (
    ExponentialVoteLabels,
    TopKRandomizedResponse,
    vote_counts,
)
from fedtranscribe.mechanisms.moments import MOMENTS, MomentSums, NoisyMoments, moment_sums
from fedtranscribe.mechanisms.noise import NoiseSource, OsNoise, SeededNoise
from fedtranscribe.mechanisms.normalize import (
    RowBound,
    clip_rows,
    gather_rows,
    mean_rows,
    simplex_rows,
    unit_rows,
)

__all__ = [
    "MOMENTS",
    "BitSource",
    "CentralNoise",
    "ExponentialVoteLabels",
    "MeanRows",
    "MomentSums",
    "NoiseSource",
    "NoisyMeanRows",
    "NoisyMoments",
    "OsBits",
    "OsNoise",
    "QuantisedMeanRows",
    "RawMeanRows",
    "RowBound",
    "SeededBits",
    "SeededNoise",
    "TopKRandomizedResponse",
    "clip_rows",
    "gather_rows",
    "mean_rows",
    "moment_sums",
    "simplex_rows",
    "unit_rows",
    "vote_counts",
]
