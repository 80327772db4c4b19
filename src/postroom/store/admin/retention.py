"""Retention: remove what is old and done, in small batches. What is not sent, or dead, stays however old it is.

A saga counts from its end, and is removed whole: its message, its record and its events. A two-phase commit counts
from when it was settled, and stays until its deadline has passed as long: then no coordinator can decide it again.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

from postroom.rules.pacing import FIRST_ROWS, after_batch
from postroom.rules.twophase_ids import transaction_id
from postroom.store.admin.partitions import OldPartitions
from postroom.store.admin.settled_messages import SettledMessages
from postroom.store.admin.sweeps import Old, Sweep
from postroom.store.outbox.flow import MINUTE_MS
from postroom.store.sql.dialect import DIALECTS
from postroom.store.sql.steps import Query, Steps
from postroom.store.stream.debezium import SentByDebezium
from postroom.store.twophase.branches import WITNESS, WITNESS_KEPT
from postroom.telemetry.events import Cleaned

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.store.admin.selection import Progress
    from postroom.store.sql.names import Names

BATCH = FIRST_ROWS
DAY = 86_400.0
FLOW_KEPT_MINUTES = 14 * 1440
"""For how long the counters of what went through are kept."""


class Pages(Protocol):
    """Something to clean up, a page at a time."""

    done: bool

    def page(self, rows: int) -> Steps[int]:
        """Go through about so many rows; returns how many were removed."""


class Kept(NamedTuple):
    """For how many days things are kept."""

    messages: float = 7
    """What is settled: messages, sagas, two-phase commits."""
    marks: float = 7
    audit: float = 365


def sweeps(names: Names, kept: Kept) -> list[tuple[str, Pages]]:
    """Everything that a cleanup goes through, by the field of `Cleaned` that counts it."""
    return [
        ("messages", SentByDebezium(names)),
        ("messages", OldPartitions(names, kept.messages * DAY)),
        ("messages", SettledMessages(names, kept.messages * DAY)),
        ("marks", marks(names, kept.marks * DAY)),
        ("entries", expired_entries(names)),
        ("transactions", SettledTransactions(names, kept.messages * DAY)),
        ("audit", audit_entries(names, kept.audit * DAY)),
        ("counters", counters(names)),
    ]


def marks(names: Names, seconds: float) -> Sweep:
    """Inbox marks. Those that branches of two-phase commits left stay for 7 days at least: recovery looks for them."""
    later = DIALECTS[names.dialect]().later
    old = f"received_at <= {later(':ago')} AND (consumer <> '{WITNESS}' OR received_at <= {later(':witness')})"
    return Sweep(
        names,
        Old("inbox", ("consumer", "message_id"), "", old, {"ago": -float(seconds), "witness": -WITNESS_KEPT}),
    )


def expired_entries(names: Names) -> Sweep:
    """Ledger entries that have expired, unless a run holds them. When one expires was decided when it was written."""
    now = DIALECTS[names.dialect].now
    return Sweep(
        names, Old("idempotency", ("scope", "idempotency_key"), "", f"expires_at <= {now} AND leased_until <= {now}")
    )


def audit_entries(names: Names, seconds: float) -> Sweep:
    """What operators did. None is locked, since none ever changes: who removes them need not be able to edit them."""
    later = DIALECTS[names.dialect]().later(":ago")
    return Sweep(
        names, Old("audit", ("id",), 0, f"at <= {later}", {"ago": -float(seconds)}, oldest_first=True, locks=False)
    )


def counters(names: Names, minutes: int = FLOW_KEPT_MINUTES) -> Sweep:
    """Counters of what went through, by the minute. Each is written for a minute or two, so none is locked."""
    old = f"minute < ({DIALECTS[names.dialect].now_ms}) / {MINUTE_MS} - {int(minutes)}"
    return Sweep(names, Old("flow", ("minute",), 0, old, oldest_first=True, locks=False))


class SettledTransactions(Sweep):
    """Two-phase commits that are settled.

    What was aborted goes only as long after its deadline: before that, its coordinator could still decide to commit, if
    nothing in the log told it otherwise.
    """

    def __init__(self, names: Names, seconds: float) -> None:
        old = f"deadline_ms <= :ended AND settled_at <= {DIALECTS[names.dialect]().later(':ago')}"
        # Ids begin with the deadline: newer ones need not be read.
        super().__init__(names, Old("twophase", ("id",), "", old, {"ago": -float(seconds)}, within="id < :until"))
        self._seconds = seconds

    def page(self, rows: int) -> Steps[int]:
        if "ended" not in self.old.params:
            found = yield Query(f"SELECT {self.dialect.now_ms}")
            ended = int(found.rows[0][0]) - int(self._seconds * 1000)
            until = transaction_id(max(0, ended) + 1, "0" * 12)
            self.old = self.old._replace(params={**self.old.params, "ended": ended, "until": until})
        return (yield from super().page(rows))


class Cleanup:
    """One cleanup, to be run batch by batch, each a transaction of its own, with the pauses that each asks for.

    `load` is the share of the time that it may be at work. Several may clean at once.
    """

    def __init__(
        self,
        names: Names,
        kept: Kept,
        *,
        load: float = 1,
        progress: Progress | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sweeps = sweeps(names, kept)
        self._load = load
        self._progress = progress
        self._clock = clock
        self._rows = FIRST_ROWS
        self.cleaned = Cleaned(0, 0, 0)
        """What was removed so far."""

    @property
    def done(self) -> bool:
        """Whether nothing is left to go through."""
        return not self._sweeps

    def batch(self) -> Steps[float]:
        """Remove the next batch; returns how many seconds to wait afterwards. One that failed can be run again."""
        field, sweep = self._sweeps[0]
        begun = self._clock()
        removed = yield from sweep.page(self._rows)
        pace = after_batch(self._rows, self._clock() - begun, self._load)
        self.cleaned = replace(self.cleaned, **{field: getattr(self.cleaned, field) + removed})
        if self._progress and removed:
            self._progress(removed)
        self._rows = pace.rows
        if sweep.done:
            self.skip()
        return pace.pause

    def skip(self) -> None:
        """Leave the rest of what it is going through, such as a table that it may not touch, and go on to the next."""
        del self._sweeps[0]
        self._rows = FIRST_ROWS


def swept(sweep: Pages, batch: int = BATCH, progress: Progress | None = None) -> Steps[int]:
    """Go through all pages of a sweep without a pause; returns how many rows were removed."""
    removed = 0
    while not sweep.done:
        count = yield from sweep.page(batch)
        removed += count
        if progress and count:
            progress(count)
    return removed


def clean(
    names: Names, kept: Kept | None = None, *, batch: int = BATCH, progress: Progress | None = None
) -> Steps[Cleaned]:
    """A whole cleanup without a pause."""
    cleaned = Cleaned(0, 0, 0)
    for field, sweep in sweeps(names, kept or Kept()):
        removed = yield from swept(sweep, batch, progress)
        cleaned = replace(cleaned, **{field: getattr(cleaned, field) + removed})
    return cleaned
