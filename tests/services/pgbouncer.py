"""PgBouncer, from Debian's package, in front of a PostgreSQL server."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
from typing import TYPE_CHECKING

import psycopg

from tests.services import registry
from tests.services.packages import require_programs
from tests.services.postgresql import PostgreSQL
from tests.services.service import Service, Unavailable

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS = """
[databases]
* = host=127.0.0.1 port={server} user=postgres

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
# Few sessions, and each transaction on the next: what one leaves behind reaches another at once.
default_pool_size = {sessions}
server_round_robin = 1
max_client_conn = 200
"""


class PgBouncer(Service):
    """A pooler in transaction mode before the run's PostgreSQL, or a given one; any user, no password."""

    title = "PgBouncer"
    stop_signal = signal.SIGTERM  # "immediate": SIGINT would wait for the clients
    sessions = 4

    def __init__(self, server: PostgreSQL | None = None) -> None:
        super().__init__()
        self._server = server
        self._program: Path | None = None
        # PgBouncer refuses to run as root.
        self.user = "nobody" if os.geteuid() == 0 else None

    def require(self) -> None:
        self._program = require_programs("pgbouncer", packages=["pgbouncer"])["pgbouncer"]
        if self._server is None:
            self._server = registry.get(PostgreSQL)
        try:
            pwd.getpwnam(self.user or "root")
        except KeyError:
            raise Unavailable(f"PgBouncer does not run as root, and there is no user {self.user!r}") from None

    def prepare(self) -> None:
        assert self._server
        text = SETTINGS.format(server=self._server.port, port=self.port, sessions=self.sessions)
        self._settings.write_text(text)
        if self.user is not None:
            shutil.chown(self.directory, self.user)
            shutil.chown(self._settings, self.user)

    def command(self) -> list[str | Path]:
        assert self._program
        return [self._program, self._settings]

    def ping(self) -> None:
        with psycopg.connect(self.url("postgres"), connect_timeout=5) as connection:
            connection.execute("SELECT 1")

    def url(self, database: str) -> str:
        """Return the database's URL through the pooler."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    @property
    def _settings(self) -> Path:
        return self.directory / "pgbouncer.ini"
