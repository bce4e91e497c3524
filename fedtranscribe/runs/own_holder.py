"""The transport of one machine: to a holder of one's own. It needs no more than the base install."""

from collections.abc import Sequence

from fedtranscribe.capabilities import Capabilities
from fedtranscribe.errors import ProtocolError
from fedtranscribe.holder.answering import Holder
from fedtranscribe.privacy.noise_plan import NoisePlan
from fedtranscribe.query import Query
from fedtranscribe.refusals import RefusalCode
from fedtranscribe.rounds.transport import MakeMessage, Reply
from fedtranscribe.wire import Message


class OwnHolder:
    """One's own data on one's own machine: no policy and no codes stand between.

    What goes wrong at the holder is raised as it is.

    Args:
        name: of the holder in the plan's roster.
        holder: answers.
    """

    def __init__(self, name: str, holder: Holder) -> None:
        self.payload = 0
        self.private = holder.private
        self._name = name
        self._holder = holder

    def capabilities(self) -> dict[str, Capabilities | RefusalCode | ProtocolError]:
        """Nobody needs to ask: the plan was made from its facts."""
        return {}

    def ask(
        self, holders: Sequence[str], query: Query, plan: NoisePlan, run: str
    ) -> dict[str, Reply]:
        """Ask it, if it is among them."""
        return {name: self._holder.answer(query, plan) for name in holders if name == self._name}

    def exchange(
        self, message_type: str, holders: Sequence[str], make: MakeMessage
    ) -> dict[str, Message]:
        """A masked sum needs others."""
        return {}
