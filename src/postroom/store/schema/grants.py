"""Grants: the least privileges on the tables with which each part of a service can do its work."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from postroom.errors import InvalidSetting, PrivilegeMissing
from postroom.store.outbox.writer import MESSAGE_COLUMNS
from postroom.store.schema.purposes import Purpose
from postroom.store.sql.db_errors import is_denied, is_lost_connection
from postroom.store.sql.steps import Query

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from postroom.store.sql.names import Names
    from postroom.store.sql.steps import Steps


class Right(NamedTuple):
    """A privilege on a table, or on some of its columns."""

    table: str
    privilege: str
    columns: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.privilege} on {self.table}"


def _on(table: str, *privileges: str) -> list[Right]:
    return [Right(table, privilege) for privilege in privileges]


_DELIVERY = ("queue", "position", "state", "lane", "key_hash", "size", "due")
_ADD = [
    Right("outbox", "SELECT", ("id", "queue", "position", "idempotency_key", "digest")),
    Right("outbox", "INSERT", MESSAGE_COLUMNS),
    Right("outbox_delivery", "INSERT", _DELIVERY),
]
_STREAMED = ("streamed",)
_ADD_TO_STREAM = [
    Right("outbox", "SELECT", _STREAMED),
    Right("outbox", "INSERT", _STREAMED),
    Right("outbox_stream", "SELECT", ("name", "mode")),
]
_START_SAGA = [Right("saga", "INSERT", ("position", "name", "id", "deadline"))]
_ADD_IN_SQL = [
    Right("outbox", "SELECT", ("position", "ordering_key")),
    Right("outbox", "INSERT", tuple(name for name in MESSAGE_COLUMNS if name != "queue")),
    Right("outbox_delivery", "INSERT", tuple(name for name in _DELIVERY if name != "queue")),
]
_RELAY = [
    *_on("schema_version", "SELECT"),
    *_on("outbox", "SELECT"),
    *_on("outbox_delivery", "SELECT", "UPDATE", "DELETE"),
    *_on("outbox_receipt", "SELECT", "INSERT", "UPDATE"),
    *_on("outbox_lane", "SELECT", "INSERT", "UPDATE"),
    *_on("outbox_stream", "SELECT"),
    *_on("relay_worker", "SELECT", "INSERT", "UPDATE", "DELETE"),
    *_on("idempotency", "SELECT", "INSERT", "UPDATE"),
    *_on("audit", "INSERT"),
    *_on("flow", "SELECT", "INSERT", "UPDATE"),
    *_on("outbox_attempt", "SELECT", "INSERT", "UPDATE"),  # MariaDB wants UPDATE to pass over what is there
]
_SAGAS = [
    *_RELAY,
    *(right for right in _ADD if right.privilege == "INSERT"),  # the end of a child tells its parent
    *_on("saga", "SELECT", "INSERT", "UPDATE"),
    *_on("saga_step", "SELECT", "INSERT", "UPDATE"),
    *_on("saga_event", "SELECT", "INSERT", "UPDATE", "DELETE"),  # MariaDB wants UPDATE to pass over what is there
]
_TRANSACTIONS = [
    *_on("schema_version", "SELECT"),
    *_on("twophase", "SELECT", "INSERT", "UPDATE"),
    *_on("twophase_scope", "SELECT", "INSERT", "UPDATE"),  # MariaDB wants UPDATE to pass over what is there
    *_on("inbox", "SELECT", "INSERT"),
    *_ADD,
]
_TABLES = (
    *("schema_version", "outbox", "outbox_delivery", "outbox_receipt", "outbox_lane", "inbox", "idempotency", "audit"),
    *("relay_worker", "outbox_status", "saga", "saga_step", "saga_event"),
    *("twophase", "twophase_scope", "flow", "outbox_attempt", "outbox_stream"),
)
FIRST_COLUMNS = {
    **dict.fromkeys(("twophase", "twophase_scope", "audit"), "id"),
    "schema_version": "version",
    "outbox_delivery": "state",
    "outbox_lane": "queue",
    "inbox": "consumer",
    "idempotency": "scope",
    "relay_worker": "worker",
    "flow": "minute",
}
"""A column that is there for sure, of each table where that is not `position`."""
_LOOK = [right for table in _TABLES for right in _on(table, "SELECT")]

RIGHTS: Mapping[Purpose, Sequence[Right]] = {
    Purpose.PRODUCER: [*_ADD, *_START_SAGA, *_ADD_TO_STREAM],
    Purpose.SQL_PRODUCER: _ADD_IN_SQL,
    Purpose.RELAY: _RELAY,
    Purpose.CDC: [*_on("outbox_delivery", "INSERT"), *_on("outbox_stream", "UPDATE")],
    Purpose.CONSUMER: [
        *_RELAY,
        *_on("inbox", "SELECT", "INSERT"),
        *(right for right in _ADD if right.privilege == "INSERT"),
    ],
    Purpose.SAGAS: _SAGAS,
    Purpose.TRANSACTIONS: _TRANSACTIONS,
    Purpose.LEDGER: [*_on("schema_version", "SELECT"), *_on("idempotency", "SELECT", "INSERT", "UPDATE", "DELETE")],
    Purpose.DASHBOARD: _LOOK,
    # To lock rows that are to be removed, PostgreSQL wants UPDATE too.
    Purpose.OPERATOR: [
        *_LOOK,
        *_on("outbox", "INSERT", "DELETE"),
        *_on("outbox_delivery", "INSERT", "UPDATE", "DELETE"),
        *_on("outbox_receipt", "INSERT", "UPDATE", "DELETE"),
        *_on("outbox_lane", "UPDATE"),
        *_on("outbox_stream", "UPDATE"),
        *_on("inbox", "UPDATE", "DELETE"),
        *_on("idempotency", "INSERT", "UPDATE", "DELETE"),
        *_on("audit", "INSERT", "DELETE"),
        *_on("saga", "INSERT", "UPDATE", "DELETE"),
        *_on("saga_step", "INSERT", "UPDATE", "DELETE"),
        *_on("saga_event", "INSERT", "DELETE"),
        *_on("twophase", "UPDATE", "DELETE"),
        *_on("flow", "UPDATE", "DELETE"),
        *_on("outbox_attempt", "DELETE"),
    ],
}


EVERYTHING = tuple(purpose for purpose in Purpose if purpose is not Purpose.CDC)
"""What a role gets without a purpose: all but reading the write-ahead log, which holds what every table does."""


def rights_for(names: Names, purpose: Purpose) -> list[Right]:
    """What a purpose needs on this database. Only PostgreSQL has a stream."""
    rights = RIGHTS[purpose]
    if names.dialect == "postgresql":
        return list(rights)
    return [right for right in rights if right.table != "outbox_stream" and right.columns != _STREAMED]


def grant_statements(names: Names, role: str, purposes: Iterable[Purpose] = EVERYTHING) -> list[str]:
    """The statements that grant a role what these purposes need, and no more. Raises `InvalidSetting`."""
    if names.dialect == "sqlite":
        raise InvalidSetting("SQLite has no roles: anyone who can open the file can do everything")
    wanted = list(purposes)
    if Purpose.CDC in wanted and names.dialect != "postgresql":
        raise InvalidSetting(f"cdc reads PostgreSQL's write-ahead log, and this is {names.dialect}: leave it out")
    to = _quoted_role(names, role)
    statements: list[str] = []
    if names.dialect == "postgresql":
        statements += [f"GRANT USAGE ON SCHEMA {names.quoted(names.schema or 'public')} TO {to}"]
        if {Purpose.SQL_PRODUCER, Purpose.PRODUCER} & set(wanted):
            statements += [f"GRANT EXECUTE ON FUNCTION {names.table('add')} TO {to}"]
        if Purpose.CDC in wanted:
            statements += [f"ALTER ROLE {to} REPLICATION"]
        wanted = [purpose for purpose in wanted if purpose is not Purpose.SQL_PRODUCER]
    tables: dict[str, list[Right]] = {}
    for right in _merged(right for purpose in wanted for right in rights_for(names, purpose)):
        tables.setdefault(right.table, []).append(right)
    for table, rights in tables.items():
        statements.append(f"GRANT {', '.join(map(_spelled, rights))} ON {names.table(table)} TO {to}")
    return statements


def check_privileges(names: Names, purpose: Purpose) -> Steps[None]:
    """Raise `PrivilegeMissing` unless the connection's user can do everything that the purpose needs. Only reads."""
    missing = yield from missing_rights(names, purpose)
    if missing:
        raise PrivilegeMissing(
            f"the database's user lacks privileges: {', '.join(missing)}: have its owner run what "
            f"`postroom schema --grants ROLE --for {purpose}` prints"
        )


