"""The messages of a masked sum as Flower records, and a holder's replies to them.

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
from flwr.app import RecordDict

from fedtranscribe.errors import ConfigError, ProtocolError
from fedtranscribe.federation import protocol, records
from fedtranscribe.federation.node import Node
from fedtranscribe.federation.records import (
    array_of,
    asked_terms,
    form_of,
    get,
    get_name,
    get_names,
    record,
    told_terms,
)
from fedtranscribe.federation.refusals import Refusal, RefusalCode
from fedtranscribe.secagg import Advert, Members

_KEY_BYTES = 32
# What a term or array that is absent, of another type or size gives.
_SENSELESS = (ConfigError, KeyError, TypeError, ValueError, OverflowError)

# ---------------------------------------------------------------- the server asks


def ask_key(holder: int, run: str, members: Members) -> RecordDict:
    """Ask a holder for its key of a run."""
    terms = {
        "holder": holder,
        "run": run,
        "names": list(members.names),
        "dropouts": members.dropouts,
        "colluders": members.colluders,
    }
    return record(terms)


def ask_open(envelope: protocol.Envelope, adverts: Iterable[Advert]) -> RecordDict:
    """A query, with the keys of the run."""
    content = protocol.ask(envelope)
    packed = {advert.name: advert.key + advert.signature for advert in adverts}
    return _with_bytes(content, "adverts", packed)


def ask_mask(holder: int, run: str, query_id: str, inbox: Mapping[str, bytes]) -> RecordDict:
    """Pass a holder the shares that others sealed for it."""
    return _with_bytes(_continue(holder, run, query_id), "sealed", inbox)


def ask_sign(holder: int, run: str, query_id: str, survivors: Sequence[str]) -> RecordDict:
    """Tell a holder whose vectors make the sum."""
    content = _continue(holder, run, query_id)
    content.config_records[records.TERMS]["survivors"] = list(survivors)
    return content


def ask_reveal(holder: int, run: str, query_id: str, signatures: Mapping[str, bytes]) -> RecordDict:
    """Pass a holder the survivors' signatures."""
    return _with_bytes(_continue(holder, run, query_id), "signatures", signatures)


# ---------------------------------------------------------------- a holder replies


def reply(content: RecordDict, message_type: str, node: Node, requester: str) -> RecordDict:
    """What a holder says to one of these messages.

    Raises:
        Refusal: PROTOCOL, MALFORMED, and whatever the node refuses with.
    """
    terms = asked_terms(content)
    if message_type == records.SECAGG_OPEN:
        return _reply_open(content, node, requester)
    try:
        run = get_name(terms, "run")
        if message_type == records.SECAGG_KEY:
            names, failures = get_names(terms, "names"), [get(terms, f, int) for f in _FAILURES]
            advert = node.advertise(run, names, *failures)
            return record({"name": advert.name}, {"advert": _array(advert.key + advert.signature)})
        query_id = get_name(terms, "query-id")
        if message_type == records.SECAGG_MASK:
            said = {"masked": node.mask(run, query_id, _bytes_of(content, "sealed"))}
        elif message_type == records.SECAGG_SIGN:
            survivors = get_names(terms, "survivors")
            said = {"signature": node.sign(run, query_id, survivors)}
        else:
            said = {"shares": node.reveal(run, query_id, _bytes_of(content, "signatures"))}
    except _SENSELESS:
        raise Refusal(RefusalCode.MALFORMED) from None
    return record({"query-id": query_id}, {name: _array(value) for name, value in said.items()})


def _reply_open(content: RecordDict, node: Node, requester: str) -> RecordDict:
    try:
        adverts = [_advert(name, told) for name, told in _bytes_of(content, "adverts").items()]
    except _SENSELESS:
        raise Refusal(RefusalCode.MALFORMED) from None
    asked = protocol.read_query(content, node.facts)
    sent, (sequence, digest) = node.open_round(
        asked.query, asked.plan, asked.run, requester, adverts
    )
    terms = {"query-id": asked.query.id, "head-sequence": sequence, "head-hash": digest}
    return _with_bytes(record(terms), "sealed", sent)


# ---------------------------------------------------------------- the server reads


def read_advert(content: RecordDict) -> Advert:
    """A holder's key; what it is worth, the other holders decide.

    Raises:
        Refusal: what the holder said instead.
        ProtocolError: it makes no sense.
    """
    terms = told_terms(content)
    try:
        return _advert(get_name(terms, "name"), array_of(content, "advert", "u").tobytes())
    except _SENSELESS:
        raise ProtocolError("A holder's key makes no sense.") from None


def read_sealed(content: RecordDict, query_id: str) -> tuple[dict[str, bytes], tuple[int, str]]:
    """Sealed shares by receiver, and the head of the holder's ledger; raises as `read_advert`."""
    terms = told_terms(content)
    try:
        _expect_query(terms["query-id"], query_id)
        head = get(terms, "head-sequence", int), get(terms, "head-hash", str)
        return _bytes_of(content, "sealed"), head
    except _SENSELESS:
        raise ProtocolError(f"The shares for {query_id} make no sense.") from None


def read_bytes(content: RecordDict, query_id: str, name: str) -> bytes:
    """The masked vector, signature or shares of a reply; raises as `read_advert`."""
    terms = told_terms(content)
    try:
        _expect_query(terms["query-id"], query_id)
        return array_of(content, name, "u").tobytes()
    except _SENSELESS:
        raise ProtocolError(f"The {name} for {query_id} makes no sense.") from None


# ---------------------------------------------------------------- small parts

_FAILURES = ("dropouts", "colluders")


def _continue(holder: int, run: str, query_id: str) -> RecordDict:
    return record({"holder": holder, "run": run, "query-id": query_id})


def _expect_query(told: object, query_id: str) -> None:
    if told != query_id:
        raise ValueError("a reply to another query")


def _advert(name: str, told: bytes) -> Advert:
    return Advert(name, told[:_KEY_BYTES], told[_KEY_BYTES:])


def _array(value: bytes) -> np.ndarray:
    return np.frombuffer(value, dtype=np.uint8)


def _with_bytes(content: RecordDict, what: str, values: Mapping[str, bytes]) -> RecordDict:
    """Add bytes by name to a message: one array of all, and one of their lengths."""
    names = sorted(values)
    content.config_records[records.TERMS][what] = names
    lengths = np.array([len(values[name]) for name in names], dtype=np.uint32)
    arrays = {what: _array(b"".join(values[name] for name in names)), f"{what}-lengths": lengths}
    return records.with_arrays(content, arrays)


def _bytes_of(content: RecordDict, what: str) -> dict[str, bytes]:
    """The inverse of `_with_bytes`.

    Raises:
        ConfigError, KeyError, TypeError, ValueError: it makes no sense.
    """
    names = get_names(content.config_records[records.TERMS], what)
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
