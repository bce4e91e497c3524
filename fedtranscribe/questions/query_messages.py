"""Queries, answers and refusals as messages: typed, versioned, packed.

Arrays travel in the narrowest type that loses nothing: index sets as bytes, logits and noisy
answers, which were rounded before, as float16. Nothing here knows what a kind of query means.

    message type         terms                                   arrays
    query.capabilities   protocol, holder                        –
    query.answer         protocol, holder, run, query-id, kind,  those of the query
                         mode, strength, holders, dropouts,
                         colluders, and the query's own
    (reply)              protocol, query-id, form, head…         values
    (refusal)            protocol, refusal                       –
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedtranscribe.errors import ConfigError, ModelMismatchError, ProtocolError
from fedtranscribe.privacy.release_plan import NoisePlan
from fedtranscribe.privacy.units import NoiseMode
from fedtranscribe.questions.capabilities import Capabilities
from fedtranscribe.questions.kinds import form_of_kind, query_from
from fedtranscribe.questions.messages import (
    Message,
    Terms,
    array_of,
    asked_terms,
    form_of,
    get,
    get_name,
    reply_terms,
)
from fedtranscribe.questions.question import Answer, Kind, Query, RawAnswer, Scalar
from fedtranscribe.questions.refusals import Refusal, RefusalCode
from fedtranscribe.text import expect_name

_PRIVATE, _RAW = "private", "raw"
_VALUES = "values"
# Before a query's own terms, which have names of their own.
_OWN = "of-"
# What an array of each type may travel as.
_KINDS = {
    torch.uint8: "u",
    torch.int64: "u",
    torch.float32: "f",
    torch.float64: "f",
}
# Sums may be negative, index sets may not.
_SIGNED = {torch.int64: "ui"}
_NARROWER = {
    "i": (np.uint8, np.uint16, np.uint32),
    "f": (np.float16, np.float32),
}


Expect = Callable[[str, Mapping[str, tuple[int, ...]], Mapping[str, Scalar]], None]
"""Given the kind of a query, the shapes of its arrays and its own terms."""


@dataclass(frozen=True)
class Envelope:
    """A query with everything that its holder binds it to.

    Attributes:
        query: what is asked.
        plan: under which noise.
        run: under which name to book.
        holder: which of a node's holders is meant; a deployed node has one, number 0.
    """

    query: Query
    plan: NoisePlan
    run: str
    holder: int = 0


def ask_capabilities(holder: int) -> Message:
    """Ask a holder who it is."""
    return Message.of({"holder": holder})


def ask(envelope: Envelope) -> Message:
    """A query on its way out."""
    query, plan = envelope.query, envelope.plan
    terms: dict[str, Any] = {
        "holder": envelope.holder,
        "run": envelope.run,
        "query-id": query.id,
        "kind": str(query.kind),
        "mode": plan.mode.value,
        "strength": plan.strength,
        "holders": plan.holders,
        "dropouts": plan.dropouts,
        "colluders": plan.colluders,
        **{f"{_OWN}{name}": value for name, value in query.terms.items()},
    }
    return Message.of(terms, {name: narrow(array) for name, array in query.arrays.items()})


def holder_number(content: Message) -> int:
    """Which of the node's holders a message is for.

    Raises:
        Refusal: PROTOCOL, MALFORMED.
    """
    return get(asked_terms(content), "holder", int)


def read_query(content: Message, expect: Expect) -> Envelope:
    """A query as it arrived at the holder.

    The headers of its arrays are held against what the holder can answer before anything is made
    of them: a few hundred bytes can claim gigabytes.

    Args:
        content: of the message.
        expect: refuses what the holder cannot answer, see `Node.expect`.

    Raises:
        Refusal: PROTOCOL, MALFORMED; POLICY for too many rows, and for what is never sent.
    """
    terms = asked_terms(content)
    try:
        query_id, run = get_name(terms, "query-id"), get_name(terms, "run")
        kind = get(terms, "kind", str)
        own = _own_terms(terms)
        arrays = form_of_kind(kind).ARRAYS
        forms = {name: form for name in arrays if (form := form_of(content, name)) is not None}
        for name, form in forms.items():
            _expect_type(name, form.dtype, arrays[name], _KINDS[arrays[name]])
        expect(kind, {name: form.shape for name, form in forms.items()}, own)
        query = query_from(
            kind,
            query_id,
            {name: _read_array(content, name, arrays[name]) for name in forms},
            own,
        )
        plan = NoisePlan(
            NoiseMode(get(terms, "mode", str)),
            get(terms, "strength", float),
            get(terms, "holders", int),
            get(terms, "dropouts", int),
            get(terms, "colluders", int),
        )
        return Envelope(query, plan, run, get(terms, "holder", int))
    except _SENSELESS:
        raise Refusal(RefusalCode.MALFORMED) from None


_SENSELESS = (
    *(ConfigError, ModelMismatchError),
    *(KeyError, TypeError, ValueError, OverflowError, RuntimeError),
)


def _own_terms(terms: Terms) -> dict[str, Scalar]:
    """The terms of the query itself, plain scalars all of them."""
    own = {name.removeprefix(_OWN): terms[name] for name in terms if name.startswith(_OWN)}
    return {name: _scalar(value) for name, value in own.items()}


def _scalar(value: object) -> Scalar:
    if not isinstance(value, bool | int | float | str):
        raise TypeError("a query's own terms are scalars")
    return value


def tell_capabilities(capabilities: Capabilities) -> Message:
    """A holder's self-description on its way out."""
    facts = asdict(capabilities)
    facts["kinds"] = [str(kind) for kind in capabilities.kinds]
    facts["noise"] = capabilities.noise.value
    facts["trainers"] = list(capabilities.trainers)
    facts["features"] = list(capabilities.features)
    return Message.of({name.replace("_", "-"): value for name, value in facts.items()})