def missing_rights(names: Names, purpose: Purpose) -> Steps[list[str]]:
    """The privileges that the connection's user lacks for a purpose, in words. Outside of a transaction."""
    if names.dialect == "sqlite":
        return []
    rights = rights_for(names, purpose)
    if names.dialect == "postgresql":
        schema = names.schema or "public"
        usage = yield Query("SELECT has_schema_privilege(CAST(:schema AS text), 'USAGE')", {"schema": schema})
        if not usage.rows[0][0]:
            return [f"USAGE on schema {schema}"]
        asked = " UNION ALL ".join(f"SELECT {n}, {_has(names, one)}" for n, one in enumerate(rights))
        found = yield Query(asked)
        return [str(rights[n]) for n, has in found.rows if not has]
    missing: list[str] = []
    for right in rights:
        missing += [] if (yield from _may(names, right)) else [str(right)]
    return missing


def _has(names: Names, right: Right) -> str:
    table = names.table(right.table)
    if not right.columns:
        return f"has_table_privilege('{table}', '{right.privilege}')"
    return " AND ".join(f"has_column_privilege('{table}', '{name}', '{right.privilege}')" for name in right.columns)


def _may(names: Names, right: Right) -> Steps[bool]:
    """Try the privilege on no row: MySQL has no function to ask, and with roles its grant tables are hard to read."""
    table = names.table(right.table)
    columns = right.columns or (FIRST_COLUMNS.get(right.table, "position"),)
    listed = ", ".join(columns)
    nothing = ", ".join(["NULL"] * len(columns))
    trial = {
        "SELECT": f"SELECT {listed} FROM {table} WHERE 1 = 0",
        "INSERT": f"INSERT INTO {table} ({listed}) SELECT {nothing} FROM (SELECT 1 AS one) nobody WHERE 1 = 0",
        "UPDATE": f"UPDATE {table} SET {columns[0]} = NULL WHERE 1 = 0",
        "DELETE": f"DELETE FROM {table} WHERE 1 = 0",
    }
    try:
        yield Query(trial[right.privilege])
    except Exception as error:
        if is_lost_connection(error):
            raise
        return not is_denied(error)  # any other error comes after the privilege check
    return True


def _merged(rights: Iterable[Right]) -> list[Right]:
    """Each privilege once: on the whole table, or on all columns that are needed."""
    merged: dict[tuple[str, str], Right] = {}
    for right in rights:
        known = merged.get((right.table, right.privilege))
        columns = right.columns
        if known is not None:
            whole = not known.columns or not columns
            columns = () if whole else tuple(dict.fromkeys((*known.columns, *columns)))
        merged[right.table, right.privilege] = right._replace(columns=columns)
    return list(merged.values())


def _spelled(right: Right) -> str:
    return f"{right.privilege} ({', '.join(right.columns)})" if right.columns else right.privilege


def _quoted_role(names: Names, role: str) -> str:
    """A role's name as SQL; on MySQL it may include the host: ``app@10.0.0.%``."""
    if not role or "\0" in role:
        raise InvalidSetting(f"{role!r} is not the name of a role")
    if names.dialect == "postgresql":
        return '"{}"'.format(role.replace('"', '""'))
    user, at, host = role.rpartition("@")
    parts = [user, host] if at else [role]
    return "@".join("'{}'".format(part.replace("\\", "\\\\").replace("'", "''")) for part in parts)
