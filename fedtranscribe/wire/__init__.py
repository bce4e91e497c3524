"""Messages between server and holders: terms and arrays, whatever carries them.

message.py    what every message is; headers are looked at before arrays are made
queries.py    queries and answers; masked.py and trainings.py: what else is asked
frames.py     a message as bytes

Nothing here imports Flower: `fedtranscribe.flower` carries messages as its records.
"""

from fedtranscribe.wire.message import (
    ANSWER,
    CAPABILITIES,
    MASKED,
    MESSAGES,
    MODEL,
    SECAGG_KEY,
    SECAGG_MASK,
    SECAGG_OPEN,
    SECAGG_REVEAL,
    SECAGG_SIGN,
    TRAIN,
    TRAINING,
    VERSION,
    Message,
    array_of,
    asked_terms,
    echo_holder,
    echoed_holder,
    form_of,
    get,
    get_name,
    get_names,
    refuse,
    told_terms,
)

__all__ = [
    "ANSWER",
    "CAPABILITIES",
    "MASKED",
    "MESSAGES",
    "MODEL",
    "SECAGG_KEY",
    "SECAGG_MASK",
    "SECAGG_OPEN",
    "SECAGG_REVEAL",
    "SECAGG_SIGN",
    "TRAIN",
    "TRAINING",
    "VERSION",
    "Message",
    "array_of",
    "asked_terms",
    "echo_holder",
    "echoed_holder",
    "form_of",
    "get",
    "get_name",
    "get_names",
    "refuse",
    "told_terms",
]
