"""How an instance is left by the worker that ran it: what remains to be done with its delivery."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Written:
    """Nothing remains to be done: it has ended, waits, is parked or stranded, and that is written."""


@dataclass(frozen=True, slots=True)
class LeaseGone:
    """Somebody else has it, or will: nothing more is written."""


@dataclass(frozen=True, slots=True)
class RetryLater:
    """An attempt failed: try again in so many seconds."""

    delay: float
    code: str
    text: str


@dataclass(frozen=True, slots=True)
class NotTried:
    """Nothing was tried that counts as an attempt. Without delay it is given back."""

    delay: float = 0.0
    code: str = ""
    text: str = ""


Left: TypeAlias = Written | LeaseGone | RetryLater | NotTried

WRITTEN = Written()
LEASE_GONE = LeaseGone()
GIVEN_BACK = NotTried()
