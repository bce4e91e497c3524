"""Who takes part in a federated run: settled before the first query, and then for good."""

import logging
from collections import Counter
from collections.abc import Iterable

from fedtranscribe.capabilities import Capabilities
from fedtranscribe.config import FederationSettings, RoundSettings
from fedtranscribe.errors import QuorumError
from fedtranscribe.privacy.units import NoiseMode
from fedtranscribe.query import Kind
from fedtranscribe.rounds.transport import Transport

log = logging.getLogger(__name__)

Shape = tuple[int, int, int]


def enrol(
    transport: Transport, settings: FederationSettings, kind: Kind, expected: int
) -> dict[str, Capabilities]:
    """The holders that can take part, by name in sorted order; the others are logged.

    Args:
        transport: reaches them.
        settings: how many rows at a time, and under which noise.
        kind: what will be asked for.
        expected: how many holders there should be.

    Raises:
        QuorumError: fewer than the quorum.
    """
    told = dict(sorted(transport.capabilities().items()))
    shape = _common_shape(facts for facts in told.values() if isinstance(facts, Capabilities))
    roster: dict[str, Capabilities] = {}
    for name, facts in told.items():
        if not isinstance(facts, Capabilities):
            log.warning("holder %s does not take part: %s", name, facts)
        elif why := _unfit(facts, settings, kind, shape):
            log.warning("holder %s does not take part: %s", name, why)
        else:
            roster[name] = facts
    needed = quorum(settings, expected)
    if len(roster) < needed:
        raise QuorumError(
            f"Only {len(roster)} of {expected} holders can take part, quorum={needed}; see the "
            "log for the reasons, or set a smaller quorum."
        )
    return roster


def quorum(settings: RoundSettings, holders: int) -> int:
    """Fewest answers that a round needs."""
    return settings.quorum or holders // 2 + 1


def _common_shape(roster: Iterable[Capabilities]) -> Shape | None:
    """What most holders' teachers expect: classes, channels, size; the first one on a tie."""
    shapes = Counter(_shape(facts) for facts in roster)
    return shapes.most_common(1)[0][0] if shapes else None


def _shape(facts: Capabilities) -> Shape:
    return facts.classes, facts.channels, facts.size


def _unfit(
    facts: Capabilities, settings: FederationSettings, kind: Kind, shape: Shape | None
) -> str | None:
    """Why a holder cannot take part; None if it can."""
    rows = min(settings.dpsd.round_rows, settings.rows or settings.dpsd.round_rows)
    if _shape(facts) != shape:
        return (
            f"its teachers expect (classes, channels, size) = {_shape(facts)}, "
            f"those of the others {shape}"
        )
    if kind not in facts.kinds:
        return f"it gives no {kind} answers"
    if settings.noise == NoiseMode.CENTRAL and facts.noise is not NoiseMode.CENTRAL:
        return "its policy does not trust the server to add the noise; set noise=local"
    if settings.noise == NoiseMode.SECAGG:
        if facts.noise is NoiseMode.LOCAL:
            return "its policy allows no masked sums; set noise=local"
        if not facts.masks:
            return "it has no key or roster for masked sums; its policy file names them"
    if kind is not Kind.MOMENTS and rows > facts.rows_per_message:
        return f"round-rows={rows} is above its limit of {facts.rows_per_message} a message"
    if facts.shards < 1 and kind is not Kind.MOMENTS:
        return f"it has shards={facts.shards}"
    return None
