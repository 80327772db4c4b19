"""`AsyncObserving`: `Observing` for async code."""

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


class AsyncObserving:
    """Reads that cost the same however many messages there are."""

    def __init__(self, steps: ObservingSteps) -> None:
        self._observing = steps

    @abstractmethod
    async def _run(self, steps: Steps[T]) -> T: ...

    async def overview(self) -> Overview:
        """`Admin.overview`."""
        return await self._run(self._observing.overview())

    async def flow(
        self,
        *,
        since: datetime | timedelta = LAST_HOUR,
        minutes: int | None = None,
        queue: str | None = None,
    ) -> Flow:
        """`Admin.flow`."""
        return await self._run(self._observing.flow(since, minutes, queue))

    async def dead_letter_groups(self, which: Filter = ALL, *, most: int = MOST) -> DeadLetterGroups:
        """`Admin.dead_letter_groups`."""
        return await self._run(self._observing.dead_letter_groups(which, most))

    async def inbox_marks(self, message_id: str, *, consumer: str | None = None) -> tuple[InboxMark, ...]:
        """`Admin.inbox_marks`."""
        return await self._run(self._observing.inbox_marks(message_id, consumer))

    async def ledger_entries(
        self,
        *,
        key: str | None = None,
        scope: str | None = None,
        body: bool = False,
        limit: int = 50,
        after: str | None = None,
    ) -> tuple[LedgerEntry, ...]:
        """`Admin.ledger_entries`."""
        return await self._run(self._observing.ledger_entries(key, scope, limit, after, body=body))

    async def change_token(self) -> str:
        """`Admin.change_token`."""
        return await self._run(self._observing.change_token())
