"""Every mistake a user can make has a class here; the command line prints it as one line.

FedtranscribeError              exit code 1
 ├─ ConfigError                 2   a value that is out of range, or options that contradict
 ├─ DataError                   3
 │   ├─ DataNotFoundError           the set is not here; says how to get it
 │   └─ InvalidDataError            it is here, but it cannot be used (NaN, shapes, labels)
 ├─ ModelError                  4
 │   ├─ UnknownArchitectureError
 │   ├─ WeightsNotFoundError        missing weights and no network to fetch them
 │   ├─ CorruptWeightsError         truncated or foreign file, NaN weights
 │   └─ ModelMismatchError          teacher and data disagree on classes or shape
 ├─ PrivacyError                5
 │   ├─ BudgetExhaustedError        the holder's total would be exceeded
 │   ├─ HopelessPlanError           nothing could be learned at this ε; `--force` to go on
 │   ├─ AuditError                  an attack or a check found more than ε allows
 │   └─ UnsupportedAdjacencyError   the guarantee asked for does not follow from what is released
 ├─ LedgerError                 6
 │   ├─ CorruptLedgerError          the hash chain, the head or the file is broken
 │   ├─ ForeignLedgerError          the ledger belongs to other data
 │   ├─ SecondLedgerError           the data have a ledger in another place
 │   └─ QueryConflictError          a query id came back with another content
 ├─ FederationError             8
 │   ├─ ProtocolError               a message that cannot be read, or is of another version
 │   ├─ QuorumError                 too few holders answered
 │   └─ SimulationError             Flower or Ray did not carry a run to its end; names the log
 ├─ StorageError                7   a full disk, a read-only folder, a folder with another run
 └─ HubError                    9   a model hub refuses, or cannot be reached

Messages name the value and the fix, and never hold anything derived from private records.
"""


class FedtranscribeError(Exception):
    """Root of the tree; `exit_code` is what the command line exits with."""

    exit_code = 1


class ConfigError(FedtranscribeError):
    """A setting is out of range, or settings contradict each other."""

    exit_code = 2


class DataError(FedtranscribeError):
    """Something about a data set."""

    exit_code = 3


class DataNotFoundError(DataError):
    """The data set is absent; the message says how to get it."""


class InvalidDataError(DataError):
    """The data set is present but unusable (NaN pixels, shapes, labels)."""


class ModelError(FedtranscribeError):
    """Something about a network or its weights."""

    exit_code = 4


class UnknownArchitectureError(ModelError):
    """No architecture of that name."""


class WeightsNotFoundError(ModelError):
    """Weights are missing and cannot be fetched."""


class CorruptWeightsError(ModelError):
    """A weights file is truncated, foreign, or holds NaN."""


class ModelMismatchError(ModelError):
    """Teacher and data disagree on class count or image shape."""


class PrivacyError(FedtranscribeError):
    """Something about budgets and guarantees."""

    exit_code = 5


class BudgetExhaustedError(PrivacyError):
    """Answering would exceed the total that the holder allows."""


class HopelessPlanError(PrivacyError):
    """The plan cannot carry enough signal to learn anything."""


class AuditError(PrivacyError):
    """An attack or a check contradicts what a run says about its privacy."""


class UnsupportedAdjacencyError(PrivacyError):
    """The released values give no guarantee for that unit and adjacency."""


class LedgerError(FedtranscribeError):
    """Something about the holder's budget book."""

    exit_code = 6


class CorruptLedgerError(LedgerError):
    """The chain, its head or the database file is broken."""


class ForeignLedgerError(LedgerError):
    """The ledger belongs to other data."""


class SecondLedgerError(LedgerError):
    """The data have a ledger in another place; two would count apart."""


class QueryConflictError(LedgerError):
    """A known query id came back with another content."""


class StorageError(FedtranscribeError):
    """A file or folder cannot be read or written as asked."""

    exit_code = 7


class FederationError(FedtranscribeError):
    """Something between a server and its data holders."""

    exit_code = 8


class ProtocolError(FederationError):
    """A message cannot be read, or is of another protocol version."""


class QuorumError(FederationError):
    """Too few holders answered."""


class SimulationError(FederationError):
    """Flower or Ray did not carry a run to its end."""


class HubError(FedtranscribeError):
    """A model hub refuses what is sent, or cannot be reached."""

    exit_code = 9
