"""What PostgreSQL says about itself."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from postroom.rules.checks import database, unfinished
from postroom.rules.checks.database import Holder
from postroom.rules.checks.findings import Finding, Verdict, skip
from postroom.rules.checks.unfinished import Prepared
from postroom.rules.twophase_ids import read_gid
from postroom.store.admin.inspection.server import Server
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST = 20
_AGE = "extract(epoch FROM clock_timestamp() - {})::float8"
_SESSIONS = f"""
    SELECT pid, coalesce(usename::text, ''), coalesce(application_name, ''), coalesce(state, ''),
        {_AGE.format("xact_start")} FROM pg_stat_activity
    WHERE (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL) AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
        AND (datname = current_database() AND backend_type = 'client backend' OR backend_type = 'walsender')
    ORDER BY xact_start LIMIT {_MOST}"""
_SLOTS = f"SELECT slot_name::text FROM pg_replication_slots WHERE NOT active AND xmin IS NOT NULL LIMIT {_MOST}"
_PREPARED = f"""
    SELECT gid::text, {_AGE.format("prepared")} FROM pg_prepared_xacts
    WHERE database = current_database() ORDER BY prepared LIMIT {_MOST}"""
_SEES_ALL = "SELECT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')"


class PostgreSQLServer(Server):
    title = "PostgreSQL"

    def version(self) -> Steps[str]:
        [[number]] = (yield Query("SELECT current_setting('server_version')")).rows
        return f"PostgreSQL {str(number).partition(' ')[0]}"

    def writable(self) -> Steps[Finding]:
        found = yield Query("SELECT pg_is_in_recovery(), current_setting('default_transaction_read_only') = 'on'")
        [[is_standby, is_read_only]] = found.rows
        refusal = "it is a standby" if is_standby else "default_transaction_read_only is on" if is_read_only else None
        return database.writable(refusal)

    def durability(self) -> Steps[Finding]:
        # Not `current_setting`: our own sessions raise synchronous_commit.
        values = yield from self._settings("fsync", "full_page_writes", "synchronous_commit")
        return database.postgresql_durability(
            fsync=values["fsync"] == "on",
            full_page_writes=values["full_page_writes"] == "on",
            synchronous_commit=values["synchronous_commit"],
        )

    def connections(self) -> Steps[Finding]:
        # pg_stat_activity shows some roles their own sessions only.
        [[used]] = (yield Query("SELECT coalesce(sum(numbackends), 0)::int FROM pg_stat_database")).rows
        values = yield from self._settings("max_connections", "superuser_reserved_connections")
        most = int(values["max_connections"]) - int(values["superuser_reserved_connections"])
        return database.connections(int(used), most)

    def snapshots(self) -> Steps[Finding]:
        sessions = (yield Query(_SESSIONS)).rows
        holders = [
            Holder(
                "session",
                f"{pid} ({', '.join(filter(None, (user, application, state)))})",
                float(seconds),
                f"end it: SELECT pg_terminate_backend({int(pid)}); set idle_in_transaction_session_timeout",
            )
            for pid, user, application, state, seconds in sessions
        ]
        for [slot] in (yield Query(_SLOTS)).rows:
            remedy = f"start its reader, or SELECT pg_drop_replication_slot('{slot}')"
            holders.append(Holder("slot", str(slot), None, remedy))
        for gid, seconds in (yield Query(_PREPARED)).rows:
            remedy = "see TX_PREPARED: finish what was prepared"
            holders.append(Holder("prepared transaction", str(gid), float(seconds), remedy))
        finding = database.snapshots(holders)
        [[sees_all]] = (yield Query(_SEES_ALL)).rows
        if finding.verdict is Verdict.OK and not sees_all:
            hidden = "sessions of other users are hidden; GRANT pg_read_all_stats to see them"
            return replace(finding, evidence=f"{finding.evidence} ({hidden})")
        return finding

    def vacuum(self) -> Steps[Finding]:
        found = yield Query(
            "SELECT s.n_dead_tup, s.n_live_tup, "
            f"{_AGE.format('greatest(s.last_vacuum, s.last_autovacuum)')}, "
            "coalesce('autovacuum_enabled=false' = ANY (c.reloptions), false) "
            "FROM pg_stat_all_tables s JOIN pg_class c ON c.oid = s.relid WHERE s.relid = to_regclass(:table)",
            {"table": self.delivery},
        )
        if not found.rows:
            return skip("a table is missing: see SCHEMA_VERSION and SCHEMA_TABLES")
        values = yield from self._settings("autovacuum")
        [[dead, live, seconds, is_off]] = found.rows
        last = None if seconds is None else float(seconds)
        return database.vacuum(int(dead), int(live), last, is_on=values["autovacuum"] == "on" and not is_off)

    def slots(self) -> Steps[Finding]:
        found = yield Query(
            "SELECT slot_name::text, coalesce(pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() "
            "THEN pg_last_wal_receive_lsn() ELSE pg_current_wal_lsn() END, restart_lsn), 0)::bigint "
            "FROM pg_replication_slots WHERE NOT active ORDER BY 2 DESC"
        )
        return database.slots([(str(name), int(kept)) for name, kept in found.rows])

    def prepared_limit(self, *, is_used: bool) -> Steps[Finding]:
        values = yield from self._settings("max_prepared_transactions", "max_connections")
        limit, connections = (int(values[name]) for name in ("max_prepared_transactions", "max_connections"))
        return database.prepared_limit(limit, connections, is_used=is_used)

    def prepared(self) -> Steps[Finding]:
        found = (yield Query(_PREPARED)).rows
        return unfinished.prepared(
            [Prepared(str(gid), float(seconds), is_ours=read_gid(str(gid)) is not None) for gid, seconds in found]
        )

    def _settings(self, *names: str) -> Steps[dict[str, str]]:
        wanted: Sequence[str] = [f"'{name}'" for name in names]
        found = yield Query(f"SELECT name, reset_val FROM pg_settings WHERE name IN ({', '.join(wanted)})")
        return {str(name): str(value) for name, value in found.rows}
