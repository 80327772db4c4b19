"""`AsyncCdcActs`: `CdcActs` for async code."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from typing import TYPE_CHECKING, TypeVar

from postroom.admin.cdc import PAUSE, Waiting
from postroom.store.admin.audit import Note

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.admin.cdc_steps import CdcSetUp, CdcSteps
    from postroom.store.sql.steps import Steps
    from postroom.store.stream.stream_status import StreamStatus

T = TypeVar("T")


class AsyncCdcActs:
    """Publication, slot and mode of an outbox on PostgreSQL."""

    def __init__(self, steps: CdcSteps) -> None:
        self._cdc = steps

    @abstractmethod
    async def _run(self, steps: Steps[T]) -> T: ...

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

    async def _until(self, advance: Callable[[], Steps[str]], waiting: Waiting) -> None:
        while waits := await self._run(advance()):
            waiting.tell(waits)
            await asyncio.sleep(PAUSE)

    async def sweep_cdc(self, *, actor: str, reason: str = "") -> int:
        """`Admin.sweep_cdc`."""
        return await self._run(self._cdc.sweep(Note(actor, reason)))
