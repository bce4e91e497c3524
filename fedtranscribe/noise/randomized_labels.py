"""Private labels: top-k randomised response, and the exponential mechanism on votes."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedtranscribe.errors import ConfigError
from fedtranscribe.noise.sources import NoiseSource
from fedtranscribe.privacy.events import Event
from fedtranscribe.privacy.label_events import ExponentialVotes, RandomizedResponse
from fedtranscribe.privacy.release_plan import MechanismRelease
from fedtranscribe.privacy.units import Adjacency, Unit


@dataclass(frozen=True)
class TopKRandomizedResponse:
    """One teacher's label within the student's top-k set.

    Eq. 5 with Eq. 4 over all c classes is not (ε, 0)-DP even once: a label outside the set is
    possible only if the true one is inside. So Eq. 4 runs over the k classes of the set, and a
    true label outside of it gives a uniform one.

    Attributes:
        epsilon0: log ratio of the teacher's label to any other of the set.
        k: size of the set.

    Guarantee:
        Unit: record or holder (one opaque teacher depends on all of them). Any adjacency.
        Per row (ε0, 0)-DP: every output has probability between 1/(e^ε0 + k − 1) and
        e^ε0/(e^ε0 + k − 1), and 1/k lies between them; rows compose, and the ledger books them.
        The bounds hold for rows with one entry of 1 and for zero rows only: with two teachers'
        votes against one the ratio is 1.31 at ε0 = 1, k = 3. Any other row counts as zero,
        silently. The cost depends on k (fewer classes cost more over many rows), so rows of
        another width are refused: k is public.
    """

    epsilon0: float
    k: int

    def __post_init__(self) -> None:
        """Refuse what reveals everything or nothing."""
        _expect_to_tell("epsilon0", self.epsilon0, self.k)

    dtype = torch.float32

    @property
    def width(self) -> int:
        """Numbers in an answer's row."""
        return self.k

    def release(self, rows: int, *, positional_ids: bool) -> MechanismRelease:
        """What `rows` labels give away; a teacher may change at will under any adjacency."""
        event = RandomizedResponse(self.epsilon0, self.k, rows)
        return _release("top-k-randomized-response", rows, event)

    def privatise(self, counts: Tensor, noise: NoiseSource) -> Tensor:
        """One-hot private labels.

        Args:
            counts: [n, k], one-hot where the teacher's label is in the set, else zero.
            noise: OS entropy, or a seeded source in tests.

        Returns:
            float32 [n, k], one-hot.

        Raises:
            ConfigError: the rows are not over k classes.
        """
        _expect_width(counts, self.k)
        one_hot = ((counts == 0) | (counts == 1)).all(-1) & (counts.sum(-1) <= 1)
        return _draw(self.epsilon0 * _keep_probability(counts, one_hot), noise)


@dataclass(frozen=True)
class ExponentialVoteLabels:
    """One label per row, drawn with weight e^(η·votes) over the student's set.

    Attributes:
        eta: weight of a vote.
        k: size of the set.

    Guarantee:
        Unit: record, whose teacher casts one vote; any adjacency, add-remove only where records
        have persistent ids. Moving a vote changes log weights by +η and −η at most: bounded range
        2η, hence η²/2 zCDP per row, also where an index is repeated. With one teacher it is
        `TopKRandomizedResponse`. A row that is not made of votes counts as none. No holder
        guarantee: a holder moves all votes.
    """

    eta: float
    k: int

    def __post_init__(self) -> None:
        """Refuse what reveals everything or nothing."""
        _expect_to_tell("eta", self.eta, self.k)

    dtype = torch.float32

    @property
    def width(self) -> int:
        """Numbers in an answer's row."""
        return self.k

    def release(self, rows: int, *, positional_ids: bool) -> MechanismRelease:
        """What `rows` labels give away."""
        event = ExponentialVotes(self.eta, self.k, rows)
        known = [a for a in Adjacency if a is not Adjacency.ADD_REMOVE or not positional_ids]
        return MechanismRelease(
            "exponential-votes", rows, {Unit.RECORD: dict.fromkeys(known, event)}
        )

    def privatise(self, counts: Tensor, noise: NoiseSource) -> Tensor:
        """One-hot private labels.

        Args:
            counts: votes [n, k] within the student's set.
            noise: OS entropy, or a seeded source in tests.

        Returns:
            float32 [n, k], one-hot.

        Raises:
            ConfigError: the rows are not over k classes.
        """
        _expect_width(counts, self.k)
        votes = (torch.isfinite(counts) & (counts >= 0)).all(-1)
        return _draw(self.eta * _keep_probability(counts, votes), noise)


def _expect_to_tell(name: str, strength: float, k: int) -> None:
    if not (strength > 0 and math.isfinite(strength)):
        raise ConfigError(f"Expected {name}={strength} > 0 and finite.")
    if k < 2:
        raise ConfigError(f"Expected k={k} >= 2; a set of one class carries no information.")


def _expect_width(counts: Tensor, k: int) -> None:
    if counts.shape[-1] != k:
        raise ConfigError(f"Expected rows over k={k} classes, got {counts.shape[-1]}.")


def _keep_probability(counts: Tensor, holds: Tensor) -> Tensor:
    """Rows where `holds`; the others become zero, since to refuse them would be an oracle."""
    return torch.where(holds.unsqueeze(-1), counts.double(), 0.0)


def _draw(log_weights: Tensor, noise: NoiseSource) -> Tensor:
    """Sample one entry per row by inverting the cumulated weights; float32 one-hot [n, k]."""
    weights = log_weights.double().softmax(-1).cumsum(-1)
    threshold = noise.uniform((len(weights), 1))
    # The last sum may round below 1: whatever is left belongs to the last entry.
    picked = (weights[:, :-1] < threshold).sum(-1)
    return F.one_hot(picked, weights.shape[-1]).float()


def _release(name: str, rows: int, event: Event) -> MechanismRelease:
    return MechanismRelease(name, rows, {unit: dict.fromkeys(Adjacency, event) for unit in Unit})
