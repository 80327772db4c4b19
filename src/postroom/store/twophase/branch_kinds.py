"""Which branches each database has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.store.twophase.mysql import MySQLBranches
from postroom.store.twophase.postgresql import PostgreSQLBranches
from postroom.store.twophase.sqlite import SQLiteBranches

if TYPE_CHECKING:
    from postroom.store.twophase.branches import Branches

BRANCHES: dict[str, type[Branches]] = {
    "postgresql": PostgreSQLBranches,
    "mysql": MySQLBranches,
    "sqlite": SQLiteBranches,
}
