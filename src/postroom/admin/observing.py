"""`Observing`: the part of `Admin` that a dashboard reads again and again, at a bounded cost."""

from __future__ import annotations

from abc import abstractmethod
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from postroom.store.admin.dead_letter_groups import MOST
from postroom.store.admin.message_filter import ALL

if TYPE_CHECKING:
    from datetime import datetime

    from postroom.admin.flow import Flow
    from postroom.admin.observing_steps import ObservingSteps
    from postroom.store.admin.dead_letter_groups import DeadLetterGroups
    from postroom.store.admin.inbox_ledger_lookup import InboxMark, LedgerEntry
    from postroom.store.admin.message_filter import Filter
    from postroom.store.admin.overview import Overview
    from postroom.store.sql.steps import Steps

T = TypeVar("T")
LAST_HOUR = timedelta(hours=1)


class Observing:
    """Reads that cost the same however many messages there are."""

    def __init__(self, steps: ObservingSteps) -> None:
        self._observing = steps

    @abstractmethod
    def _run(self, steps: Steps[T]) -> T: ...

    def overview(self) -> Overview:
        """How much is unsent in each queue, who works on it, and what is held up. Counts stop at 10,000.

        It reads the beginning of indexes, so it suits a page that is loaded again and again.
        """
        return self._run(self._observing.overview())

    def flow(
        self,
        *,
        since: datetime | timedelta = LAST_HOUR,
        minutes: int | None = None,
        queue: str | None = None,
    ) -> Flow:
        """What went through since a moment, or in the last hour or other span: sent, retried, dead, handled and so on.

        In buckets of ``minutes``; without it, the width is chosen so that there are at most 120. Relays and consumers
        write their counters every 10 seconds, and `cleanup` keeps them for 14 days. Raises `InvalidSetting`.
        """
        return self._run(self._observing.flow(since, minutes, queue))

    def dead_letter_groups(self, which: Filter = ALL, *, most: int = MOST) -> DeadLetterGroups:
        """Dead letters by queue, topic and error, where errors that differ only in ids and numbers are one.

        The newest ``most`` of them are grouped; `more` says whether there are others. A group's `filter` selects it,
        for lists and acts. Each letter that is grouped is looked at, and its message: for 100,000, that takes seconds.
        """
        return self._run(self._observing.dead_letter_groups(which, most))

    def inbox_marks(self, message_id: str, *, consumer: str | None = None) -> tuple[InboxMark, ...]:
        """Which consumers have received a message, by the id under which their inboxes know it, and when."""
        return self._run(self._observing.inbox_marks(message_id, consumer))

    def ledger_entries(
        self,
        *,
        key: str | None = None,
        scope: str | None = None,
        body: bool = False,
        limit: int = 50,
        after: str | None = None,
    ) -> tuple[LedgerEntry, ...]:
        """Keyed requests: with a key, in one scope or in all; or those of a scope, by key, from behind ``after`` on.

        The response's headers and body only with ``body``. Raises `InvalidSetting` if neither key nor scope is given.
        """
        return self._run(self._observing.ledger_entries(key, scope, limit, after, body=body))

    def change_token(self) -> str:
        """A value that changes when what an operator sees may have changed, and every half minute, as ages do.

        It takes two short statements, so that a page can ask every second or two whether to load again.
        """
        return self._run(self._observing.change_token())
