"""`CdcActs`: the part of `Admin` that operates the stream, for `relay --cdc`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.admin.waiting import Patient, Waiting
from postroom.store.admin.audit import Note

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.admin.cdc_steps import CdcSetUp, CdcSteps
    from postroom.store.stream.stream_status import StreamStatus


class CdcActs(Patient):
    """Publication, slot and mode of an outbox on PostgreSQL. Every method raises `InvalidSetting` elsewhere."""

    def __init__(self, steps: CdcSteps) -> None:
        self._cdc = steps

    def cdc_status(self) -> StreamStatus:
        """How the stream stands: its mode, who reads it, what the server keeps for its slot."""
        return self._run(self._cdc.status())

    def cdc_sql(self) -> tuple[str, ...]:
        """The SQL that makes publication and slot, for somebody who may run it, one statement after another."""
        return self._run(self._cdc.sql())

    def set_up_cdc(
        self,
        *,
        actor: str,
        reason: str = "",
        timeout: float | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> CdcSetUp:
        """Make publication and slot, where they are missing. From then on the server keeps log for the slot.

        It waits until every transaction has ended that has written and is open now; ``progress`` gets which, each time
        that changes. Raises `CdcUnavailable` where the server is not set up for it, `PrivilegeMissing` with the SQL,
        and `TimeoutError` after ``timeout`` seconds: call it again.
        """
        setting_up, note = self._cdc.setting_up(), Note(actor, reason)
        self._until(lambda: setting_up.advance(note), Waiting(timeout, progress))
        return setting_up.made

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
        self._until(leaving.advance, Waiting(timeout, progress))
        return True

    def sweep_cdc(self, *, actor: str, reason: str = "") -> int:
        """Give a delivery to every message in the stream that has neither been sent nor has one; returns how many.

        Raises `CdcActRefused` while a relay reads the stream.
        """
        return self._run(self._cdc.sweep(Note(actor, reason)))
