"""Publication and slot: what PostgreSQL needs so that the stream can be read, and what it says about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from postroom.errors import CdcUnavailable, PrivilegeMissing
from postroom.rules.stream.wal_places import publication_name, slot_name
from postroom.store.sql.db_errors import code_of, is_denied, reason
from postroom.store.sql.operations import Operations
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from postroom.store.sql.names import Names

COLUMNS = (
    "position",
    "id",
    "queue",
    "topic",
    "type",
    "aggregate_type",
    "aggregate_id",
    "ordering_key",
    "payload",
    "content_type",
    "headers",
    "idempotency_key",
    "digest",
    "created_at",
    "expires_at",
)
"""What the stream shows of a message."""
PLACE = "({} - '0/0'::pg_lsn)::bigint"
"""A place in the write-ahead log as a number."""
_FAILOVER_FROM = 170_000
LOST = "lost"
_WAITS_FOR_STANDBY = (
    "current_setting('synchronous_standby_names') <> '' "
    "AND coalesce(current_setting('synchronized_standby_slots', true), '') = ''"
)
_UNDEFINED = "42704"
_REMEDIES: dict[object, str] = {
    "53400": "raise max_replication_slots in postgresql.conf, and restart the server; or drop a slot that nobody "
    "reads: see pg_replication_slots",
    "55000": "set wal_level = logical in postgresql.conf, and restart the server",
    "42501": "the database's user needs REPLICATION: `postroom schema --grants ROLE --for cdc` prints how to give it",
}
"""What to do if the server makes no slot, by the code of its error."""


@dataclass(frozen=True, slots=True)
class Server:
    """What a server says about itself."""

    version: int
    """As ``server_version_num``."""
    database: str
    system_id: str
    wal_level: str
    in_recovery: bool
    synchronous: bool
    """Whether commits wait for a standby, but the stream does not."""
    takes_any_standby: bool
    """Whether commits may wait for anybody who reads the log, and so for the reader of the stream."""


@dataclass(frozen=True, slots=True)
class Slot:
    """What a server says about a slot."""

    name: str
    active_pid: int | None
    wal_status: str
    """``lost``: what it would show next is gone."""
    confirmed: int
    held_bytes: int
    """Write-ahead log that the server keeps for it."""


class Writer(NamedTuple):
    """An open transaction that has written."""

    pid: int | None
    """The server's process; None if it is prepared."""
    seconds: float | None
    """How long it has been open; None if that may not be seen."""


