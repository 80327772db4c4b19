"""What `Admin` and `AsyncAdmin` do with the stream, written once."""
# ruff: noqa: D102 - `CdcActs` documents each method

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from postroom.errors import CdcActRefused, CdcUnavailable, InvalidSetting, PrivilegeMissing
from postroom.rules.checks.findings import lasting
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
    from collections.abc import Sequence

    from postroom.store.sql.names import Names
    from postroom.store.sql.steps import Steps
    from postroom.store.stream.slots import Writer
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
        name = slots.slot_of(found.server)
        return (*slots.publication_statements(), slots.slot_statement(name, found.server.version))

    def setting_up(self) -> SettingUp:
        self._check()
        return SettingUp(self._names)

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


class SettingUp:
    """Publication and slot, to be made step by step until nothing is waited for."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._slots = Slots(names)
        self._older: dict[str, Writer] | None = None
        """As they were when they were first seen, so that nothing new is told unless one has ended."""
        self.made = CdcSetUp(None, None)

    def advance(self, note: Note) -> Steps[str]:
        """Do what can be done now; returns what it waits for, empty when both are there.

        The server would wait too, but in silence.
        """
        yield from refuse_debezium(self._names)
        found = yield from StreamStatusReader(self._names).status()
        self._check(found)
        if not found.is_published:
            yield from self._unless_denied(self._slots.publish(), self._slots.publication_statements())
            self.made = replace(self.made, publication=found.publication)
        if found.slot is None:
            writers = yield from self._slots.writers()
            self._older = writers if self._older is None else self._older
            if still_open := [one for number, one in self._older.items() if number in writers]:
                return _described(still_open)
            version = found.server.version
            create = self._slots.create_slot(found.slot_name, version)
            yield from self._unless_denied(create, [self._slots.slot_statement(found.slot_name, version)])
            self.made = replace(self.made, slot=found.slot_name)
        if self.made.publication or self.made.slot:
            made = {"publication": self.made.publication, "slot": self.made.slot}
            yield from audit(self._names, CDC_SET_UP, note, [(None, None, made)])
        return FINISHED

    def _check(self, found: StreamStatus) -> None:
        server = found.server
        if server.version < OLDEST_SERVER * 10_000:
            raise InvalidSetting(
                f"cdc needs PostgreSQL {OLDEST_SERVER} or newer, and this is {server.version // 10_000}"
            )
        if server.wal_level != "logical":
            raise CdcUnavailable(
                f"cdc needs wal_level = logical, and it is {server.wal_level}: set it in postgresql.conf, and restart "
                "the server"
            )
        if not found.is_published and found.mode is not Mode.TABLE:
            raise CdcActRefused(
                f"the publication {found.publication} does not show what is in the stream, and the outbox is in it: a "
                "relay mends that when it begins to read, so restart `postroom relay --cdc`"
            )

    def _unless_denied(self, steps: Steps[None], statements: Sequence[str]) -> Steps[None]:
        try:
            yield from steps
        except Exception as error:
            if not _is_denied(error):
                raise
            raise PrivilegeMissing(
                f"the database's user may not make what cdc needs ({reason(error)}): have one who may run what "
                f"`postroom cdc setup --sql` prints: {'; '.join(statements)}"
            ) from error


SHOWN = 5
"""Open transactions that are named."""


def _described(writers: Sequence[Writer]) -> str:
    """Open transactions as an operator can find them. What they do may be secret."""
    named = [
        ("a prepared one, see pg_prepared_xacts" if one.pid is None else f"process {one.pid} of the server")
        + ("" if one.seconds is None else f", open for {lasting(max(0.0, one.seconds))}")
        for one in writers[:SHOWN]
    ]
    more = [f"{len(writers) - SHOWN} more"] if len(writers) > SHOWN else []
    return f"transactions that have written must end first: {'; '.join([*named, *more])}"


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
