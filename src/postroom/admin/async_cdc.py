"""`AsyncCdcActs`: `CdcActs` for async code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.admin.waiting import AsyncPatient, Waiting
from postroom.store.admin.audit import Note

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.admin.cdc_steps import CdcSetUp, CdcSteps
    from postroom.store.stream.stream_status import StreamStatus


class AsyncCdcActs(AsyncPatient):
    """Publication, slot and mode of an outbox on PostgreSQL."""

    def __init__(self, steps: CdcSteps) -> None:
        self._cdc = steps

    async def cdc_status(self) -> StreamStatus:
        """`Admin.cdc_status`."""
        return await self._run(self._cdc.status())

    async def cdc_sql(self) -> tuple[str, ...]:
        """`Admin.cdc_sql`."""
        return await self._run(self._cdc.sql())

    async def set_up_cdc(
        self,
        *,
        actor: str,
        reason: str = "",
        timeout: float | None = None,  # noqa: ASYNC109 - as `Admin` has it, and it says what it waited for
        progress: Callable[[str], None] | None = None,
    ) -> CdcSetUp:
        """`Admin.set_up_cdc`."""
        setting_up, note = self._cdc.setting_up(), Note(actor, reason)
        await self._until(lambda: setting_up.advance(note), Waiting(timeout, progress))
        return setting_up.made

    async def switch_cdc_off(
        self,
        *,
        actor: str,
        reason: str = "",
        timeout: float | None = None,  # noqa: ASYNC109 - as `Admin` has it, and it says what it waited for
        progress: Callable[[str], None] | None = None,
    ) -> bool:
        """`Admin.switch_cdc_off`."""
        leaving = self._cdc.leaving()
        if not await self._run(leaving.begin(Note(actor, reason))):
            return False
        await self._until(leaving.advance, Waiting(timeout, progress))
        return True

    async def sweep_cdc(self, *, actor: str, reason: str = "") -> int:
        """`Admin.sweep_cdc`."""
        return await self._run(self._cdc.sweep(Note(actor, reason)))