class Slots(Operations):
    """Looks at publication and slot, and makes them."""

    def __init__(self, names: Names) -> None:
        super().__init__(names)
        self.publication = publication_name(names.schema or "public", names.prefix)

    def slot_of(self, server: Server) -> str:
        """The name of the slot on this server."""
        return slot_name(server.database, self.names.schema or "public", self.names.prefix)

    def server(self) -> Steps[Server]:
        """Facts about the server."""
        found = yield Query(
            "SELECT current_setting('server_version_num')::integer, current_database()::text, "
            "(SELECT system_identifier::text FROM pg_control_system()), current_setting('wal_level'), "
            f"pg_is_in_recovery(), {_WAITS_FOR_STANDBY}, "
            "position('*' IN current_setting('synchronous_standby_names')) > 0"
        )
        [row] = found.rows
        return Server(*row)

    def waits_for_standby(self) -> Steps[bool]:
        """`Server.synchronous`, which may change at any time."""
        found = yield Query(f"SELECT {_WAITS_FOR_STANDBY}")
        return bool(found.rows[0][0])

    def may_replicate(self) -> Steps[bool]:
        """Whether the connection's user may make a slot."""
        found = yield Query("SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user")
        return bool(found.rows and found.rows[0][0])

    def end_of_wal(self) -> Steps[int]:
        """The place where the next change will be written."""
        found = yield Query(f"SELECT {PLACE.format('pg_current_wal_insert_lsn()')}")
        [[place]] = found.rows
        return int(place)

    def slot(self, name: str) -> Steps[Slot | None]:
        """The slot, if there is one in this database."""
        found = yield Query(
            f"SELECT slot_name::text, active_pid, coalesce(wal_status, ''), "
            f"coalesce({PLACE.format('confirmed_flush_lsn')}, 0), "
            "coalesce(CASE WHEN pg_is_in_recovery() THEN 0 ELSE pg_current_wal_lsn() - restart_lsn END, 0)::bigint "
            "FROM pg_replication_slots WHERE slot_name = :name AND database = current_database()",
            {"name": name},
        )
        return Slot(*found.rows[0]) if found.rows else None

    def is_published(self) -> Steps[bool]:
        """Whether the publication shows what the stream needs, of the table that the outbox is now."""
        return (yield from self.publication_id()) > 0

    def publication_id(self) -> Steps[int]:
        """The number of the publication; 0 if there is none that shows what the stream needs."""
        found = yield Query(
            "SELECT p.pubinsert AND NOT p.pubupdate AND NOT p.pubdelete AND p.pubviaroot AND r.prqual IS NOT NULL "
            "AND (SELECT array_agg(a.attname::text ORDER BY a.attname) FROM pg_attribute a "
            "  WHERE a.attrelid = r.prrelid AND a.attnum = ANY(r.prattrs::int2[])) "
            "  = (SELECT array_agg(c ORDER BY c) FROM unnest(:columns::text[]) AS c) "
            ", p.oid::bigint FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid "
            "WHERE p.pubname = :name AND r.prrelid = to_regclass(:outbox)",
            {"name": self.publication, "outbox": self.outbox, "columns": list(COLUMNS)},
        )
        return int(found.rows[0][1]) if found.rows and found.rows[0][0] else 0

    def publish(self) -> Steps[None]:
        """Make the publication anew, unless another relay just did."""
        yield from self.transaction(self._publish)

    def _publish(self) -> Steps[None]:
        yield Query("SELECT pg_advisory_xact_lock(hashtextextended('postroom publication', 0))")
        if not (yield from self.is_published()):
            for statement in self.publication_statements():
                yield Query(statement)

    def publication_statements(self) -> list[str]:
        """The SQL that makes the publication. It needs the tables' owner, and CREATE on the database."""
        name = self.names.quoted(self.publication)
        return [
            f"DROP PUBLICATION IF EXISTS {name}",
            (
                f"CREATE PUBLICATION {name} FOR TABLE {self.outbox} ({', '.join(COLUMNS)}) WHERE (streamed) "
                "WITH (publish = 'insert', publish_via_partition_root = true)"
            ),
        ]

    def slot_statement(self, name: str, version: int) -> str:
        """The SQL that makes the slot. It needs a role with REPLICATION, and waits for open transactions to end."""
        failover = ", false, false, true" if version >= _FAILOVER_FROM else ""
        return f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput'{failover})"

    def create_slot(self, name: str, version: int) -> Steps[None]:
        """Make the slot. Raises `CdcUnavailable` or `PrivilegeMissing`: then the server must be set up first."""
        try:
            yield Query(self.slot_statement(name, version))
        except Exception as error:
            if (remedy := _REMEDIES.get(code_of(error))) is None:
                raise
            raise (PrivilegeMissing if is_denied(error) else CdcUnavailable)(f"{reason(error)}: {remedy}") from error

    def free_slot(self, slot: Slot) -> Steps[None]:
        """End the session that reads the slot, if there is one."""
        if slot.active_pid is not None:
            yield Query("SELECT pg_terminate_backend(:pid::integer)", {"pid": slot.active_pid})

    def drop_slot(self, name: str) -> Steps[None]:
        """Drop the slot, if it is there: nothing is kept for it any more."""
        found = yield from self.slot(name)
        if found is not None:
            yield from self.free_slot(found)
            try:
                yield Query("SELECT pg_drop_replication_slot(:name)", {"name": name})
            except Exception as error:
                if code_of(error) != _UNDEFINED:  # else somebody else was quicker
                    raise

    def writers(self) -> Steps[dict[str, Writer]]:
        """Transactions of the server that have written and are open, by their numbers, but for this one.

        The server makes no slot before those have ended that are open when it begins to.
        """
        found = yield Query(
            "SELECT l.transactionid::text, l.pid, extract(epoch FROM clock_timestamp() - a.xact_start)::float8 "
            "FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid WHERE l.locktype = 'transactionid' "
            "AND l.mode = 'ExclusiveLock' AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid() ORDER BY 3 DESC, 1"
        )
        return {number: Writer(pid, seconds) for number, pid, seconds in found.rows}

    def open_transactions(self) -> Steps[set[str]]:
        """All transactions of this database that are open now, prepared ones included, but for this one.

        By both of their numbers: a prepared one has another virtual number after a restart of the server.
        """
        found = yield Query(
            "SELECT DISTINCT unnest(ARRAY['v' || l.virtualtransaction, 'x' || l.transactionid::text]) FROM pg_locks l "
            "LEFT JOIN pg_stat_activity a ON a.pid = l.pid "
            "WHERE l.locktype IN ('virtualxid', 'transactionid') AND l.granted "
            "AND (a.datname = current_database() OR a.pid IS NULL) AND l.pid IS DISTINCT FROM pg_backend_pid()"
        )
        return {str(one) for [one] in found.rows if one is not None}
