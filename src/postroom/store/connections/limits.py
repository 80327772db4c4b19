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
    """Shut down a blocking connection from another thread: whoever waits for its server gets an error at once.

    Works for drivers that expose their socket, such as psycopg and psycopg2; does nothing for others.
    """
    with suppress(Exception), socket.socket(fileno=os.dup(connection.fileno())) as line:  # it may already be closed
        line.shutdown(socket.SHUT_RDWR)
