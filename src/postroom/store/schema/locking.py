"""Lock PostgreSQL's hot tables for an upgrade, while producers and relays work on them."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from sqlalchemy import inspect, text
from sqlalchemy.exc import DBAPIError

from postroom.errors import SchemaError
from postroom.store.sql.db_errors import is_lock_timeout

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from postroom.store.sql.names import Names

HOT = ("outbox", "outbox_delivery")
_WAITS = "300ms"
"""Less than `deadlock_timeout`, and short enough for those who queue behind."""
_PAUSES = 0.2


def lock_hot_tables(connection: Connection, names: Names, seconds: float) -> None:
    """Lock all of them until the transaction ends, or none: who waits for one must not have another.

    A relay's statement has locked the deliveries when it comes to the messages, a producer's the other way around. So
    whoever alters one after the other ends in a deadlock. And while one waits behind a transaction that stays open, all
    others wait behind it. So wait for a moment only, and try again. Raises `SchemaError` after so many seconds.
    """
    if names.dialect != "postgresql":
        return
    there = inspect(connection)
    tables = [names.table(table) for table in HOT if there.has_table(names.bare(table), schema=names.schema)]
    deadline = monotonic() + seconds
    while tables and not _locks(connection, tables):
        if monotonic() > deadline:
            raise SchemaError(
                f"other transactions have kept {' or '.join(tables)} locked for {seconds:.0f} seconds: end those that "
                "stay open (pg_stat_activity lists them), and try again"
            )
        connection.execute(text(f"SELECT pg_sleep({_PAUSES})"))


def _locks(connection: Connection, tables: list[str]) -> bool:
    setting = text("SELECT set_config('lock_timeout', :value, true)")
    before = connection.scalar(text("SELECT current_setting('lock_timeout')"))
    try:
        with connection.begin_nested():
            connection.execute(setting, {"value": _WAITS})
            connection.exec_driver_sql(f"LOCK TABLE {', '.join(tables)} IN ACCESS EXCLUSIVE MODE")
            connection.execute(setting, {"value": before})
    except DBAPIError as error:
        if not is_lock_timeout(error):
            raise
        return False
    return True
