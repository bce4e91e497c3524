"""Queries, answers and refusals as Flower records: typed, versioned, packed.

A row costs about a quarter of what float32 images, logits and answers would: images travel as
bytes, index sets only where they are not simply all classes, logits and noisy answers as float16,
labels as one byte. Whatever is packed was rounded before, so that nothing changes on the way.

    message type         terms                                   arrays
    query.capabilities   protocol, holder                        –
    query.answer         protocol, holder, run, query-id, kind,  images, [index-sets],
                         k, mode, strength, holders, dropouts,   [student-logits]
                         colluders
    (reply)              protocol, query-id, form, head…         values
    (refusal)            protocol, refusal                       –
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import RecordDict
from torch import Tensor

from fedtranscribe.errors import ConfigError, ProtocolError
from fedtranscribe.exchange import Answer, AnswerKind, NoisePlan, QueryBatch, RawAnswer
from fedtranscribe.federation.capabilities import Capabilities
from fedtranscribe.federation.records import (
    array_of,
    asked_terms,
    form_of,
    get,
    get_name,
    record,
    told_terms,
)
from fedtranscribe.federation.refusals import Refusal, RefusalCode
from fedtranscribe.privacy.calibrate import NoiseMode

_PRIVATE, _RAW, _LABEL = "private", "raw", "label"
_IMAGES, _SETS, _LOGITS = "images", "index-sets", "student-logits"


@dataclass(frozen=True)
class Envelope:
    """A query with everything that its holder binds it to.

    Attributes:
        query: what is asked.
        plan: under which noise.
        run: under which name to book.
        holder: which of a node's holders is meant; a deployed node has one, number 0.
    """

    query: QueryBatch
    plan: NoisePlan
    run: str
    holder: int = 0


def ask_capabilities(holder: int) -> RecordDict:
    """Ask a holder who it is."""
    return record({"holder": holder})


def ask(envelope: Envelope) -> RecordDict:
    """A query on its way out."""
    query, plan = envelope.query, envelope.plan
    terms: dict[str, Any] = {
        "holder": envelope.holder,
        "run": envelope.run,
        "query-id": query.id,
        "kind": query.kind.value,
        "k": query.k,
        "mode": plan.mode.value,
        "strength": plan.strength,
        "holders": plan.holders,
        "dropouts": plan.dropouts,
        "colluders": plan.colluders,
    }
    arrays = {_IMAGES: query.images.numpy()}
    if not torch.equal(query.index_sets, _all_classes(query.rows, query.k)):
        arrays[_SETS] = query.index_sets.numpy().astype(np.uint16)
    if query.student_logits is not None:
        arrays[_LOGITS] = query.student_logits.numpy().astype(np.float16)
    return record(terms, arrays)


def holder_number(content: RecordDict) -> int:
    """Which of the node's holders a message is for.

    Raises:
        Refusal: PROTOCOL, MALFORMED.
    """
    return get(asked_terms(content), "holder", int)


def read_query(content: RecordDict, holder: Capabilities) -> Envelope:
    """A query as it arrived at the holder.

    Its k and the headers of its arrays are held against what the holder can answer before anything
    is made of them: a few hundred bytes can claim gigabytes.

    Args:
        content: of the message.
        holder: what it tells about itself.

    Raises:
        Refusal: PROTOCOL, MALFORMED; POLICY for too many rows, and from who has no teachers.
    """
    terms = asked_terms(content)
    if holder.shards < 1:
        raise Refusal(RefusalCode.POLICY)
    try:
        query_id, run = get_name(terms, "query-id"), get_name(terms, "run")
        k = get(terms, "k", int)
        rows, given = _expect_fitting(content, k, holder)
        query = QueryBatch(
            id=query_id,
            kind=AnswerKind(get(terms, "kind", str)),
            images=torch.from_numpy(array_of(content, _IMAGES, "u")),
            index_sets=torch.from_numpy(array_of(content, _SETS, "u").astype(np.int64))
            if _SETS in given
            else _all_classes(rows, k),
            student_logits=torch.from_numpy(array_of(content, _LOGITS, "f").astype(np.float32))
            if _LOGITS in given
            else None,
        )
        plan = NoisePlan(
            NoiseMode(get(terms, "mode", str)),
            get(terms, "strength", float),
            get(terms, "holders", int),
            get(terms, "dropouts", int),
            get(terms, "colluders", int),
        )
        return Envelope(query, plan, run, get(terms, "holder", int))
    except (ConfigError, KeyError, TypeError, ValueError, OverflowError, RuntimeError):
        raise Refusal(RefusalCode.MALFORMED) from None


def _expect_fitting(content: RecordDict, k: int, holder: Capabilities) -> tuple[int, set[str]]:
    """Rows of a query, and which arrays it has, from their headers alone.

    Raises:
        ConfigError, KeyError, ValueError: a shape or type that the holder cannot answer.
        Refusal: POLICY for too many rows.
    """
    if not 1 <= k <= holder.classes:
        raise ConfigError(f"Expected k={k} between 1 and {holder.classes}.")
    found = {name: form_of(content, name) for name in (_IMAGES, _SETS, _LOGITS)}
    forms = {name: form for name, form in found.items() if form is not None}
    rows, *_ = forms[_IMAGES].shape or (0,)
    expected = {
        _IMAGES: (np.uint8, (rows, holder.channels, holder.size, holder.size)),
        _SETS: (np.uint16, (rows, k)),
        _LOGITS: (np.float16, (rows, holder.classes)),
    }
    for name, form in forms.items():
        if (form.dtype, form.shape) != expected[name] or rows < 1:
            raise ConfigError(
                f"Expected {name} as {expected[name]}, got {form.dtype} {form.shape}."
            )
    if rows > holder.rows_per_message:
        raise Refusal(RefusalCode.POLICY)
    return rows, set(forms)


def tell_capabilities(capabilities: Capabilities) -> RecordDict:
    """A holder's self-description on its way out."""
    facts = asdict(capabilities)
    facts["kinds"] = [kind.value for kind in capabilities.kinds]
    facts["noise"] = capabilities.noise.value
    facts["trainers"] = list(capabilities.trainers)
    return record({name.replace("_", "-"): value for name, value in facts.items()})


