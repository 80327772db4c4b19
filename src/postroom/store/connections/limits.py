"""For how long our own connections wait, where a caller would rather have an error than an answer that comes late."""

from __future__ import annotations

import math
import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

_LEAST = 1
"""Second: MySQL knows no shorter ones."""


class Limits(NamedTuple):
    """Seconds: for a lock that another transaction holds, and for a server to answer at all."""

    lock: float
    answer: float

    def session(self, dialect: str) -> str:
        """A statement that tells a session how long to wait for locks."""
        match dialect:
            case "postgresql":
                return f"SET lock_timeout = {self.milliseconds}"
            case "mysql":
                return f"SET SESSION innodb_lock_wait_timeout = {max(_LEAST, math.ceil(self.lock))}"
            case _:
                return f"PRAGMA busy_timeout = {self.milliseconds}"

    def options(self, driver: str) -> Mapping[str, Any]:
        """What a blocking driver is told when it connects. An async one is not: who waits for it just stops."""
        seconds = max(_LEAST, math.ceil(self.answer))
        match driver:
            case "psycopg" | "psycopg2":  # for an answer to a statement they wait for ever: see `break_off`
                return {"connect_timeout": seconds}
            case "pymysql":
                return dict.fromkeys(("connect_timeout", "read_timeout", "write_timeout"), seconds)
            case _:
                return {}

    @property
    def milliseconds(self) -> int:
        """The limit for locks, as PostgreSQL and SQLite have it."""
        return math.ceil(self.lock * 1000)


def break_off(connection: Any) -> None:
    """End a blocking connection from another thread: who waits for its server gets an error at once.

    For drivers that tell the number of their socket, as psycopg and psycopg2 do; others are left alone.
    """
    with suppress(Exception), socket.socket(fileno=os.dup(connection.fileno())) as line:  # it may be closed by now
        line.shutdown(socket.SHUT_RDWR)
