"""Looks at the database server."""

from __future__ import annotations

from time import time as now
from typing import TYPE_CHECKING

from postroom.errors import DatabaseUnreachable, DriverMissing, SchemaMissing
from postroom.rules.checks import database

if TYPE_CHECKING:
    from postroom.doctor.surroundings import Surroundings
    from postroom.rules.checks.findings import Finding


def reachable(at: Surroundings) -> Finding:
    """Whether it answers."""
    try:
        answer = at.answer()
    except DriverMissing as error:
        return database.no_driver(str(error))
    except DatabaseUnreachable as error:
        is_no_file = isinstance(error.__cause__, SchemaMissing)
        return (database.no_file if is_no_file else database.unreachable)(str(error))
    return database.reachable(answer.seconds, answer.version)


def writable(at: Surroundings) -> Finding:
    """Whether it is a standby, or read-only."""
    return at.read(at.server.writable())


def clock(at: Surroundings) -> Finding:
    """Its clock and ours."""
    at.answer()
    before = now()
    theirs = at.read(at.server.clock())
    return database.clock((before + now()) / 2 - theirs)


def durability(at: Surroundings) -> Finding:
    """What a crash may undo."""
    return at.read(at.server.durability())


def connections(at: Surroundings) -> Finding:
    """Room for more connections."""
    return at.read(at.server.connections())


def snapshots(at: Surroundings) -> Finding:
    """What keeps deleted rows."""
    return at.read(at.server.snapshots())


def vacuum(at: Surroundings) -> Finding:
    """Whether deleted rows are removed."""
    return at.read(at.server.vacuum())


def slots(at: Surroundings) -> Finding:
    """Replication slots that nobody reads."""
    return at.read(at.server.slots())


def prepared_limit(at: Surroundings) -> Finding:
    """Whether transactions can be prepared."""
    is_used = at.read(at.traffic.uses_two_phase_commit())
    return at.read(at.server.prepared_limit(is_used=is_used))


def journal(at: Surroundings) -> Finding:
    """SQLite's journal."""
    return at.read(at.server.journal())


def disk(at: Surroundings) -> Finding:
    """SQLite's disk."""
    return at.read(at.server.disk())
