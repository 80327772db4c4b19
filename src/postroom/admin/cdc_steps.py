"""What `Admin` and `AsyncAdmin` do with the stream, written once."""
# ruff: noqa: D102 - `CdcActs` documents each method

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from postroom.errors import CdcActRefused, InvalidSetting, PrivilegeMissing
from postroom.rules.stream.modes import OLDEST_SERVER, Mode
from postroom.store.admin.audit import CDC_OFF, CDC_SET_UP, CDC_SWEPT, Note, audit
from postroom.store.sql.db_errors import is_denied, reason
from postroom.store.sql.operations import Operations
from postroom.store.stream.leadership import Leadership
from postroom.store.stream.records import StreamRecords
from postroom.store.stream.slots import Slots
from postroom.store.stream.stream_status import StreamStatusReader
from postroom.store.stream.switching import FINISHED, Switching

if TYPE_CHECKING:
    from postroom.store.sql.names import Names
    from postroom.store.sql.steps import Steps
    from postroom.store.stream.stream_status import StreamStatus


@dataclass(frozen=True, slots=True)
class CdcSetUp:
    """What `Admin.set_up_cdc` made; what was there already is not in it."""

    publication: str | None
    slot: str | None


class CdcSteps:
    """The operations of an operator on the stream. `CdcActs` documents each."""

    def __init__(self, names: Names) -> None:
        self._names = names

    def status(self) -> Steps[StreamStatus]:
        self._check()
        return (yield from StreamStatusReader(self._names).status())

    def sql(self) -> Steps[tuple[str, ...]]:
        found = yield from self.status()
        slots = Slots(self._names)
        return (*slots.publication_statements(), slots.slot_statement(found.slot_name, found.server.version))

    def set_up(self, note: Note) -> Steps[CdcSetUp]:
        found = yield from self.status()
        server, slots = found.server, Slots(self._names)
        if server.version < OLDEST_SERVER * 10_000:
            raise InvalidSetting(
                f"cdc needs PostgreSQL {OLDEST_SERVER} or newer, and this is {server.version // 10_000}"
            )
        if server.wal_level != "logical":
            raise InvalidSetting(
                f"cdc needs wal_level = logical, and it is {server.wal_level}: set it in postgresql.conf, and restart "
                "the server"
            )
        if not found.is_published and found.mode is not Mode.TABLE:
            raise CdcActRefused(
                f"the publication {found.publication} does not show what is in the stream, and the outbox is in it: a "
                "relay mends that when it begins to read, so restart `postroom relay --cdc`"
            )
        statements = slots.publication_statements()
        publication, slot = None, None
        try:
            if not found.is_published:
                yield from slots.publish()
                publication = found.publication
            statements = [slots.slot_statement(found.slot_name, server.version)]
            if found.slot is None:
                yield from slots.create_slot(found.slot_name, server.version)
                slot = found.slot_name
        except Exception as error:
            if not _is_denied(error):
                raise
            raise PrivilegeMissing(
                f"the database's user may not make what cdc needs ({reason(error)}): have one who may run what "
                f"`postroom cdc setup --sql` prints: {'; '.join(statements)}"
            ) from error
        if publication or slot:
            made = {"publication": publication, "slot": slot}
            yield from audit(self._names, CDC_SET_UP, note, [(None, None, made)])
        return CdcSetUp(publication, slot)

    def leaving(self) -> Leaving:
        self._check()
        return Leaving(self._names)

    def sweep(self, note: Note) -> Steps[int]:
        self._check()
        yield from refuse_debezium(self._names)
        swept = yield from AuditedSweep(self._names).sweep_noted(note)
        if swept is None:
            state = yield from Leadership(self._names).state()
            raise CdcActRefused(
                f"{state.owner or 'a relay'} reads the stream, and what it has read is not on record yet: stop every "
                "`postroom relay --cdc` first, or switch it off with `postroom cdc off`"
            )
        return swept

    def _check(self) -> None:
        if self._names.dialect != "postgresql":
            raise InvalidSetting(
                f"cdc reads PostgreSQL's write-ahead log, and this database is {self._names.dialect}: "
                "`postroom relay` without --cdc delivers its messages"
            )


class AuditedSweep(StreamRecords):
    """A sweep that an operator asks for."""

    def sweep_noted(self, note: Note) -> Steps[int | None]:
        """`sweep` while nobody reads, put on record in its transaction."""
        return (yield from self.transaction(self._noted, note))

    def _noted(self, note: Note) -> Steps[int | None]:
        swept = yield from self._sweep(None)
        if swept is not None:
            yield from audit(self.names, CDC_SWEPT, note, [(None, None, {"messages": swept})])
        return swept


class Leaving(Operations):
    """One way back to the table, to be taken step by step until nothing is waited for."""

    def __init__(self, names: Names) -> None:
        super().__init__(names)
        self._switching = Switching(names)
        self._leadership = Leadership(names)

    def begin(self, note: Note) -> Steps[bool]:
        """Ask for it; returns False if the outbox is in the table: then a slot that was left over is dropped."""
        began = yield from self.transaction(self._begin, note)
        if not began:
            yield from self._unless_denied(self._switching.drop())
        return began

    def _begin(self, note: Note) -> Steps[bool]:
        yield from refuse_debezium(self.names)
        state = yield from self._leadership.state()
        if state.mode is not Mode.TABLE:
            details = {"mode": state.mode.value, "reader": state.owner}
            yield from audit(self.names, CDC_OFF, note, [(None, None, details)])
        return (yield from self._switching.begin())

    def advance(self) -> Steps[str]:
        """Do what can be done now; returns what it waits for, empty when the outbox is in the table."""
        return (yield from self._unless_denied(self._switching.advance()))

    def _unless_denied(self, steps: Steps[str | None]) -> Steps[str]:
        try:
            return (yield from steps) or FINISHED
        except Exception as error:
            state = yield from self._leadership.state()
            if not _is_denied(error) or state.mode is not Mode.TABLE:
                raise
            name = Slots(self.names).slot_of((yield from Slots(self.names).server()))
            raise PrivilegeMissing(
                f"the outbox is in the table, but its slot is left, which the database's user may not drop: have one "
                f"who may run SELECT pg_drop_replication_slot('{name}')"
            ) from error


def refuse_debezium(names: Names) -> Steps[None]:
    """Raise `CdcActRefused` if Debezium reads the outbox, or still has to send what it was given."""
    state = yield from Leadership(names).state()
    if state.mode is Mode.DEBEZIUM or state.mode.lanes_rest:
        slots = Slots(names)
        if state.slot != slots.slot_of((yield from slots.server())):
            raise CdcActRefused("the outbox belongs to Debezium: take it back with `postroom cdc debezium off`")


def _is_denied(error: Exception) -> bool:
    return isinstance(error, PrivilegeMissing) or is_denied(error) or "must be owner" in reason(error)
