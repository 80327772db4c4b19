"""Time limits for our own connections, where an error is better than a late answer."""

from __future__ import annotations

import math
import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

_LEAST = 1
"""Second: MySQL has no shorter ones."""


class Limits(NamedTuple):
    """Seconds to wait for a lock that another transaction holds, and for a server to answer at all."""

    lock: float
    answer: float

    def session(self, dialect: str) -> str:
        """The statement that sets a session's lock timeout."""
        match dialect:
            case "postgresql":
                return f"SET lock_timeout = {self.milliseconds}"
            case "mysql":
                return f"SET SESSION innodb_lock_wait_timeout = {max(_LEAST, math.ceil(self.lock))}"
            case _:
                return f"PRAGMA busy_timeout = {self.milliseconds}"

    def options(self, driver: str) -> Mapping[str, Any]:
        """Connect options for a blocking driver. An async one needs none: its caller simply stops waiting."""
        seconds = max(_LEAST, math.ceil(self.answer))
        match driver:
            case "psycopg" | "psycopg2":  # they wait for a statement's answer for ever: see `break_off`
                return {"connect_timeout": seconds}
            case "pymysql":
                return dict.fromkeys(("connect_timeout", "read_timeout", "write_timeout"), seconds)
            case _:
                return {}

    @property
    def milliseconds(self) -> int:
        """The lock timeout for PostgreSQL and SQLite."""
        return math.ceil(self.lock * 1000)


def break_off(connection: Any) -> None:
    """Close a driver's connection for good, from any thread: whoever waits for its server gets an error at once.

    A blocking one is only shut down, and an async one stops its transport. Does not wait, and may be repeated.
    """
    with suppress(Exception):  # it may already be closed
        if hasattr(connection, "get_server_pid"):  # asyncpg
            connection.terminate()
        elif hasattr(connection, "fileno"):  # psycopg and psycopg2
            _shut_down(connection.fileno())
        elif hasattr(connection, "get_transaction_status"):  # asyncmy and aiomysql
            connection.close()
        elif hasattr(connection, "_sock"):  # PyMySQL
            _shut_down(connection._sock.fileno())  # noqa: SLF001 - it has no other way
        elif hasattr(connection, "interrupt"):  # SQLite has no server: stop what is running
            getattr(connection, "_conn", connection).interrupt()  # below aiosqlite


def _shut_down(number: int) -> None:
    with socket.socket(fileno=os.dup(number)) as line:
        line.shutdown(socket.SHUT_RDWR)
