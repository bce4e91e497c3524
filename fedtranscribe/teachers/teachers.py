"""What a family of teachers must offer, networks or not."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Protocol

import torch
from torch import Tensor

from fedtranscribe.capabilities import Facts


class Teachers(Protocol):
    """Classifiers trained on disjoint shards of a holder's records.

    Guarantee:
        All bounds of answers rest on this: every record is in one shard, and a teacher is a
        function of the records of its own shard, public values and randomness of its own.
    """

    @property
    def facts(self) -> Facts:
        """What may be stated about them: shape of the images, classes, count of shards."""
        ...

    def logits(self, images: Tensor) -> Iterator[Tensor]:
        """Logits of every shard in turn, the empty ones included.

        Args:
            images: uint8 [n, ch, s, s].

        Returns:
            float32 [1, n, classes] each, on the device of the mechanism; NaN for an empty shard.
            Whether teachers give logits or log-probabilities makes no difference.
        """
        ...


def ensemble_accuracy(
    ensembles: Sequence[Teachers], images: Tensor, labels: Tensor
) -> dict[str, float]:
    """Mean accuracy of single teachers, and that of their summed votes, on declared-public images.

    Args:
        ensembles: of one holder or of several; their teachers count alike.
        images: uint8 [n, ch, s, s].
        labels: int64 [n].

    Returns:
        {"single_teacher": …, "ensemble": …}; empty shards do not count.
    """
    votes, single, there = torch.zeros(()), 0.0, 0
    for logits in chain.from_iterable(teachers.logits(images) for teachers in ensembles):
        for teacher in logits:
            if not bool(torch.isfinite(teacher).all()):
                continue
            votes = votes + teacher.softmax(-1)
            single += float((teacher.argmax(-1) == labels).float().mean())
            there += 1
    ensemble = float((votes.argmax(-1) == labels).float().mean()) if there else 0.0
    return {"single_teacher": single / max(there, 1), "ensemble": ensemble}