def tell(answer: Answer | RawAnswer) -> Message:
    """An answer on its way out."""
    sequence, digest = answer.head
    terms = {
        "query-id": answer.query_id,
        "form": _RAW if isinstance(answer, RawAnswer) else _PRIVATE,
        "head-sequence": sequence,
        "head-hash": digest,
    }
    return Message.of(terms, {_VALUES: narrow(answer.values)})


def read_capabilities(content: Message) -> Capabilities:
    """A holder's self-description as it arrived at the server.

    Raises:
        Refusal: what the holder said instead.
        ProtocolError: it cannot be read.
    """
    terms = reply_terms(content)
    try:
        kinds = get(terms, "kinds", list)
        return Capabilities(
            name=get(terms, "name", str),
            classes=get(terms, "classes", int),
            channels=get(terms, "channels", int),
            size=get(terms, "size", int),
            shards=get(terms, "shards", int),
            positional_ids=get(terms, "positional-ids", bool),
            kinds=tuple(expect_name("kind", kind) for kind in kinds),
            noise=NoiseMode(get(terms, "noise", str)),
            rows_per_message=get(terms, "rows-per-message", int),
            rows_per_run=get(terms, "rows-per-run", int),
            dropouts=get(terms, "dropouts", int),
            colluders=get(terms, "colluders", int),
            masks=get(terms, "masks", bool),
            trainers=tuple(str(name) for name in get(terms, "trainers", list)),
            records=get(terms, "records", int),
            features=tuple(str(name) for name in get(terms, "features", list)),
            shards_declared_by=get(terms, "shards-declared-by", str),
            weights_declared_by=get(terms, "weights-declared-by", str),
            multilabel=get(terms, "multilabel", bool),
        )
    except (ConfigError, KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"A holder's capabilities cannot be read ({error}).") from None


def read_answer(content: Message, query: Query) -> Answer | RawAnswer:
    """An answer as it arrived at the server.

    Raises:
        Refusal: what the holder said instead.
        ProtocolError: it does not answer this query, or holds something that no answer can.
    """
    terms = reply_terms(content)
    try:
        answered_form, query_id = get(terms, "form", str), get(terms, "query-id", str)
        if answered_form not in (_PRIVATE, _RAW):
            raise ValueError(f"{answered_form[:20]!r} is no form of an answer")
        head = get(terms, "head-sequence", int), get(terms, "head-hash", str)
        form = form_of(content, _VALUES)
        shape = query.rows, query.width
        if form is not None and form.shape != shape:
            raise ValueError(f"values have shape {form.shape}, expected {shape}")
        dtype = query.RAW if answered_form == _RAW else query.ANSWER
        values = _read_array(content, _VALUES, dtype, _SIGNED.get(dtype, _KINDS[dtype]))
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ProtocolError(f"The answer to {query.id} cannot be read ({error}).") from None
    if query_id != query.id:
        raise ProtocolError(f"Expected an answer to {query.id}, got one to {query_id[:80]!r}.")
    if not bool(torch.isfinite(values).all()):
        raise ProtocolError(f"The answer to {query.id} holds values that are not finite.")
    if query.kind is Kind.LABEL and not _one_hot(values):
        raise ProtocolError(f"The answer to {query.id} holds rows that are no labels.")
    return (RawAnswer if answered_form == _RAW else Answer)(query_id, values, head)


# ---------------------------------------------------------------- small parts


def narrow(values: Tensor) -> np.ndarray:
    """An array in the narrowest type that loses nothing; for numbers that are not negative, bytes.

    Args:
        values: of whole numbers from zero on, or floats.
    """
    array = values.contiguous().cpu().numpy()
    for kind in _NARROWER.get(array.dtype.kind, ()):
        with np.errstate(over="ignore", invalid="ignore"):
            less = array.astype(kind)
        if np.array_equal(less.astype(array.dtype), array):
            return less
    return array


def _read_array(
    content: Message, name: str, dtype: torch.dtype, kinds: str | None = None
) -> Tensor:
    """The inverse of `narrow`."""
    kinds = kinds or _KINDS[dtype]
    if (form := form_of(content, name)) is not None:
        _expect_type(name, form.dtype, dtype, kinds)
    array = array_of(content, name, kinds)
    # torch knows few unsigned types, and no foreign byte order.
    wanted = np.int64 if dtype is torch.int64 else array.dtype.newbyteorder("=")
    return torch.from_numpy(array.astype(wanted)).to(dtype)


def _expect_type(name: str, found: np.dtype, dtype: torch.dtype, kinds: str) -> None:
    """Refuse numbers that `narrow` makes of no array of that type."""
    if found.kind not in kinds or found.itemsize > dtype.itemsize:
        raise ValueError(f"{name!r} holds {found}")


def _one_hot(values: Tensor) -> bool:
    return bool(((values == 0) | (values == 1)).all()) and bool((values.sum(-1) == 1).all())
