"""A run attacked, and its books checked: lower bounds that must not exceed its sound ε.

bounds       counts of guesses -> intervals, and a lower bound on ε
findings     what an attack or a check says; contradictions are errors
claims       the ε that a run states, from its events
game         a distinguishing game on a mechanism
run_game     the same on the mechanism of a run
sums_game    the same on its sums over records; what their noise costs, worked out again
membership   were these records used? by loss, references, synthetic images
canaries     records planted by coins, and guesses at the coins
inversion    images that a student is surest of, against real records
checks       events, ledger, teachers
risk         ε in words
audit        one finished run -> all of it, and what of it may be published
"""

from fedtranscribe.config.evaluation import AuditSettings, CanaryKind
from fedtranscribe.evaluation.audit.audit import Audit, audit
from fedtranscribe.evaluation.audit.canaries import Canaries, plant, save_planted
from fedtranscribe.evaluation.audit.findings import Check, Claim, Finding, expect_sound
from fedtranscribe.evaluation.audit.game import play

__all__ = [
    "Audit",
    "AuditSettings",
    "Canaries",
    "CanaryKind",
    "Check",
    "Claim",
    "Finding",
    "audit",
    "expect_sound",
    "plant",
    "play",
    "save_planted",
]
