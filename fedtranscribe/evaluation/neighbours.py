"""Nearest real training records of synthetic images: PRIVATE, drawn under `private/` only.

Whether a generator repeats a record is for the data holder to look at. The picture shows records.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from fedtranscribe.models import Classifier

_CHUNK = 500

Embed = Callable[[Tensor], Tensor]


def nearest(queries: Tensor, records: Tensor, k: int, embed: Embed) -> Tensor:
    """Rows of the k nearest records of each query, nearest first.

    Args:
        queries: uint8 [m, ch, s, s].
        records: uint8 [n, ch, s, s].
        k: how many; fewer where there are fewer records.
        embed: images -> float [·, d]; distance is Euclidean there.

    Returns:
        int64 [m, min(k, n)].
    """
    wanted = embed(queries)
    best, rows = torch.empty(len(queries), 0), torch.empty(len(queries), 0, dtype=torch.int64)
    for first, part in _chunks(records):
        distance = torch.cdist(wanted, embed(part))
        seen = torch.arange(first, first + len(part)).expand(len(queries), -1)
        best, rows = torch.cat([best, distance], 1), torch.cat([rows, seen], 1)
        best, kept = best.topk(min(k, best.shape[1]), largest=False)
        rows = rows.gather(1, kept)
    return rows


def pixels(images: Tensor) -> Tensor:
    """uint8 [n, ch, s, s] -> float [n, ch * s * s] in [0, 1]."""
    return images.flatten(1).float() / 255


def features_of(student: Classifier) -> Embed:
    """What the student sees: the input of its last layer."""

    def embed(images: Tensor) -> Tensor:
        device = next(student.parameters()).device
        with torch.no_grad():
            return student.features(images.to(device).float() / 255).cpu()

    return embed


def _chunks(records: Tensor) -> Iterator[tuple[int, Tensor]]:
    first = 0
    for part in records.split(_CHUNK):
        yield first, part
        first += len(part)
