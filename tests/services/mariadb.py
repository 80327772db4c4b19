"""MariaDB, from Debian's packages."""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING

import pymysql

from tests.services.packages import require_programs
from tests.services.service import DatabaseService

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# The core packages hold the programs alone: nothing is configured, no service is started.
PACKAGES = ("mariadb-server-core", "mariadb-client-core")
# What a crash of the machine would lose, tests do not mind; a killed server loses nothing.
NOT_DURABLE = ("--innodb-flush-log-at-trx-commit=2", "--skip-innodb-doublewrite", "--debug-no-sync")
GONE = 1094
"""The error of a KILL whose session has ended by itself."""


class MariaDB(DatabaseService):
    """A MariaDB server with its default isolation, REPEATABLE READ; user `root`, no password."""

    title = "MariaDB"

    def __init__(self, *, durable: bool = False) -> None:
        super().__init__()
        self._durable = durable
        self._programs: dict[str, Path] = {}

    def require(self) -> None:
        self._programs = require_programs("mariadbd", "mariadb-install-db", packages=PACKAGES)

    def prepare(self) -> None:
        options = [*self._as_root(), f"--datadir={self._data}", "--auth-root-authentication-method=normal"]
        # A server that starts removes all temporary tables in its tmpdir, also those of another one that starts there.
        options += ["--skip-test-db", f"--tmpdir={self.directory}"]
        self.run(self._programs["mariadb-install-db"], "--no-defaults", *options)

    def command(self) -> list[str | Path]:
        return [
            *(self._programs["mariadbd"], "--no-defaults", *self._as_root(), f"--datadir={self._data}"),
            *("--bind-address=127.0.0.1", f"--port={self.port}", f"--socket={self._socket}"),
            *(f"--pid-file={self.directory / 'pid'}", f"--tmpdir={self.directory}"),
            *("--max-connections=200", "--skip-name-resolve", "--character-set-server=utf8mb4"),
            "--default-time-zone=+05:30",  # not UTC, so that code which relies on the server's time zone shows
            *(() if self._durable else NOT_DURABLE),
        ]

    def ping(self) -> None:
        self.run_statements(None, ["SELECT 1"])

    def url(self, database: str) -> str:
        return f"mysql://root@127.0.0.1:{self.port}/{database}"

    def socket_url(self, database: str) -> str:
        return f"mysql://root@localhost/{database}?unix_socket={self._socket}"

    def create_database(self, name: str) -> None:
        self.run_statements(None, [f"CREATE DATABASE `{name}`"])

    def drop_database(self, name: str) -> None:
        # An open transaction on one of its tables would hold up the DROP for ever.
        with closing(self._connect()) as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT id FROM information_schema.processlist WHERE db = '{name}'")
            for (session,) in cursor.fetchall():
                try:
                    cursor.execute(f"KILL {session}")
                except pymysql.OperationalError as error:
                    if error.args[0] != GONE:
                        raise
            cursor.execute(f"DROP DATABASE IF EXISTS `{name}`")

    def run_statements(self, database: str | None, statements: Sequence[str]) -> tuple[tuple[object, ...], ...]:
        """Run statements in a database; returns the rows of the last one."""
        with closing(self._connect(database)) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            connection.commit()
            return cursor.fetchall()

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    @property
    def _socket(self) -> Path:
        return self.directory / "socket"

    def _as_root(self) -> tuple[str, ...]:
        return ("--user=root",) if os.geteuid() == 0 else ()

    def _connect(self, database: str | None = None) -> pymysql.Connection[pymysql.cursors.Cursor]:
        # Without `ssl_disabled`, every connection reads the certificates of the whole world first.
        return pymysql.connect(
            host="127.0.0.1", port=self.port, user="root", database=database, connect_timeout=5, ssl_disabled=True
        )
