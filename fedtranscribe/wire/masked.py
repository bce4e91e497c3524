"""The messages of a masked sum.

    message type          terms                                     arrays
    query.secagg_key      run, names, dropouts, colluders           –
    (reply)               name                                      advert
    query.secagg_open     those of query.answer                     those of query.answer, adverts
    (reply)               query-id, head…                           sealed
    query.secagg_mask     run, query-id                             sealed
    (reply)               query-id                                  masked
    query.secagg_sign     run, query-id, survivors                  –
    (reply)               query-id                                  signature
    query.secagg_reveal   run, query-id                             signatures
    (reply)               query-id                                  shares

Plural arrays hold bytes by holder: one array with all of them, one with their lengths, and the
names among the terms. Every message also has `protocol` and `holder`.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from fedtranscribe.errors import ConfigError, ProtocolError
from fedtranscribe.secagg import Advert, Members
from fedtranscribe.wire import queries
from fedtranscribe.wire.message import (
    Message,
    array_of,
    form_of,
    get,
    get_name,
    get_names,
    told_terms,
)

_KEY_BYTES = 32
# What a term or array that is absent, of another type or size gives.
SENSELESS = (ConfigError, KeyError, TypeError, ValueError, OverflowError)

# ---------------------------------------------------------------- the server asks


def ask_key(holder: int, run: str, members: Members) -> Message:
    """Ask a holder for its key of a run."""
    terms = {
        "holder": holder,
        "run": run,
        "names": list(members.names),
        "dropouts": members.dropouts,
        "colluders": members.colluders,
    }
    return Message.of(terms)


def ask_open(envelope: queries.Envelope, adverts: Iterable[Advert]) -> Message:
    """A query, with the keys of the run."""
    content = queries.ask(envelope)
    packed = {advert.name: advert.key + advert.signature for advert in adverts}
    return with_bytes(content, "adverts", packed)


def ask_mask(holder: int, run: str, query_id: str, inbox: Mapping[str, bytes]) -> Message:
    """Pass a holder the shares that others sealed for it."""
    return with_bytes(_continue(holder, run, query_id), "sealed", inbox)


def ask_sign(holder: int, run: str, query_id: str, survivors: Sequence[str]) -> Message:
    """Tell a holder whose vectors make the sum."""
    content = _continue(holder, run, query_id)
    content.terms["survivors"] = list(survivors)
    return content


def ask_reveal(holder: int, run: str, query_id: str, signatures: Mapping[str, bytes]) -> Message:
    """Pass a holder the survivors' signatures."""
    return with_bytes(_continue(holder, run, query_id), "signatures", signatures)


# ---------------------------------------------------------------- a holder


def adverts_of(content: Message) -> list[Advert]:
    """The keys of a run that came with a query; raises what `SENSELESS` names."""
    return [advert_from(name, told) for name, told in bytes_of(content, "adverts").items()]


def tell_advert(advert: Advert) -> Message:
    """A holder's key on its way out."""
    return Message.of({"name": advert.name}, {"advert": array(advert.key + advert.signature)})


def tell_sealed(query_id: str, head: tuple[int, str], sent: Mapping[str, bytes]) -> Message:
    """Sealed shares by receiver, on their way out."""
    sequence, digest = head
    terms = {"query-id": query_id, "head-sequence": sequence, "head-hash": digest}
    return with_bytes(Message.of(terms), "sealed", sent)


def tell_bytes(query_id: str, said: Mapping[str, bytes]) -> Message:
    """A masked vector, a signature or shares on their way out."""
    return Message.of({"query-id": query_id}, {name: array(value) for name, value in said.items()})


# ---------------------------------------------------------------- the server reads


def read_advert(content: Message) -> Advert:
    """A holder's key; what it is worth, the other holders decide.

    Raises:
        Refusal: what the holder said instead.
        ProtocolError: it makes no sense.
    """
    terms = told_terms(content)
    try:
        return advert_from(get_name(terms, "name"), array_of(content, "advert", "u").tobytes())
    except SENSELESS:
        raise ProtocolError("A holder's key makes no sense.") from None


def read_sealed(content: Message, query_id: str) -> tuple[dict[str, bytes], tuple[int, str]]:
    """Sealed shares by receiver, and the head of the holder's ledger; raises as `read_advert`."""
    terms = told_terms(content)
    try:
        _expect_query(terms["query-id"], query_id)
        head = get(terms, "head-sequence", int), get(terms, "head-hash", str)
        return bytes_of(content, "sealed"), head
    except SENSELESS:
        raise ProtocolError(f"The shares for {query_id} make no sense.") from None


def read_bytes(content: Message, query_id: str, name: str) -> bytes:
    """The masked vector, signature or shares of a reply; raises as `read_advert`."""
    terms = told_terms(content)
    try:
        _expect_query(terms["query-id"], query_id)
        return array_of(content, name, "u").tobytes()
    except SENSELESS:
        raise ProtocolError(f"The {name} for {query_id} makes no sense.") from None


# ---------------------------------------------------------------- small parts


def _continue(holder: int, run: str, query_id: str) -> Message:
    return Message.of({"holder": holder, "run": run, "query-id": query_id})


def _expect_query(told: object, query_id: str) -> None:
    if told != query_id:
        raise ValueError("a reply to another query")


def advert_from(name: str, told: bytes) -> Advert:
    """The inverse of key and signature, one after the other."""
    return Advert(name, told[:_KEY_BYTES], told[_KEY_BYTES:])


def array(value: bytes) -> np.ndarray:
    """Bytes as an array."""
    return np.frombuffer(value, dtype=np.uint8)


def with_bytes(content: Message, what: str, values: Mapping[str, bytes]) -> Message:
    """Add bytes by name to a message: one array of all, and one of their lengths."""
    names = sorted(values)
    content.terms[what] = names
    lengths = np.array([len(values[name]) for name in names], dtype=np.uint32)
    arrays = {what: array(b"".join(values[name] for name in names)), f"{what}-lengths": lengths}
    return content.and_arrays(arrays)


def bytes_of(content: Message, what: str) -> dict[str, bytes]:
    """The inverse of `with_bytes`.

    Raises:
        ConfigError, KeyError, TypeError, ValueError: it makes no sense.
    """
    names = get_names(content.terms, what)
    form = form_of(content, f"{what}-lengths")
    # As long as the names are, before a number is made of each.
    if form is None or form.shape != (len(names),) or len(set(names)) != len(names):
        raise ValueError(f"{what} do not fit their names")
    lengths = array_of(content, f"{what}-lengths", "u").tolist()
    whole = array_of(content, what, "u").tobytes()
    if sum(lengths) != len(whole):
        raise ValueError(f"{what} do not fit their lengths")
    ends = np.cumsum([0, *lengths]).tolist()
    return {
        name: whole[start:end] for name, start, end in zip(names, ends[:-1], ends[1:], strict=True)
    }
