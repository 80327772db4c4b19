"""Two-phase commit: work on several databases that commits everywhere or nowhere."""

from postroom.errors import TransactionAborted, TransactionInDoubt, TwoPhaseUnavailable
from postroom.twophase.transaction import Transaction
from postroom.twophase.two_phase_commit import TwoPhaseCommit

__all__ = [
    "Transaction",
    "TransactionAborted",
    "TransactionInDoubt",
    "TwoPhaseCommit",
    "TwoPhaseUnavailable",
]
