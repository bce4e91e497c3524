"""Tensors in, private tensors out; each mechanism knows its own sensitivity and cost."""

from fedtranscribe.mechanisms.bits import BitSource, OsBits, SeededBits
from fedtranscribe.mechanisms.blocks import (
    block_products,
    mixture_bound,
    square_sums,
)
from fedtranscribe.mechanisms.bounded import Bound
from fedtranscribe.mechanisms.descent import gradient_sums, gradients_bound
from fedtranscribe.mechanisms.exact_products import exact_product
from fedtranscribe.mechanisms.gaussian import CentralNoise, LocalNoise
from fedtranscribe.mechanisms.labels import (
    ExponentialVoteLabels,
    TopKRandomizedResponse,
    vote_counts,
)
from fedtranscribe.mechanisms.masked import MaskedShare
from fedtranscribe.mechanisms.mean_rows import mean_rows, mean_rows_bound
from fedtranscribe.mechanisms.moments import (
    MOMENTS,
    MomentSums,
    count_ids,
    id_weights,
    moment_sums,
    moments_bound,
)
from fedtranscribe.mechanisms.noise import KEY_BYTES, KeyedNoise, NoiseSource, OsNoise, SeededNoise
from fedtranscribe.mechanisms.normalize import (
    RowBound,
    clip_rows,
    gather_rows,
    simplex_rows,
    unit_rows,
)
from fedtranscribe.mechanisms.placement import Mechanism, gaussian_mechanism, label_mechanism

__all__ = [
    "KEY_BYTES",
    "MOMENTS",
    "BitSource",
    "Bound",
    "CentralNoise",
    "ExponentialVoteLabels",
    "KeyedNoise",
    "LocalNoise",
    "MaskedShare",
    "Mechanism",
    "MomentSums",
    "NoiseSource",
    "OsBits",
    "OsNoise",
    "RowBound",
    "SeededBits",
    "SeededNoise",
    "TopKRandomizedResponse",
    "block_products",
    "clip_rows",
    "count_ids",
    "exact_product",
    "gather_rows",
    "gaussian_mechanism",
    "gradient_sums",
    "gradients_bound",
    "id_weights",
    "label_mechanism",
    "mean_rows",
    "mean_rows_bound",
    "mixture_bound",
    "moment_sums",
    "moments_bound",
    "simplex_rows",
    "square_sums",
    "unit_rows",
    "vote_counts",
]
