"""What carries queries to holders and answers back; the values are the same whatever it is.

A transport never raises for one holder's sake: it says per holder what came back, and a holder
that is missing from the reply did not answer in time. Only a transport to a holder of one's own
(`runs.own_holder`) lets that holder's errors through: they are its user's.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from fedtranscribe.answer import Answer, RawAnswer
from fedtranscribe.capabilities import Capabilities
from fedtranscribe.errors import ProtocolError
from fedtranscribe.privacy.noise_plan import NoisePlan
from fedtranscribe.query import Query
from fedtranscribe.refusals import RefusalCode
from fedtranscribe.wire import Message

Reply = Answer | RawAnswer | RefusalCode | ProtocolError

MakeMessage = Callable[[int, str], Message]
"""The message for a holder, of its number on its node and its name."""


class Transport(Protocol):
    """In process, or over the wire.

    Attributes:
        payload: bytes of arrays that have travelled, both ways.
        private: whether no holder is known to draw its noise from a seed.
    """

    payload: int
    private: bool

    def capabilities(self) -> dict[str, Capabilities | RefusalCode | ProtocolError]:
        """Who is there, by name."""
        ...

    def ask(
        self, holders: Sequence[str], query: Query, plan: NoisePlan, run: str
    ) -> dict[str, Reply]:
        """Ask these holders; one that does not answer is absent from the result."""
        ...

    def exchange(
        self, message_type: str, holders: Sequence[str], make: MakeMessage
    ) -> dict[str, Message]:
        """Send each holder a message of its own, and give what came back, unread."""
        ...
