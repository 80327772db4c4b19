"""For how long our own connections wait, as each database and each driver is told."""

from __future__ import annotations

import socket

import pytest

from postroom.store.connections.limits import Limits, break_off
from postroom.store.connections.pooled import PooledSession
from postroom.store.sql.steps import Query

LIMITS = Limits(lock=0.25, answer=2.5)


@pytest.mark.parametrize(
    ("dialect", "statement"),
    [
        ("postgresql", "SET lock_timeout = 250"),
        ("mysql", "SET SESSION innodb_lock_wait_timeout = 1"),
        ("sqlite", "PRAGMA busy_timeout = 250"),
    ],
)
def test_each_database_has_its_own_words_for_how_long_to_wait_for_a_lock(dialect: str, statement: str) -> None:
    assert LIMITS.session(dialect) == statement


def test_behind_a_pooler_each_transaction_brings_the_limit_along() -> None:
    begin = next(PooledSession(LIMITS).steps(Query("SELECT 1")))
    assert begin.text.endswith("; SET LOCAL lock_timeout = 250")
    assert "lock_timeout" not in next(PooledSession().steps(Query("SELECT 1"))).text


def test_blocking_drivers_are_told_when_to_stop_waiting_and_others_are_not() -> None:
    assert LIMITS.options("psycopg") == LIMITS.options("psycopg2") == {"connect_timeout": 3}
    assert LIMITS.options("pymysql") == {"connect_timeout": 3, "read_timeout": 3, "write_timeout": 3}
    assert LIMITS.options("asyncpg") == LIMITS.options("pysqlite") == {}


def test_who_waits_on_a_connection_that_is_broken_off_stops_waiting() -> None:
    near, far = socket.socketpair()
    with near, far:
        near.settimeout(10)
        break_off(near)
        assert near.recv(1) == b""
    break_off(near)  # closed, which is no error
    break_off(object())
