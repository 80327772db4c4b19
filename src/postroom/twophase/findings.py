"""Findings: what recovery sees of transactions in doubt, and what became of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from postroom.rules.twophase_ids import deadline_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from postroom.rules.twophase_plan import Decision
    from postroom.rules.twophase_settling import Settling
    from postroom.store.twophase.log import LogRow


class Listing(NamedTuple):
    """What the participants say is in doubt, and what the log says, read after that."""

    branches: Mapping[str, Sequence[str]]
    """Transaction → ids of its branches."""
    rows: Mapping[str, LogRow]
    now_ms: int
    unreachable: Mapping[str, str]
    """Participant → why it could not be asked."""
    after: str = ""
    """The log has more that is not settled, behind this transaction."""

    def is_over(self, tx: str) -> bool:
        """Whether a transaction is settled, or an operator had it forgotten, and nobody lists a branch of it."""
        row = self.rows.get(tx)
        return row is not None and row.settled_at is not None and not self.branches.get(tx)

    def age(self, tx: str) -> float:
        """Seconds since a transaction's deadline; below zero before it."""
        row = self.rows.get(tx)
        deadline_ms = (deadline_of(tx) or 0) if row is None else row.deadline_ms
        return (self.now_ms - deadline_ms) / 1000


@dataclass(frozen=True, slots=True)
class Settled:
    """What recovery did with one transaction."""

    id: str
    decision: Decision | None
    """None: it is not decided yet."""
    settling: Settling
    problem: str = ""
    """Why it could not be finished."""
    waits_for: tuple[str, ...] = ()
    """Participants that have not confirmed it."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """What one recovery did."""

    committed: tuple[str, ...] = ()
    rolled_back: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    """Those to try again later."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """Those that wait for an operator, and why."""
    unreachable: Mapping[str, str] = field(default_factory=dict)
    """Participants that could not be asked, and why."""
