"""Who takes part in a federated run: settled before the first query, and then for good."""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping

from fedtranscribe.capabilities import Capabilities
from fedtranscribe.config import FederationSettings, RoundSettings, StudentSettings
from fedtranscribe.errors import ConfigError, ProtocolError, QuorumError
from fedtranscribe.models.backbones import Backbone
from fedtranscribe.models.fixed_features import FIXED, is_fixed
from fedtranscribe.privacy.units import NoiseMode, Unit
from fedtranscribe.query import Kind
from fedtranscribe.refusals import RefusalCode

log = logging.getLogger(__name__)

Shape = tuple[int, int, int]


Told = Mapping[str, Capabilities | RefusalCode | ProtocolError]
"""What holders said when they were asked who they are."""


def enrol(
    told: Told, settings: FederationSettings, kind: Kind, expected: int
) -> dict[str, Capabilities]:
    """The holders that can take part, by name in sorted order; the others are logged.

    Where sums over the records may start the run and no holder would be left out by that, all
    holders that give sums take part; see `starts`.

    Args:
        told: by name.
        settings: how many rows at a time, under which noise, and what may start the run.
        kind: what teachers will be asked for.
        expected: how many holders there should be.

    Raises:
        ConfigError: a start was asked for that does not fit the rest.
        QuorumError: fewer than the quorum.
    """
    told = dict(sorted(told.items()))
    shape = _common_shape(facts for facts in told.values() if isinstance(facts, Capabilities))

    def unfit(kind: Kind) -> dict[str, object]:
        """Why each holder cannot take part; None if it can."""
        return {
            name: _unfit(facts, settings, kind, shape) if isinstance(facts, Capabilities) else facts
            for name, facts in told.items()
        }

    why = unfit(Kind.MOMENTS if settings.start == "moments" else kind)
    with_sums = unfit(Kind.MOMENTS)
    if not against_start(settings) and not any(with_sums[n] for n in told if not why[n]):
        why = with_sums
    for name, reason in why.items():
        if reason is not None:
            log.warning("holder %s does not take part: %s", name, reason)
    roster = {
        name: facts
        for name, facts in told.items()
        if why[name] is None and isinstance(facts, Capabilities)
    }
    needed = quorum(settings, expected)
    if len(roster) < needed:
        raise QuorumError(
            f"Only {len(roster)} of {expected} holders can take part, quorum={needed}; see the "
            "log for the reasons, or set a smaller quorum."
        )
    return roster


def starts(settings: FederationSettings, roster: Mapping[str, Capabilities]) -> tuple[bool, str]:
    """Whether sums over the records start a run, and in words why not, where nobody asked for that.

    It follows from the settings and the roster alone, so that a resumed run decides the same.

    Raises:
        ConfigError: a start was asked for that does not fit the rest.
    """
    if settings.start == "none":
        return False, ""
    why = against_start(settings)
    if not why:
        without = [name for name, facts in roster.items() if Kind.MOMENTS not in facts.kinds]
        why = f"holder {without[0]} allows no sums over its records" if without else ""
        if why and settings.features:
            raise ConfigError(f"Cannot use features={settings.features}: {why}.")
    return not why, f"no sums over the records are asked first: {why}" if why else ""


def against_start(settings: StudentSettings) -> str:
    """Why the settings leave no room for sums over the records; empty where they do.

    Raises:
        ConfigError: the settings ask for such a start all the same.
    """
    why = ""
    if settings.start == "none":
        why = "start=none"
    elif settings.unit != Unit.RECORD:
        why = f"unit={settings.unit}, and a sum over records hides no whole holder"
    elif settings.student is not None and not is_fixed(settings.student):
        why = f"student={settings.student}, and sums teach students {' and '.join(FIXED)} only"
    if why and (settings.start == "moments" or settings.features):
        asked = f"features={settings.features}" if settings.features else "start=moments"
        raise ConfigError(f"{asked} cannot be combined with {why}; leave one of the two out.")
    return why


def quorum(settings: RoundSettings, holders: int) -> int:
    """Fewest answers that a round needs."""
    return settings.quorum or holders // 2 + 1


def _common_shape(roster: Iterable[Capabilities]) -> Shape | None:
    """What most holders' images are: classes, channels, size; the first one on a tie."""
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
            f"its images are of (classes, channels, size) = {_shape(facts)}, "
            f"those of the others {shape}"
        )
    if kind not in facts.kinds:
        return f"it gives no {kind} answers"
    backbone = Backbone.parse(settings.student)
    if backbone is not None and backbone.told not in facts.features:
        return f"its policy does not allow features of {backbone.network} with these weights"
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
