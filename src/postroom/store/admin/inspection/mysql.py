"""What MariaDB and MySQL say about themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postroom.rules.checks import database, unfinished
from postroom.rules.checks.database import Holder
from postroom.rules.checks.unfinished import Prepared
from postroom.rules.twophase_ids import deadline_of, read_xid
from postroom.store.admin.inspection.server import Server
from postroom.store.sql.dialect import text
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from postroom.rules.checks.findings import Finding

_MOST = 20


class MySQLServer(Server):
    title = "MariaDB"

    def version(self) -> Steps[str]:
        [[version]] = (yield Query("SELECT VERSION()")).rows
        number, _, rest = text(version).partition("-")
        return f"{'MariaDB' if 'mariadb' in rest.lower() else 'MySQL'} {number}"

    def writable(self) -> Steps[Finding]:
        [[is_read_only]] = (yield Query("SELECT @@global.read_only")).rows
        return database.writable("read_only is on" if _is_on(is_read_only) else None)

    def durability(self) -> Steps[Finding]:
        found = yield Query("SELECT @@innodb_flush_log_at_trx_commit, @@log_bin, @@sync_binlog, @@innodb_doublewrite")
        [[flush, binlog, sync_binlog, doublewrite]] = found.rows
        return database.mysql_durability(
            flush=int(flush), binlog=_is_on(binlog), sync_binlog=int(sync_binlog), doublewrite=_is_on(doublewrite)
        )

    def connections(self) -> Steps[Finding]:
        [[_, used]] = (yield Query("SHOW GLOBAL STATUS LIKE 'Threads_connected'")).rows
        [[most]] = (yield Query("SELECT @@max_connections")).rows
        return database.connections(int(used), int(most))

    def snapshots(self) -> Steps[Finding]:
        found = yield Query(
            "SELECT trx_mysql_thread_id, trx_state, timestampdiff(SECOND, trx_started, now()) "
            "FROM information_schema.innodb_trx WHERE trx_mysql_thread_id <> connection_id() "
            f"ORDER BY trx_started LIMIT {_MOST}"
        )
        return database.snapshots(
            [
                Holder("session", f"{int(thread)} ({text(state)})", float(seconds), f"end it: KILL {int(thread)}")
                if int(thread)
                else Holder("prepared transaction", "without a session", float(seconds), "see TX_PREPARED")
                for thread, state, seconds in found.rows
            ]
        )

    def vacuum(self) -> Steps[Finding]:
        found = yield Query("SELECT count FROM information_schema.innodb_metrics WHERE name = 'trx_rseg_history_len'")
        return database.purge(int(found.rows[0][0]) if found.rows else 0)

    def prepared(self) -> Steps[Finding]:
        found = (yield Query("XA RECOVER")).rows
        [[now_ms]] = (yield Query(f"SELECT {self.dialect.now_ms}")).rows
        return unfinished.prepared([_prepared(row, int(now_ms)) for row in found])


def _prepared(row: tuple[Any, ...], now_ms: int) -> Prepared:
    format_id, gtrid_length, _, data = row
    whole = data if isinstance(data, bytes) else str(data).encode("utf-8", "replace")
    branch = read_xid(int(format_id), whole[: int(gtrid_length)], whole[int(gtrid_length) :])
    if branch is None:
        return Prepared(repr(whole)[2:-1][:80], None, is_ours=False)
    deadline = deadline_of(branch.tx)
    return Prepared(branch.text, None if deadline is None else max(0.0, (now_ms - deadline) / 1000), is_ours=True)


def _is_on(value: object) -> bool:
    return text(value).upper() not in ("0", "OFF", "FALSE")
