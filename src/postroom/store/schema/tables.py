"""The tables as SQLAlchemy MetaData: `postroom init` creates them, and a user's Alembic can autogenerate from it.

Why the delivery row looks as it does: no index and no index condition uses a column that a claim changes, and all
columns are NOT NULL with defaults. So a claim's UPDATE is HOT on PostgreSQL and never makes the row grow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    CHAR,
    TIMESTAMP,
    BigInteger,
    Column,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects import mysql, postgresql

from postroom.rules.ordering import Order
from postroom.store.schema.guards import constraints
from postroom.store.sql.dialect import DIALECTS
from postroom.store.sql.operations import DEFAULT_QUEUE
from postroom.store.sql.states import comes_due, holds_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.sql.elements import TextClause
    from sqlalchemy.types import TypeEngine

    from postroom.store.sql.names import Names

VERSION = 2
"""The version of these tables. Whoever changes them raises it, and adds a step to `upgrades`."""

STORAGE = {
    "fillfactor": 45,
    "autovacuum_vacuum_scale_factor": 0,
    "autovacuum_vacuum_threshold": 1000,
    "autovacuum_vacuum_cost_delay": 0,
}
"""Storage parameters of the delivery table on PostgreSQL: room for HOT updates, and frequent vacuum at full speed."""

_MYSQL_OPTIONS = {
    f"{dialect}_{option}": value
    for dialect in ("mysql", "mariadb")
    for option, value in {"engine": "InnoDB", "default_charset": "utf8mb4", "collate": "utf8mb4_bin"}.items()
}


@dataclass(frozen=True)
class _Types:
    """The columns' types and defaults on one database."""

    position: TypeEngine[Any]
    identity: bool
    """Whether numbered rows need an identity. Elsewhere, a plain integer primary key is enough."""
    uuid: TypeEngine[Any]
    queue: TypeEngine[Any]
    bytes: TypeEngine[Any]
    json: TypeEngine[Any]
    long_text: TypeEngine[Any]
    moment: TypeEngine[Any]
    now: TextClause
    never: TextClause


_TYPES = {
    "postgresql": _Types(
        position=BigInteger(),
        identity=True,
        uuid=postgresql.UUID(as_uuid=False),
        queue=String(64, collation="C"),
        bytes=postgresql.BYTEA(),
        json=postgresql.JSONB(),
        long_text=Text(),
        moment=TIMESTAMP(timezone=True),
        now=text(DIALECTS["postgresql"].now),
        never=text(DIALECTS["postgresql"].never),
    ),
    "mysql": _Types(
        position=BigInteger(),
        identity=False,
        uuid=CHAR(36),
        queue=String(64),
        bytes=mysql.LONGBLOB(),
        json=mysql.LONGTEXT(),
        long_text=mysql.LONGTEXT(),
        moment=mysql.DATETIME(fsp=6),
        now=text(f"({DIALECTS['mysql'].now})"),
        never=text("'1970-01-01 00:00:00.000000'"),  # as the server shows it, or Alembic would see a difference
    ),
    "sqlite": _Types(
        position=Integer(),  # only INTEGER can be AUTOINCREMENT, and it has 64 bits
        identity=False,
        uuid=CHAR(36),
        queue=String(64),
        bytes=LargeBinary(),
        json=Text(),
        long_text=Text(),
        moment=Text(),
        now=text(f"({DIALECTS['sqlite'].now})"),
        never=text(DIALECTS["sqlite"].never),
    ),
}


def metadata(names: Names) -> MetaData:
    """All tables with their indexes, for the names' database, schema and prefix.

    Without the view, PostgreSQL's function, SQLite's triggers, storage parameters and first rows: see `ddl`.
    """
    tables = MetaData(schema=names.schema)
    types = _TYPES[names.dialect]
    for define in _TABLES:
        table = define(tables, names, types)
        table.dialect_kwargs.update(_MYSQL_OPTIONS if names.dialect == "mysql" else {})
    return tables


def _outbox(tables: MetaData, names: Names, types: _Types) -> Table:
    given = text("idempotency_key IS NOT NULL")
    return Table(
        names.bare("outbox"),
        tables,
        _numbered("position", types),
        Column("id", types.uuid, nullable=False),
        Column("queue", types.queue, nullable=False, server_default=text(f"'{DEFAULT_QUEUE}'")),
        Column("topic", String(255), nullable=False),
        Column("type", String(255)),
        Column("aggregate_type", String(255)),
        Column("aggregate_id", String(255)),
        Column("ordering_key", String(255)),
        Column("payload", types.bytes),
        Column("content_type", String(255), nullable=False),
        Column("headers", types.json),
        Column("idempotency_key", String(255)),
        Column("digest", CHAR(64)),
        _moment("created_at", types, types.now),
        Column("expires_at", types.moment),
        Index(names.bare("outbox_id_unique"), "id", unique=True),
        Index(
            names.bare("outbox_idempotency_key_unique"),
            "idempotency_key",
            unique=True,
            postgresql_where=given,
            sqlite_where=given,
        ),
        *constraints(names, "outbox"),
        sqlite_autoincrement=True,  # positions of deleted messages must not be reused
    )


