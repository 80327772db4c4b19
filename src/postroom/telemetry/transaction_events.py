"""Events of two-phase commits: what recovery reports to the hook."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from postroom.telemetry.event_values import EventValue

if TYPE_CHECKING:
    from collections.abc import Mapping


class TransactionEnd(StrEnum):
    """What recovery did with a transaction."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    WAITING = "waiting"
    """It could not be finished yet, and is tried again."""
    QUARANTINED = "quarantined"
    """It cannot be finished without an operator; the log says why."""


class TransactionRecovered(EventValue, frozen=True):
    """Recovery took on a transaction that its coordinator had left behind."""

    id: str
    end: TransactionEnd
    code: str = ""
    """Why it could not be finished: one word."""


class TransactionsInDoubt(EventValue, frozen=True):
    """Recovery has looked around: so many transactions are past their deadline and not settled. For alerts."""

    count: int
    oldest: float
    """Seconds since the deadline of the oldest; 0 if there is none."""
    unreachable: Mapping[str, str]
    """Participants that could not be asked, and why."""


TransactionEvent = TransactionRecovered | TransactionsInDoubt
