"""Answers: what a data holder gives back to a query.

An answer that is private by itself and one that is not yet have different types, so that no code
takes the one for the other by accident.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Said:
    """What every form of answer has.

    Attributes:
        query_id: the query's id.
        values: [rows, width], see the form.
        head: (sequence, hash) of the holder's ledger after charging, so that a rolled-back
            ledger is noticed.
    """

    query_id: str
    values: Tensor
    head: tuple[int, str]


class Answer(Said):
    """What a holder gives back: private by itself, so anyone may see and keep it.

    Labels are one-hot rows.
    """


class RawAnswer(Said):
    """A holder's bounded values WITHOUT noise, for a server that its own policy trusts.

    Not private: nothing may keep, log or learn from it before the server's noise is added.
    """


class Summand(Said):
    """A holder's values in integers with its own share of the noise, for a masked sum: int64.

    In units of the mechanism's grid. Not private alone: it leaves the holder under masks only, and
    enters one sum only, for ever.
    """