def tell(answer: Answer | RawAnswer, kind: AnswerKind) -> RecordDict:
    """An answer on its way out."""
    if isinstance(answer, RawAnswer):
        form, values = _RAW, answer.values.numpy()
    elif kind is AnswerKind.LABEL:
        form, values = _LABEL, answer.values.argmax(-1).numpy().astype(np.uint16)
    else:
        form, values = _PRIVATE, _narrow(answer.values.numpy())
    sequence, digest = answer.head
    terms = {
        "query-id": answer.query_id,
        "form": form,
        "head-sequence": sequence,
        "head-hash": digest,
    }
    return record(terms, {"values": values})


def read_capabilities(content: RecordDict) -> Capabilities:
    """A holder's self-description as it arrived at the server.

    Raises:
        Refusal: what the holder said instead.
        ProtocolError: it makes no sense.
    """
    terms = told_terms(content)
    try:
        kinds = get(terms, "kinds", list)
        return Capabilities(
            name=get(terms, "name", str),
            classes=get(terms, "classes", int),
            channels=get(terms, "channels", int),
            size=get(terms, "size", int),
            shards=get(terms, "shards", int),
            positional_ids=get(terms, "positional-ids", bool),
            kinds=tuple(AnswerKind(kind) for kind in kinds),
            noise=NoiseMode(get(terms, "noise", str)),
            rows_per_message=get(terms, "rows-per-message", int),
            rows_per_run=get(terms, "rows-per-run", int),
            dropouts=get(terms, "dropouts", int),
            colluders=get(terms, "colluders", int),
            masks=get(terms, "masks", bool),
            trainers=tuple(str(name) for name in get(terms, "trainers", list)),
        )
    except (ConfigError, KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"A holder's capabilities make no sense ({error}).") from None


def read_answer(content: RecordDict, query: QueryBatch) -> Answer | RawAnswer:
    """An answer as it arrived at the server.

    Raises:
        Refusal: what the holder said instead.
        ProtocolError: it does not answer this query, or holds something that no answer can.
    """
    terms = told_terms(content)
    try:
        told, query_id = get(terms, "form", str), get(terms, "query-id", str)
        if told not in ((_LABEL,) if query.kind is AnswerKind.LABEL else (_PRIVATE, _RAW)):
            raise ValueError(f"{told[:20]!r} is no form of a {query.kind} answer")
        head = get(terms, "head-sequence", int), get(terms, "head-hash", str)
        form = form_of(content, "values")
        shape = (query.rows,) if told == _LABEL else (query.rows, query.k)
        if form is not None and form.shape != shape:
            raise ValueError(f"values have shape {form.shape}, expected {shape}")
        values = torch.from_numpy(array_of(content, "values", "uf").astype(np.float32))
        if told == _LABEL:
            values = torch.nn.functional.one_hot(values.long(), query.k)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ProtocolError(f"The answer to {query.id} makes no sense ({error}).") from None
    values = values.float()
    if query_id != query.id or tuple(values.shape) != (query.rows, query.k):
        raise ProtocolError(
            f"Expected an answer to {query.id} of shape {(query.rows, query.k)}, "
            f"got one to {query_id[:80]!r} of shape {tuple(values.shape)}."
        )
    if not bool(torch.isfinite(values).all()):
        raise ProtocolError(f"The answer to {query.id} holds values that are not finite.")
    return (RawAnswer if told == _RAW else Answer)(query_id, values, head)


# ---------------------------------------------------------------- small parts


def _all_classes(rows: int, classes: int) -> Tensor:
    return torch.arange(classes).repeat(rows, 1)


def _narrow(values: np.ndarray) -> np.ndarray:
    """float16 where nothing is lost by it."""
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    return half if np.array_equal(half.astype(np.float32), values) else values
