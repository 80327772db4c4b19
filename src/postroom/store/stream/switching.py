"""Back to the table: how an outbox leaves the stream while producers and relays go on, with nothing lost or overtaken.

Relays give up their lanes first, since what is in them must not overtake what is still in the stream. Then producers
write deliveries again; when the last transaction that may have written to the stream has ended, everything that is left
in it gets its delivery.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.rules.ordering import Order
from postroom.rules.stream.modes import STREAM, Mode
from postroom.store.sql.operations import Operations
from postroom.store.sql.steps import Query, Steps
from postroom.store.stream.leadership import Leadership
from postroom.store.stream.records import StreamRecords
from postroom.store.stream.slots import Slots

if TYPE_CHECKING:
    from postroom.store.sql.names import Names

FINISHED = ""


def counted(transactions: set[str]) -> int:
    """How many transactions these are, each of which may be there by two numbers."""
    return len([one for one in transactions if one.startswith("v")]) or len(transactions)


class Switching(Operations):
    """Takes an outbox back to the table, one step at a time. Several processes may do it at once."""

    def __init__(self, names: Names) -> None:
        super().__init__(names)
        self._leadership = Leadership(names)
        self._slots = Slots(names)
        self._records = StreamRecords(names, Order.HOLD)
        self._older: set[str] | None = None

    def begin(self) -> Steps[bool]:
        """Ask for it; returns False if the outbox is not in the stream."""
        self._older = None
        state = yield from self._leadership.state()
        yield from self._leadership.change_mode([Mode.STREAM], Mode.CLOSING)
        return state.mode is not Mode.TABLE

    def advance(self) -> Steps[str]:
        """Do what can be done now; returns what it waits for, or `FINISHED`."""
        state = yield from self._leadership.state()
        if state.mode is Mode.CLOSING:
            if state.owner:
                return f"{state.owner} still reads the stream"
            lanes = yield from self._held_lanes()
            if lanes:
                return f"{lanes} lanes are still held"
            yield from self._leadership.change_mode([Mode.CLOSING], Mode.DRAINING)
            self._older = None
        elif state.mode is not Mode.DRAINING:
            self._older = None
            return FINISHED
        if self._older is None:
            self._older = yield from self._slots.open_transactions()
        self._older &= yield from self._slots.open_transactions()
        if self._older:
            return f"{counted(self._older)} open transactions may have written to the stream"
        if (yield from self._records.sweep(None)) is None:
            return "somebody still reads the stream"
        if (yield from self._leadership.change_mode([Mode.DRAINING], Mode.TABLE)):
            yield from self.drop()
        return FINISHED

    def drop(self) -> Steps[None]:
        """Drop the slot of an outbox that is not in the stream."""
        name = self._slots.slot_of((yield from self._slots.server()))
        yield from self._slots.drop_slot(name)
        yield from self.statement(
            f"UPDATE {self.tables['stream']} SET slot = '' WHERE name = '{STREAM}' AND mode = '{Mode.TABLE}'", {}
        )

    def _held_lanes(self) -> Steps[int]:
        found = yield Query(f"SELECT count(*) FROM {self.lane} WHERE leased_until > {self.now}")
        [[lanes]] = found.rows
        return int(lanes)
