"""`AsyncAdmin`: operate Postroom from async code."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Self, TypeVar, Unpack

from postroom.admin.async_cdc import AsyncCdcActs
from postroom.admin.async_coordinating import AsyncCoordinating
from postroom.admin.async_importing import AsyncImportActs
from postroom.admin.async_observing import AsyncObserving
from postroom.admin.debezium import AsyncDebeziumSwitch, DebeziumSteps
from postroom.admin.import_steps import Importing
from postroom.admin.replay import UNCHANGED, Changes, Replayed, Unchanged
from postroom.admin.steps import AdminSteps
from postroom.compose.databases import open_async_store
from postroom.errors import UnusableConnection
from postroom.settings import Settings, SettingsOverrides
from postroom.store.admin.audit import Note
from postroom.store.admin.message_filter import ALL, Filter
from postroom.store.admin.message_list import Wanted

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from types import TracebackType
    from uuid import UUID

    from postroom.admin.details import MessageDetails
    from postroom.admin.results import ActResult, Page
    from postroom.message import Key
    from postroom.rules.lifecycle import State
    from postroom.store.admin.audit import AuditEntry
    from postroom.store.admin.dead_letters import DeadLetter
    from postroom.store.admin.expired_leases import Released
    from postroom.store.admin.message_list import ListedMessage
    from postroom.store.admin.selection import Count, Progress
    from postroom.store.admin.status import Status, Worker
    from postroom.store.outbox.held_targets import HeldTarget
    from postroom.store.sql.steps import Steps
    from postroom.telemetry.events import Cleaned

T = TypeVar("T")


class AsyncAdmin(AsyncObserving, AsyncCoordinating, AsyncCdcActs, AsyncDebeziumSwitch, AsyncImportActs):
    """`Admin` for async code: the same methods, awaited, with the same contracts.

    ``progress`` may be called from another thread.
    """

    def __init__(self, database: str | None = None, **settings: Unpack[SettingsOverrides]) -> None:
        in_force = Settings.load(database=database, **settings)
        self._store = open_async_store(in_force)
        self._steps = AdminSteps(self._store.names, in_force)
        AsyncObserving.__init__(self, self._steps.observing)
        AsyncCoordinating.__init__(self, self._steps.sagas, self._steps.transactions)
        self._debezium = DebeziumSteps(self._store.names)
        AsyncCdcActs.__init__(self, self._steps.cdc)
        AsyncImportActs.__init__(self, partial(Importing, self._store.names, in_force))
        self._checked = False
        self._closed = False

    async def status(self) -> Status:
        """`Admin.status`."""
        return await self._run(self._steps.status())

    async def workers(self) -> tuple[Worker, ...]:
        """`Admin.workers`."""
        return await self._run(self._steps.workers())

    async def held_targets(self) -> tuple[HeldTarget, ...]:
        """`Admin.held_targets`."""
        return await self._run(self._steps.held_targets())

    async def messages(  # noqa: PLR0913 - all are optional, and come by name
        self,
        *,
        status: State | str | None = None,
        queue: str | None = None,
        topic: str | None = None,
        key: Key | None = None,
        type: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        error: str | None = None,
        payload: str | None = None,
        limit: int = 50,
        before: int | None = None,
    ) -> Page[ListedMessage]:
        """`Admin.messages`."""
        wanted = Wanted(None, queue, topic, key, type, since, until, error, payload)
        return await self._run(self._steps.messages(status, wanted, limit, before))

    async def message(self, id: UUID | str, *, payload: bool = False, headers: bool = False) -> MessageDetails:
        """`Admin.message`."""
        return await self._run(self._steps.message(id, payload=payload, headers=headers))

    async def record_view(self, id: UUID | str | None, *, actor: str, what: str = "payload", reason: str = "") -> None:
        """`Admin.record_view`."""
        await self._run(self._steps.record_view(id, Note(actor, reason), what))

    async def replay(
        self,
        id: UUID | str,
        *,
        actor: str,
        reason: str = "",
        payload: object = UNCHANGED,
        headers: Mapping[str, str] | Unchanged = UNCHANGED,
        topic: str | Unchanged = UNCHANGED,
        discard_original: bool = False,
        new_id: UUID | str | None = None,
    ) -> Replayed:
        """`Admin.replay`."""
        changes = Changes(payload, headers, topic, new_id)
        return await self._run(self._steps.replay(id, changes, Note(actor, reason), discard=discard_original))

    async def count_unsent(self, which: Filter = ALL) -> Count:
        """`Admin.count_unsent`."""
        return await self._run(self._steps.count_unsent(which))

    async def cancel(
        self, which: Filter, *, actor: str, reason: str = "", progress: Progress | None = None
    ) -> ActResult:
        """`Admin.cancel`."""
        return await self._run(self._steps.cancel(which, Note(actor, reason), progress))

    async def release_expired(self, *, progress: Progress | None = None) -> Released:
        """`Admin.release_expired`."""
        return await self._run(self._steps.release_expired(progress))

    async def dead_letters(
        self, which: Filter = ALL, *, limit: int = 50, before: int | None = None
    ) -> Page[DeadLetter]:
        """`Admin.dead_letters`."""
        return await self._run(self._steps.dead_letters(which, limit, before))

    async def dead_letter(self, id: UUID | str, *, payload: bool = False, headers: bool = False) -> MessageDetails:
        """`Admin.dead_letter`."""
        return await self._run(self._steps.dead_letter(id, payload=payload, headers=headers))

    async def count_dead_letters(self, which: Filter = ALL) -> Count:
        """`Admin.count_dead_letters`."""
        return await self._run(self._steps.count_dead_letters(which))

    async def requeue(
        self, which: Filter, *, actor: str, reason: str = "", progress: Progress | None = None
    ) -> ActResult:
        """`Admin.requeue`."""
        return await self._run(self._steps.requeue(which, Note(actor, reason), progress))

    async def discard(
        self, which: Filter, *, actor: str, reason: str = "", progress: Progress | None = None
    ) -> ActResult:
        """`Admin.discard`."""
        return await self._run(self._steps.discard(which, Note(actor, reason), progress))

    async def cleanup(
        self,
        *,
        days: float | None = None,
        inbox_days: float | None = None,
        audit_days: float | None = None,
        load: float | None = None,
        progress: Progress | None = None,
    ) -> Cleaned:
        """`Admin.cleanup`."""
        cleanup = self._steps.cleanup(days, inbox_days, audit_days, load, progress)
        while not cleanup.done:
            pause = await self._run(cleanup.batch())
            await asyncio.sleep(pause)
        return cleanup.cleaned

    async def audit(
        self,
        *,
        action: str | None = None,
        actor: str | None = None,
        message: UUID | str | None = None,
        limit: int = 50,
        before: int | None = None,
    ) -> Page[AuditEntry]:
        """`Admin.audit`."""
        return await self._run(self._steps.audit(action, actor, message, limit, before))

    async def close(self) -> None:
        """`Admin.close`."""
        if not self._closed:
            self._closed = True
            await self._store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _run(self, steps: Steps[T]) -> T:
        from postroom.store.schema.checking import check

        if self._closed:
            raise UnusableConnection("this AsyncAdmin is closed: create another one")
        async with self._store.connection() as run:
            if not self._checked:
                await run(check(self._store.names))
                self._checked = True
            return await run(steps)
