"""Queries, answers and refusals as Flower records: typed, versioned, packed.

A row costs about a quarter of what float32 images, logits and answers would: images travel as
bytes, index sets only where they are not simply all classes, logits and noisy answers as float16,
labels as one byte. Whatever is packed was rounded before, so that nothing changes on the way.

    message type         terms                                   arrays
    query.capabilities   protocol, holder                        –
    query.answer         protocol, holder, run, query-id, kind,  images, [index-sets],
                         k, mode, strength, holders              [student-logits]
    (reply)              protocol, query-id, form, head…         values
    (refusal)            protocol, refusal                       –
"""

from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from flwr.app import ConfigRecord, RecordDict
from torch import Tensor

from fedtranscribe.errors import ConfigError, ProtocolError
from fedtranscribe.exchange import Answer, AnswerKind, NoisePlan, QueryBatch, RawAnswer
from fedtranscribe.federation.node import Capabilities
from fedtranscribe.federation.records import ARRAYS, TERMS, VERSION, record
from fedtranscribe.federation.refusals import Refusal, RefusalCode
from fedtranscribe.privacy.calibrate import NoiseMode

_PRIVATE, _RAW, _LABEL = "private", "raw", "label"
_MOST_CLASSES = 65_535


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
    }
    arrays = {"images": query.images.numpy()}
    if not torch.equal(query.index_sets, _all_classes(query.rows, query.k)):
        arrays["index-sets"] = query.index_sets.numpy().astype(np.uint16)
    if query.student_logits is not None:
        arrays["student-logits"] = query.student_logits.numpy().astype(np.float16)
    return record(terms, arrays)


def holder_number(content: RecordDict) -> int:
    """Which of the node's holders a message is for.

    Raises:
        Refusal: PROTOCOL, MALFORMED.
    """
    return _get(_terms(content), "holder", int)


def read_query(content: RecordDict) -> Envelope:
    """A query as it arrived at the holder.

    Raises:
        Refusal: PROTOCOL, MALFORMED.
    """
    terms = _terms(content)
    try:
        arrays = _arrays(content, "uf")
        images = torch.from_numpy(arrays["images"])
        k = _get(terms, "k", int)
        if not 1 <= k <= _MOST_CLASSES:
            raise ConfigError(f"Expected k={k} between 1 and {_MOST_CLASSES}.")
        sets, logits = arrays.get("index-sets"), arrays.get("student-logits")
        query = QueryBatch(
            id=_get(terms, "query-id", str),
            kind=AnswerKind(_get(terms, "kind", str)),
            images=images,
            index_sets=_all_classes(len(images), k)
            if sets is None
            else torch.from_numpy(sets.astype(np.int64)),
            student_logits=None if logits is None else torch.from_numpy(logits.astype(np.float32)),
        )
        if query.k != k:
            raise ConfigError(f"Expected index sets of k={k} classes, got {query.k}.")
        plan = NoisePlan(
            NoiseMode(_get(terms, "mode", str)),
            _get(terms, "strength", float),
            _get(terms, "holders", int),
        )
        return Envelope(query, plan, _get(terms, "run", str), _get(terms, "holder", int))
    except (ConfigError, KeyError, TypeError, ValueError, OverflowError, RuntimeError):
        raise Refusal(RefusalCode.MALFORMED) from None


def tell_capabilities(capabilities: Capabilities) -> RecordDict:
    """A holder's self-description on its way out."""
    facts = asdict(capabilities)
    facts["kinds"] = [kind.value for kind in capabilities.kinds]
    facts["noise"] = capabilities.noise.value
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
    terms = _reply_terms(content)
    try:
        kinds = _get(terms, "kinds", list)
        return Capabilities(
            name=_get(terms, "name", str),
            classes=_get(terms, "classes", int),
            channels=_get(terms, "channels", int),
            size=_get(terms, "size", int),
            shards=_get(terms, "shards", int),
            positional_ids=_get(terms, "positional-ids", bool),
            kinds=tuple(AnswerKind(kind) for kind in kinds),
            noise=NoiseMode(_get(terms, "noise", str)),
            rows_per_message=_get(terms, "rows-per-message", int),
            rows_per_run=_get(terms, "rows-per-run", int),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"A holder's capabilities make no sense ({error}).") from None


def read_answer(content: RecordDict, query: QueryBatch) -> Answer | RawAnswer:
    """An answer as it arrived at the server.

    Raises:
        Refusal: what the holder said instead.
        ProtocolError: it does not answer this query, or holds something that no answer can.
    """
    terms = _reply_terms(content)
    try:
        form, query_id = _get(terms, "form", str), _get(terms, "query-id", str)
        if form not in ((_LABEL,) if query.kind is AnswerKind.LABEL else (_PRIVATE, _RAW)):
            raise ValueError(f"{form[:20]!r} is no form of a {query.kind} answer")
        head = _get(terms, "head-sequence", int), _get(terms, "head-hash", str)
        values = torch.from_numpy(_arrays(content, "uf")["values"].astype(np.float32))
        if form == _LABEL:
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
    return (RawAnswer if form == _RAW else Answer)(query_id, values, head)


# ---------------------------------------------------------------- small parts

T = TypeVar("T")


def _terms(content: RecordDict) -> ConfigRecord:
    terms = content.config_records.get(TERMS)
    if terms is None or terms.get("protocol") != VERSION:
        raise Refusal(RefusalCode.PROTOCOL)
    return terms


def _reply_terms(content: RecordDict) -> ConfigRecord:
    terms = content.config_records.get(TERMS)
    if terms is None or terms.get("protocol") != VERSION:
        raise ProtocolError(
            f"Expected a reply of protocol {VERSION}, got "
            f"{None if terms is None else terms.get('protocol')}; run one version of fedtranscribe."
        )
    code = terms.get("refusal")
    if code is not None:
        known = code in list(RefusalCode)
        raise Refusal(RefusalCode(code) if known else RefusalCode.INTERNAL)
    return terms


def _arrays(content: RecordDict, kinds: str) -> dict[str, np.ndarray]:
    """Arrays of these dtype kinds, as copies: what comes off the wire is read-only memory.

    Raises:
        ValueError: whatever is wrong with them; numpy's reader raises many kinds.
    """
    arrays = {}
    for name, array in content.array_records[ARRAYS].items():
        try:
            value = array.numpy().copy()
        except Exception as error:
            raise ValueError(f"{name!r} is no array ({type(error).__name__})") from None
        if value.dtype.kind not in kinds:
            raise ValueError(f"{name!r} holds {value.dtype}")
        arrays[name] = value
    return arrays


def _get(terms: ConfigRecord, name: str, kind: type[T]) -> T:
    value = terms[name]
    # A bool is an int to Python, but not to us.
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{name} is not {kind.__name__}")
    return value


def _all_classes(rows: int, classes: int) -> Tensor:
    return torch.arange(classes).repeat(rows, 1)


def _narrow(values: np.ndarray) -> np.ndarray:
    """float16 where nothing is lost by it."""
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    return half if np.array_equal(half.astype(np.float32), values) else values
