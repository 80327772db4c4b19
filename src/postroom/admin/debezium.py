"""`DebeziumSwitch`: the part of `Admin` that hands the outbox to Debezium, and takes it back."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from postroom.admin.waiting import AsyncPatient, Patient, Waiting
from postroom.errors import InvalidSetting
from postroom.rules.stream.modes import OLDEST_SERVER, Mode
from postroom.store.admin.audit import Note
from postroom.store.stream.debezium import SLOT, Debezium

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.store.sql.names import Names
    from postroom.store.sql.steps import Steps

_SLOT = re.compile("[a-z0-9_]{1,63}")


class DebeziumSteps:
    """What both do."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._debezium: Debezium | None = None

    @property
    def _store(self) -> Debezium:
        if self._names.dialect != "postgresql":
            raise InvalidSetting(f"Debezium reads the outbox from PostgreSQL only, and this is {self._names.dialect}")
        if self._debezium is None:
            self._debezium = Debezium(self._names)
        return self._debezium

    def sql(self, slot: str) -> Steps[tuple[str, ...]]:
        """The statements that `on` runs."""
        store = self._store
        _check_slot(slot)
        server = yield from store.slots.server()
        if server.version < OLDEST_SERVER * 10_000:
            raise InvalidSetting(
                f"this needs PostgreSQL {OLDEST_SERVER} or newer, and this is {server.version // 10_000}"
            )
        if server.wal_level != "logical":
            raise InvalidSetting(
                f"Debezium needs wal_level = logical, and it is {server.wal_level}: set it in postgresql.conf, and "
                "restart the server"
            )
        return tuple(store.statements(slot, server.version))

    def on(self, slot: str, note: Note) -> Steps[None]:
        """Publication, slot, mode."""
        yield from self.sql(slot)
        mode = yield from self._store.begin(slot, note)
        if mode is not Mode.DEBEZIUM:
            raise InvalidSetting(
                f"the outbox is in the mode {mode}, because relays read its stream: take it back to the table first, "
                "and start them without cdc"
            )

    def leave(self, note: Note, *, wait: bool) -> Steps[bool]:
        """Begin to take it back."""
        return (yield from self._store.leave(note, wait=wait))

    def advance(self, *, wait: bool) -> Steps[str]:
        """Go on; returns what it waits for."""
        return (yield from self._store.advance(wait=wait))


class DebeziumSwitch(Patient):
    """Hands the outbox to Debezium, and takes it back."""

    _debezium: DebeziumSteps

    def debezium_sql(self, slot: str = SLOT) -> tuple[str, ...]:
        """The statements that `debezium_on` runs, in order: for a person who may create publications and slots."""
        return self._run(self._debezium.sql(slot))

    def debezium_on(self, slot: str = SLOT, *, actor: str = "", reason: str = "") -> None:
        """From now on, producers with ``cdc`` write one row for Debezium, and no delivery.

        Makes the publication and the slot first, if they are not there: the slot keeps everything for a connector that
        is started later. Raises `InvalidSetting` if the server or the outbox is not fit for it.
        """
        self._run(self._debezium.on(slot, Note(actor, reason)))

    def debezium_off(
        self,
        *,
        wait: bool = True,
        timeout: float | None = None,
        progress: Callable[[str], None] | None = None,
        actor: str = "",
        reason: str = "",
    ) -> None:
        """Take the outbox back to relays. Returns when they send, and what Debezium had to send is sent.

        Keep the connector running meanwhile. Without ``wait``, because there is none any more, relays send everything
        that has no receipt, also what Debezium may have sent. ``progress`` gets what it waits for, each
        time that changes. Raises `TimeoutError` after ``timeout`` seconds: call it again to go on.
        """
        if self._run(self._debezium.leave(Note(actor, reason), wait=wait)):
            self._until(lambda: self._debezium.advance(wait=wait), Waiting(timeout, progress))


class AsyncDebeziumSwitch(AsyncPatient):
    """`DebeziumSwitch` for async code."""

    _debezium: DebeziumSteps

    async def debezium_sql(self, slot: str = SLOT) -> tuple[str, ...]:
        """`Admin.debezium_sql`."""
        return await self._run(self._debezium.sql(slot))

    async def debezium_on(self, slot: str = SLOT, *, actor: str = "", reason: str = "") -> None:
        """`Admin.debezium_on`."""
        await self._run(self._debezium.on(slot, Note(actor, reason)))

    async def debezium_off(
        self,
        *,
        wait: bool = True,
        timeout: float | None = None,  # noqa: ASYNC109 - as `Admin` has it, and it says what it waited for
        progress: Callable[[str], None] | None = None,
        actor: str = "",
        reason: str = "",
    ) -> None:
        """`Admin.debezium_off`."""
        if await self._run(self._debezium.leave(Note(actor, reason), wait=wait)):
            await self._until(lambda: self._debezium.advance(wait=wait), Waiting(timeout, progress))


def _check_slot(slot: str) -> None:
    if not _SLOT.fullmatch(slot):
        raise InvalidSetting(f"slot = {slot[:80]!r} is not valid: use 1 to 63 of a-z, 0-9 and _")