def _delivery(tables: MetaData, names: Names, types: _Types) -> Table:
    return Table(
        names.bare("outbox_delivery"),
        tables,
        # The primary key serves every claim of ready rows; positions alone are unique too.
        Column("state", SmallInteger, primary_key=True, autoincrement=False, server_default=text("0")),
        Column("queue", types.queue, primary_key=True, server_default=text(f"'{DEFAULT_QUEUE}'")),
        Column("lane", SmallInteger, primary_key=True, autoincrement=False, server_default=text("(-1)")),
        Column("position", types.position, primary_key=True, autoincrement=False),
        Column("key_hash", BigInteger),
        _number("size", Integer),
        _moment("due", types, types.never),
        _moment("leased_until", types, types.never),
        _number("token", BigInteger),
        _words("owner", 255),
        _number("attempts", Integer),
        _number("claims", Integer),
        _moment("failed_at", types, types.never),
        _words("error_code", 64),
        _words("error_message", 512),
        *_delivery_indexes(names),
        *constraints(names, "outbox_delivery"),
        sqlite_with_rowid=False,
    )


def _delivery_indexes(names: Names) -> list[Index]:
    """What is due, and what holds a key back. MySQL has no partial indexes: there, the state is one of the columns."""
    due, key = names.bare("outbox_delivery_due"), names.bare("outbox_delivery_key")
    if names.dialect == "mysql":
        return [
            Index(due, "state", "queue", "lane", "due", "position"),
            Index(key, "queue", "key_hash", "state", "position"),
        ]
    not_ready, holding = text(comes_due()), text(holds_key(Order.HOLD))
    return [
        Index(due, "queue", "lane", "due", "position", postgresql_where=not_ready, sqlite_where=not_ready),
        Index(key, "queue", "key_hash", "position", postgresql_where=holding, sqlite_where=holding),
    ]


def _receipt(tables: MetaData, names: Names, types: _Types) -> Table:
    deduplicated = text("dedup IS NOT NULL")
    return Table(
        names.bare("outbox_receipt"),
        tables,
        Column("position", types.position, primary_key=True, autoincrement=False),
        Column("outcome", String(16), nullable=False),
        _moment("sent_at", types, types.now),
        _number("attempts", Integer),
        Column("answer", types.long_text),
        Column("dedup", BigInteger),
        Index(names.bare("outbox_receipt_dedup"), "dedup", postgresql_where=deduplicated, sqlite_where=deduplicated),
    )


def _lane(tables: MetaData, names: Names, types: _Types) -> Table:
    return Table(
        names.bare("outbox_lane"),
        tables,
        Column("queue", types.queue, primary_key=True),
        Column("lane", SmallInteger, primary_key=True, autoincrement=False),
        _number("token", BigInteger),
        _words("owner", 255),
        _moment("leased_until", types, types.never),
        _number("read_to", BigInteger),
        sqlite_with_rowid=False,
    )


def _inbox(tables: MetaData, names: Names, types: _Types) -> Table:
    return Table(
        names.bare("inbox"),
        tables,
        Column("consumer", String(255), primary_key=True),
        Column("message_id", String(255), primary_key=True),
        _moment("received_at", types, types.now),
        sqlite_with_rowid=False,
    )


def _idempotency(tables: MetaData, names: Names, types: _Types) -> Table:
    return Table(
        names.bare("idempotency"),
        tables,
        Column("scope", String(255), primary_key=True),
        Column("idempotency_key", String(255), primary_key=True),
        Column("digest", CHAR(64), nullable=False),
        Column("status", String(16), nullable=False, server_default=text("'in_progress'")),
        _number("token", BigInteger),
        _moment("leased_until", types, types.never),
        Column("http_status", SmallInteger),
        Column("response_headers", types.json),
        Column("response_body", types.bytes),
        _moment("created_at", types, types.now),
        _moment("finished_at", types, types.never),
        _moment("expires_at", types, types.never),
    )


def _audit(tables: MetaData, names: Names, types: _Types) -> Table:
    return Table(
        names.bare("audit"),
        tables,
        _numbered("id", types),
        _moment("at", types, types.now),
        Column("action", String(64), nullable=False),
        Column("position", types.position),
        Column("message_id", String(36)),
        _words("actor", 255),
        Column("details", types.long_text),
        Index(names.bare("audit_position"), "position"),
        sqlite_autoincrement=True,
    )


def _worker(tables: MetaData, names: Names, types: _Types) -> Table:
    return Table(
        names.bare("relay_worker"),
        tables,
        Column("worker", String(255), primary_key=True),
        Column("queue", types.queue, primary_key=True),
        _words("host", 255),
        _number("pid", Integer),
        _number("lanes", Integer),
        _number("in_flight", Integer),
        _words("broker_down", 512),
        _moment("started_at", types, types.now),
        _moment("seen_at", types, types.now),
    )


def _schema_version(tables: MetaData, names: Names, types: _Types) -> Table:
    return Table(
        names.bare("schema_version"),
        tables,
        Column("version", Integer, primary_key=True, autoincrement=False),
        _moment("applied_at", types, types.now),
    )


_TABLES: list[Callable[[MetaData, Names, _Types], Table]] = [
    _schema_version,
    _outbox,
    _delivery,
    _receipt,
    _lane,
    _inbox,
    _idempotency,
    _audit,
    _worker,
]


def _numbered(name: str, types: _Types) -> Column[int]:
    identity = [Identity()] if types.identity else []
    return Column(name, types.position, *identity, primary_key=True, autoincrement=True)


def _moment(name: str, types: _Types, default: TextClause) -> Column[Any]:
    return Column(name, types.moment, nullable=False, server_default=default)


def _number(name: str, kind: type[Integer]) -> Column[int]:
    return Column(name, kind, nullable=False, server_default=text("0"))


def _words(name: str, longest: int) -> Column[str]:
    return Column(name, String(longest), nullable=False, server_default=text("''"))
