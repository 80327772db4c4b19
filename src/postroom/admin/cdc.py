"""`CdcActs`: the part of `Admin` that operates the stream, for `relay --cdc`."""

from __future__ import annotations

import time
from abc import abstractmethod
from typing import TYPE_CHECKING, TypeVar

from postroom.store.admin.audit import Note

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.admin.cdc_steps import CdcSetUp, CdcSteps
    from postroom.store.sql.steps import Steps
    from postroom.store.stream.stream_status import StreamStatus

T = TypeVar("T")
PAUSE = 0.2
"""Seconds between two looks at what a way back to the table waits for."""


class CdcActs:
    """Publication, slot and mode of an outbox on PostgreSQL. Every method raises `InvalidSetting` elsewhere."""

    def __init__(self, steps: CdcSteps) -> None:
        self._cdc = steps

    @abstractmethod
    def _run(self, steps: Steps[T]) -> T: ...

    def cdc_status(self) -> StreamStatus:
        """How the stream stands: its mode, who reads it, what the server keeps for its slot."""
        return self._run(self._cdc.status())

    def cdc_sql(self) -> tuple[str, ...]:
        """The SQL that makes publication and slot, for somebody who may run it, one statement after another."""
        return self._run(self._cdc.sql())

    def set_up_cdc(self, *, actor: str, reason: str = "") -> CdcSetUp:
        """Make publication and slot, where they are missing. From then on the server keeps log for the slot.

        It waits until every transaction has ended that is open now. Raises `InvalidSetting` where the server is not
        set up for it, and `PrivilegeMissing` with the SQL.
        """
        return self._run(self._cdc.set_up(Note(actor, reason)))

    def switch_cdc_off(
        self,
        *,
        actor: str,
        reason: str = "",
        timeout: float | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> bool:
        """Take the outbox back to the table while producers and relays go on, and drop the slot.

        Returns False if it was in the table already; a slot that was left over is dropped then, too. ``progress`` gets
        what it waits for, each time that changes. Raises `TimeoutError` after ``timeout`` seconds: the way back goes on
        by itself while a relay with ``cdc`` runs; otherwise call it again.
        """
        leaving = self._cdc.leaving()
        if not self._run(leaving.begin(Note(actor, reason))):
            return False
        ends, told = None if timeout is None else time.monotonic() + timeout, ""
        while waits := self._run(leaving.advance()):
            if waits != told and progress is not None:
                progress(waits)
            told = waits
            if ends is not None and time.monotonic() >= ends:
                raise TimeoutError(waits)
            time.sleep(PAUSE)
        return True

    def sweep_cdc(self, *, actor: str, reason: str = "") -> int:
        """Give a delivery to every message in the stream that has neither been sent nor has one; returns how many.

        Raises `CdcActRefused` while a relay reads the stream.
        """
        return self._run(self._cdc.sweep(Note(actor, reason)))
