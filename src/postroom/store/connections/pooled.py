"""Sessions behind a pooler, such as PgBouncer in transaction mode: each transaction may run in another server session.

Settings made on a session would leak to other clients. So nothing is set on sessions: each transaction brings its
settings along, a statement outside of a transaction gets one of its own, and no prepared statement outlives its
transaction.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from postroom.store.sql.dialect import PostgreSQL
from postroom.store.sql.steps import Query, Result, Steps

if TYPE_CHECKING:
    from collections.abc import Mapping

    from postroom.store.connections.limits import Limits

SETTINGS = {
    # The tables' sizes swing between zero and millions, which misleads the planner.
    "enable_seqscan": "'off'",
    "enable_bitmapscan": "'off'",
    "enable_hashjoin": "'off'",
    "enable_mergejoin": "'off'",
    # Planning takes longer than a small claim, and the settings above keep the plan right.
    "plan_cache_mode": "'force_generic_plan'",
    # A claim's commit flushes what producers committed asynchronously: nothing is sent that a crash could undo.
    "synchronous_commit": "coalesce(nullif(current_setting('synchronous_commit'), 'off'), 'on')",
}
"""The settings of our PostgreSQL sessions, as SQL expressions."""


def settings(*, local: bool) -> str:
    """The statement that applies the settings to the transaction or to the session."""
    each = (f"set_config('{name}', {value}, {str(local).lower()})" for name, value in SETTINGS.items())
    return f"SELECT {', '.join(each)}"


UNPREPARED: dict[str, Mapping[str, Any]] = {
    # `str` gives a statement the name '': an unnamed statement lives only while it runs.
    "asyncpg": {"statement_cache_size": 0, "prepared_statement_cache_size": 0, "prepared_statement_name_func": str},
    "psycopg": {"prepare_threshold": None},
    "psycopg2": {},
}
"""For each driver: the options of a connection that keeps no prepared statements."""

_BEGIN = PostgreSQL.begin
_ENDS = {"COMMIT", "ROLLBACK"}


def is_direct(connection: Any) -> bool:
    """Whether a new connection, a driver's or SQLAlchemy's, leads straight to the session that it was opened with."""
    driver = getattr(connection, "driver_connection", connection)
    if hasattr(driver, "get_server_pid"):  # asyncpg: ask it directly, because SQLAlchemy would prepare the query
        counted: str = connection.run_async(lambda asyncpg: asyncpg.execute(same_session(asyncpg.get_server_pid())))
        return counted == ONE_ROW
    cursor = connection.cursor()
    cursor.execute(same_session(driver.info.backend_pid))
    answer = cursor.fetchone()
    cursor.close()
    connection.rollback()
    return answer is not None


async def ais_direct(connection: Any) -> bool:
    """`is_direct` for an async driver's own connection."""
    if hasattr(connection, "get_server_pid"):  # asyncpg: not by a query that it would prepare
        counted: str = await connection.execute(same_session(connection.get_server_pid()))
        return counted == ONE_ROW
    found = await connection.execute(same_session(connection.info.backend_pid))
    return await found.fetchone() is not None


def keep_nothing_behind_a_pooler(engine: Any) -> None:
    """Have a PostgreSQL engine keep no prepared statements once a connection of it goes through a pooler."""
    unprepared: Mapping[str, Any] = {}

    def connect(driver: Any, _record: object, arguments: Any, options: Any) -> Any:
        nonlocal unprepared
        connection = driver.connect(*arguments, **{**options, **unprepared})
        if unprepared or is_direct(connection):
            return connection
        connection.close()
        unprepared = UNPREPARED[engine.dialect.driver]
        return driver.connect(*arguments, **{**options, **unprepared})

    from sqlalchemy import event  # whoever has an engine has loaded it

    event.listen(engine, "do_connect", connect)


ONE_ROW = "SELECT 1"
"""What asyncpg's `execute` returns if one row was found."""


def same_session(pid: int) -> str:
    """A query that returns a row if the session has this process id, and none otherwise.

    The server tells its process id when a client connects, and when asked. A pooler has no session yet when a client
    connects, so it makes up a number; when asked, the real session answers.
    """
    return f"SELECT 1 WHERE pg_backend_pid() = {pid}"


_STARTED = "(extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint"


def same_server(started: int) -> str:
    """A statement that fails unless the server was started at this time, in microseconds since 1970.

    Behind a pooler nobody is disconnected when another server takes over. The query needs no privilege.
    """
    return f"SELECT current_setting('postroom.another_server_answers') WHERE {_STARTED} <> {started}"


class PooledSession:
    """Rewrites the statements of one connection for use behind a pooler."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._begun = False
        self._knows_server = False
        lock = f"; SET LOCAL lock_timeout = {limits.milliseconds}" if limits else ""
        self._begin = Query(f"{_BEGIN}; {settings(local=True)}{lock}", script=True)

    def steps(self, query: Query) -> Steps[Result]:
        """Run one statement, in the open transaction or in one of its own."""
        if query.text == _BEGIN:
            self._begun = True
            return (yield from self._begin_anywhere())
        if query.text in _ENDS:
            self._begun = False
            return (yield query)
        if self._begun:
            return (yield query)
        return (yield from self._alone(query))

    def _begin_anywhere(self) -> Steps[Result]:
        """Begin a transaction on the same server as the first one: another has other positions, or older ones."""
        result = yield self._begin
        if not self._knows_server:
            found = yield Query(f"SELECT {_STARTED}")
            self._begin = Query(f"{self._begin.text}; {same_server(int(found.rows[0][0]))}", script=True)
            self._knows_server = True
        return result

    def _alone(self, query: Query) -> Steps[Result]:
        yield from self._begin_anywhere()
        try:
            result = yield query
        except Exception:
            with suppress(Exception):  # the connection broke: nothing is left to undo
                yield Query("ROLLBACK", script=True)
            raise
        yield Query("COMMIT", script=True)
        return result
