"""The test servers themselves: they answer, they restart on the same data, and they never outlive a run."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import psycopg
import pymysql
import pytest

from tests.contract.schema_support import assert_complete, engine_for, names_for
from tests.services.databases import KINDS, need
from tests.services.mariadb import MariaDB
from tests.services.pgbouncer import PgBouncer
from tests.services.postgresql import PostgreSQL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import FreshDatabase

ROOT = Path(__file__).parents[2]
PATIENCE = 60

# Stands for a test run: starts a server, says which processes and directory it has, waits to be killed.
TEST_RUN = """
import signal, sys, psutil
from tests.services import registry
signal.signal(signal.SIGINT, signal.default_int_handler)  # a run in the background has it ignored
from tests.services.{module} import {kind}
server = registry.get({kind})
family = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
print(server.directory, *(process.pid for process in family), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def own_postgresql() -> Iterator[PostgreSQL]:
    need(PostgreSQL)
    with closing(PostgreSQL()) as server:
        server.start()
        yield server


@pytest.fixture
def own_mariadb() -> Iterator[MariaDB]:
    need(MariaDB)
    with closing(MariaDB()) as server:
        server.start()
        yield server


def test_postgresql_answers_over_tcp_and_over_its_socket(postgresql_server: PostgreSQL) -> None:
    for url in (postgresql_server.url("postgres"), postgresql_server.socket_url("postgres")):
        with psycopg.connect(url) as connection:
            row = connection.execute(
                "SELECT current_setting('max_prepared_transactions'), current_setting('wal_level'),"
                " inet_server_addr() IS NULL"
            ).fetchone()
        assert row == ("200", "logical", "host=" in url)


def test_mariadb_answers_over_tcp_and_over_its_socket(mariadb_server: MariaDB) -> None:
    socket = mariadb_server.socket_url("mysql").partition("unix_socket=")[2]
    for address in ({"host": "127.0.0.1", "port": mariadb_server.port}, {"unix_socket": socket}):
        with (
            closing(pymysql.connect(user="root", **address)) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute("SELECT @@tx_isolation")
            assert cursor.fetchone() == ("REPEATABLE-READ",)


@pytest.mark.parametrize("kind", KINDS)
def test_each_fresh_database_is_another_one(kind: str, fresh_database: FreshDatabase) -> None:
    assert fresh_database(kind) != fresh_database(kind)


@pytest.mark.parametrize("kill", [False, True])
def test_postgresql_keeps_port_and_data_over_a_restart(own_postgresql: PostgreSQL, *, kill: bool) -> None:
    with psycopg.connect(own_postgresql.url("postgres")) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS number")
    own_postgresql.stop(kill=kill)
    with pytest.raises(psycopg.OperationalError):
        own_postgresql.ping()
    own_postgresql.start()
    with psycopg.connect(own_postgresql.url("postgres")) as connection:
        assert connection.execute("SELECT number FROM kept").fetchone() == (7,)


@pytest.mark.parametrize("kind", KINDS)
def test_a_ready_database_has_all_that_init_makes(kind: str, ready_database: FreshDatabase) -> None:
    url = ready_database(kind)
    with engine_for(url) as engine:
        assert_complete(engine, names_for(url))


@pytest.mark.parametrize("kill", [False, True])
def test_mariadb_keeps_port_and_data_over_a_restart(own_mariadb: MariaDB, *, kill: bool) -> None:
    own_mariadb.create_database("shop")
    own_mariadb.run_statements(None, ["CREATE TABLE shop.kept AS SELECT 7 AS number"])
    own_mariadb.stop(kill=kill)
    with pytest.raises(pymysql.OperationalError):
        own_mariadb.ping()
    own_mariadb.start()
    assert own_mariadb.run_statements(None, ["SELECT number FROM shop.kept"]) == ((7,),)


def test_a_database_is_dropped_although_a_transaction_is_open_on_it(
    postgresql_server: PostgreSQL, mariadb_server: MariaDB
) -> None:
    postgresql_server.create_database("busy")
    with closing(psycopg.connect(postgresql_server.url("busy"))) as session:
        session.execute("CREATE TABLE held (number int)")
        postgresql_server.drop_database("busy")
    mariadb_server.create_database("busy")
    mariadb_server.run_statements(None, ["CREATE TABLE busy.held (number int)"])
    with closing(pymysql.connect(host="127.0.0.1", port=mariadb_server.port, user="root", database="busy")) as other:
        with other.cursor() as cursor:
            cursor.execute("INSERT INTO held VALUES (1)")
        mariadb_server.drop_database("busy")


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("kind", [PostgreSQL, MariaDB, PgBouncer])
def test_a_run_that_is_killed_leaves_no_server_and_no_files(
    kind: type[PostgreSQL | MariaDB | PgBouncer], ending: signal.Signals
) -> None:
    need(kind)
    program = TEST_RUN.format(kind=kind.__name__, module=kind.__module__.rpartition(".")[2])
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as run:
        assert run.stdout
        directory, *pids = run.stdout.readline().split()
        # Some of the children are short-lived sessions and may be gone already.
        servers = [psutil.Process(int(pid)) for pid in pids if psutil.pid_exists(int(pid))]
        assert servers
        run.send_signal(ending)
        run.wait(PATIENCE)
        _, alive = psutil.wait_procs(servers, timeout=PATIENCE)
    assert not alive
    assert_vanishes(Path(directory))


def assert_vanishes(directory: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while directory.exists():
        assert time.monotonic() < deadline, f"{directory} is still there"
        time.sleep(0.05)
