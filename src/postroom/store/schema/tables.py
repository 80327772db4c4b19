"""The tables as SQLAlchemy MetaData: `postroom init` creates them, and a user's Alembic can autogenerate from it.

Why the delivery row looks as it does: no index and no index condition uses a column that a claim changes, and all
columns are NOT NULL with defaults. So a claim's UPDATE is HOT on PostgreSQL and never makes the row grow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import CHAR, BigInteger, Boolean, Column, Index, Integer, MetaData, SmallInteger, String, Table, text

from postroom.rules.ordering import Order
from postroom.store.schema.columns import TYPES, Types, moment, number, numbered, words
from postroom.store.schema.guards import constraints
from postroom.store.schema.saga_tables import saga, saga_event, saga_step
from postroom.store.schema.stream_tables import stream
from postroom.store.schema.twophase_tables import twophase, twophase_scope
from postroom.store.schema.watching_tables import attempt, flow
from postroom.store.sql.operations import DEFAULT_QUEUE
from postroom.store.sql.states import comes_due, holds_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.store.sql.names import Names

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


def metadata(names: Names) -> MetaData:
    """All tables with their indexes, for the names' database, schema and prefix.

    Without the view, PostgreSQL's functions, triggers, storage parameters and first rows: see `ddl`.
    """
    tables = MetaData(schema=names.schema)
    types = TYPES[names.dialect]
    for define in [*_TABLES, *_STREAM_TABLES] if names.dialect == "postgresql" else _TABLES:
        table = define(tables, names, types)
        table.dialect_kwargs.update(_MYSQL_OPTIONS if names.dialect == "mysql" else {})
    return tables


def _outbox(tables: MetaData, names: Names, types: Types) -> Table:
    given = text("idempotency_key IS NOT NULL")
    # Without a delivery: relays read it from the write-ahead log, which only PostgreSQL lets them.
    streamed = [Column("streamed", Boolean, nullable=False, server_default=text("false"))]
    return Table(
        names.bare("outbox"),
        tables,
        numbered("position", types),
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
        moment("created_at", types, types.now),
        Column("expires_at", types.moment),
        *(streamed if names.dialect == "postgresql" else ()),
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


def _delivery(tables: MetaData, names: Names, types: Types) -> Table:
    return Table(
        names.bare("outbox_delivery"),
        tables,
        # The primary key serves every claim of ready rows; positions alone are unique too.
        Column("state", SmallInteger, primary_key=True, autoincrement=False, server_default=text("0")),
        Column("queue", types.queue, primary_key=True, server_default=text(f"'{DEFAULT_QUEUE}'")),
        Column("lane", SmallInteger, primary_key=True, autoincrement=False, server_default=text("(-1)")),
        Column("position", types.position, primary_key=True, autoincrement=False),
        Column("key_hash", BigInteger),
        number("size", Integer),
        moment("due", types, types.never),
        moment("leased_until", types, types.never),
        number("token", BigInteger),
        words("owner", 255),
        number("attempts", Integer),
        number("claims", Integer),
        moment("failed_at", types, types.never),
        words("error_code", 64),
        words("error_message", 512),
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


def _receipt(tables: MetaData, names: Names, types: Types) -> Table:
    deduplicated = text("dedup IS NOT NULL")
    return Table(
        names.bare("outbox_receipt"),
        tables,
        Column("position", types.position, primary_key=True, autoincrement=False),
        Column("outcome", String(16), nullable=False),
        moment("sent_at", types, types.now),
        number("attempts", Integer),
        Column("answer", types.long_text),
        Column("dedup", BigInteger),
        Index(names.bare("outbox_receipt_dedup"), "dedup", postgresql_where=deduplicated, sqlite_where=deduplicated),
    )


def _lane(tables: MetaData, names: Names, types: Types) -> Table:
    return Table(
        names.bare("outbox_lane"),
        tables,
        Column("queue", types.queue, primary_key=True),
        Column("lane", SmallInteger, primary_key=True, autoincrement=False),
        number("token", BigInteger),
        words("owner", 255),
        moment("leased_until", types, types.never),
        number("read_to", BigInteger),
        sqlite_with_rowid=False,
    )


def _inbox(tables: MetaData, names: Names, types: Types) -> Table:
    return Table(
        names.bare("inbox"),
        tables,
        Column("consumer", String(255), primary_key=True),
        Column("message_id", String(255), primary_key=True),
        moment("received_at", types, types.now),
        sqlite_with_rowid=False,
    )


def _idempotency(tables: MetaData, names: Names, types: Types) -> Table:
    return Table(
        names.bare("idempotency"),
        tables,
        Column("scope", String(255), primary_key=True),
        Column("idempotency_key", String(255), primary_key=True),
        Column("digest", CHAR(64), nullable=False),
        Column("status", String(16), nullable=False, server_default=text("'in_progress'")),
        number("token", BigInteger),
        moment("leased_until", types, types.never),
        Column("http_status", SmallInteger),
        Column("response_headers", types.json),
        Column("response_body", types.bytes),
        moment("created_at", types, types.now),
        moment("finished_at", types, types.never),
        moment("expires_at", types, types.never),
    )


def _audit(tables: MetaData, names: Names, types: Types) -> Table:
    return Table(
        names.bare("audit"),
        tables,
        numbered("id", types),
        moment("at", types, types.now),
        Column("action", String(64), nullable=False),
        Column("position", types.position),
        Column("message_id", String(36)),
        words("actor", 255),
        Column("details", types.long_text),
        Index(names.bare("audit_position"), "position"),
        sqlite_autoincrement=True,
    )


def _worker(tables: MetaData, names: Names, types: Types) -> Table:
    return Table(
        names.bare("relay_worker"),
        tables,
        Column("worker", String(255), primary_key=True),
        Column("queue", types.queue, primary_key=True),
        words("host", 255),
        number("pid", Integer),
        number("lanes", Integer),
        number("in_flight", Integer),
        words("broker_down", 512),
        moment("started_at", types, types.now),
        moment("seen_at", types, types.now),
    )


def _schema_version(tables: MetaData, names: Names, types: Types) -> Table:
    return Table(
        names.bare("schema_version"),
        tables,
        Column("version", Integer, primary_key=True, autoincrement=False),
        moment("applied_at", types, types.now),
    )


_TABLES: list[Callable[[MetaData, Names, Types], Table]] = [
    _schema_version,
    _outbox,
    _delivery,
    _receipt,
    _lane,
    _inbox,
    _idempotency,
    _audit,
    _worker,
    saga,
    saga_step,
    saga_event,
    twophase,
    twophase_scope,
    flow,
    attempt,
]
_STREAM_TABLES = [stream]
