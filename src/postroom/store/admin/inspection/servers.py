"""Choose what to ask a database by its dialect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.store.admin.inspection.mysql import MySQLServer
from postroom.store.admin.inspection.postgresql import PostgreSQLServer
from postroom.store.admin.inspection.sqlite import SQLiteServer

if TYPE_CHECKING:
    from postroom.store.admin.inspection.server import Server

SERVERS: dict[str, type[Server]] = {
    "postgresql": PostgreSQLServer,
    "mysql": MySQLServer,
    "sqlite": SQLiteServer,
}
