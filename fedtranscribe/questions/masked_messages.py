"""The messages of a masked sum.

    message type          terms                                     arrays
    query.secagg_key      run, names, dropouts, colluders           –
    (reply)               name, drawn                               advert
    query.secagg_open     those of query.answer                     those of query.answer, adverts
    (reply)               query-id, head…                           sealed
    query.secagg_mask     run, query-id                             sealed
    (reply)               query-id                                  masked, tags
    query.secagg_sign     run, query-id, survivors                  tags
    (reply)               query-id                                  signature
    query.secagg_reveal   run, query-id                             signatures
    (reply)               query-id                                  shares

Plural arrays hold bytes by holder: one array with all of them, one with their lengths, and the
names among the terms. A holder is sent, and sends, what concerns its neighbours in the graph of
masks. Every message also has `protocol` and `holder`.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from fedtranscribe.errors import ConfigError, ProtocolError
from fedtranscribe.noise.mask_keys import Advert, Members
from fedtranscribe.questions import query_messages as queries
from fedtranscribe.questions.messages import (
    Message,
    array_of,
    form_of,
    get,
    get_name,
    get_names,
    reply_terms,
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
    """A query, with the keys of a holder's neighbours and its own."""
    content = queries.ask(envelope)
    packed = {advert.name: advert.key + advert.signature for advert in adverts}
    return with_bytes(content, "adverts", packed)


def ask_mask(holder: int, run: str, query_id: str, inbox: Mapping[str, bytes]) -> Message:
    """Pass a holder the shares that others sealed for it."""
    return with_bytes(_continue(holder, run, query_id), "sealed", inbox)


def ask_sign(
    holder: int, run: str, query_id: str, survivors: Sequence[str], tags: Mapping[str, bytes]
) -> Message:
    """Tell a holder whose vectors make the sum, and pass it the tags that were made for it."""
    content = _continue(holder, run, query_id)
    content.terms["survivors"] = list(survivors)
    return with_bytes(content, "tags", tags)


def ask_reveal(holder: int, run: str, query_id: str, signatures: Mapping[str, bytes]) -> Message:
    """Pass a holder the signatures of its circle."""
    return with_bytes(_continue(holder, run, query_id), "signatures", signatures)


# ---------------------------------------------------------------- a holder


def adverts_of(content: Message) -> list[Advert]:
    """The keys of a run that came with a query; raises what `SENSELESS` names."""
    return [advert_from(name, advert) for name, advert in bytes_of(content, "adverts").items()]


def tell_advert(advert: Advert, drawn: Sequence[str]) -> Message:
    """A holder's key on its way out, and whom it drew."""
    terms = {"name": advert.name, "drawn": list(drawn)}
    return Message.of(terms, {"advert": array(advert.key + advert.signature)})


def tell_sealed(query_id: str, head: tuple[int, str], sent: Mapping[str, bytes]) -> Message:
    """Sealed shares by receiver, on their way out."""
    sequence, digest = head
    terms = {"query-id": query_id, "head-sequence": sequence, "head-hash": digest}
    return with_bytes(Message.of(terms), "sealed", sent)


def tell_masked(query_id: str, vector: bytes, tags: Mapping[str, bytes]) -> Message:
    """A masked vector on its way out, and tags by neighbour."""
    content = Message.of({"query-id": query_id}, {"masked": array(vector)})
    return with_bytes(content, "tags", tags)


def tell_signature(query_id: str, signature: bytes) -> Message:
    """A signature under the survivors on its way out."""
    return Message.of({"query-id": query_id}, {"signature": array(signature)})


def tell_shares(query_id: str, shares: Mapping[str, bytes]) -> Message:
    """Opened shares by owner on their way out."""
    return with_bytes(Message.of({"query-id": query_id}), "shares", shares)


# ---------------------------------------------------------------- the server reads


def read_advert(content: Message) -> tuple[Advert, list[str]]:
    """A holder's key, and whom it drew; what both are worth, the other holders decide.

    Raises:
        Refusal: what the holder said instead.
        ProtocolError: it makes no sense.
    """
    terms = reply_terms(content)
    try:
        advert = advert_from(get_name(terms, "name"), array_of(content, "advert", "u").tobytes())
        return advert, get_names(terms, "drawn")
    except SENSELESS:
        raise ProtocolError("A holder's key makes no sense.") from None


def read_sealed(content: Message, query_id: str) -> tuple[dict[str, bytes], tuple[int, str]]:
    """Sealed shares by receiver, and the head of the holder's ledger; raises as `read_advert`."""
    terms = reply_terms(content)
    try:
        _expect_query(terms["query-id"], query_id)
        head = get(terms, "head-sequence", int), get(terms, "head-hash", str)
        return bytes_of(content, "sealed"), head
    except SENSELESS:
        raise ProtocolError(f"The sealed shares for {query_id} make no sense.") from None


def read_masked(content: Message, query_id: str) -> tuple[bytes, dict[str, bytes]]:
    """A masked vector, and tags by neighbour; raises as `read_advert`."""
    terms = reply_terms(content)
    try:
        _expect_query(terms["query-id"], query_id)
        return array_of(content, "masked", "u").tobytes(), bytes_of(content, "tags")
    except SENSELESS:
        raise ProtocolError(f"The masked vector for {query_id} makes no sense.") from None


def read_signature(content: Message, query_id: str) -> bytes:
    """A signature under the survivors; raises as `read_advert`."""
    terms = reply_terms(content)
    try:
        _expect_query(terms["query-id"], query_id)
        return array_of(content, "signature", "u").tobytes()
    except SENSELESS:
        raise ProtocolError(f"The signature for {query_id} makes no sense.") from None


def read_shares(content: Message, query_id: str) -> dict[str, bytes]:
    """Opened shares by owner; raises as `read_advert`."""
    terms = reply_terms(content)
    try:
        _expect_query(terms["query-id"], query_id)
        return bytes_of(content, "shares")
    except SENSELESS:
        raise ProtocolError(f"The shares for {query_id} make no sense.") from None


# ---------------------------------------------------------------- small parts


def _continue(holder: int, run: str, query_id: str) -> Message:
    return Message.of({"holder": holder, "run": run, "query-id": query_id})


def _expect_query(answered: object, query_id: str) -> None:
    if answered != query_id:
        raise ValueError("a reply to another query")


def advert_from(name: str, content: bytes) -> Advert:
    """The inverse of key and signature, one after the other."""
    return Advert(name, content[:_KEY_BYTES], content[_KEY_BYTES:])


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
