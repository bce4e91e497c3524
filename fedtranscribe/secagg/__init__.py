"""Secure aggregation: a server learns the sum of the holders' integer vectors, and no vector.

Primitives come from `cryptography`. Nothing here knows Flower, teachers or noise.
"""

from fedtranscribe.secagg.graph import Graph
from fedtranscribe.secagg.keys import Advert, Cohort, KeyBook, Members, RunKey
from fedtranscribe.secagg.protocol import Holder
from fedtranscribe.secagg.rounds import Round, Task
from fedtranscribe.secagg.server import Server

__all__ = [
    "Advert",
    "Cohort",
    "Graph",
    "Holder",
    "KeyBook",
    "Members",
    "Round",
    "RunKey",
    "Server",
    "Task",
]
