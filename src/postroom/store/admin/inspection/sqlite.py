"""What SQLite says about its file, and the system about the disk that it is on."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from postroom.rules.checks import database
from postroom.rules.checks.findings import Finding, ok
from postroom.store.admin.inspection.server import Server
from postroom.store.sql.steps import Query, Steps

MOUNTS = Path("/proc/self/mounts")


class SQLiteServer(Server):
    title = "SQLite"

    def version(self) -> Steps[str]:
        yield Query("SELECT 1")
        return f"SQLite {sqlite3.sqlite_version}"

    def writable(self) -> Steps[Finding]:
        file = yield from self._file()
        refused = file and next((one for one in (file, file.parent) if not os.access(one, os.W_OK)), None)
        return database.writable(f"{refused} may not be written" if refused else None)

    def durability(self) -> Steps[Finding]:
        yield from ()
        return ok("Postroom's connections use synchronous = FULL; yours should too")

    def journal(self) -> Steps[Finding]:
        file = yield from self._file()
        [[mode]] = (yield Query("PRAGMA journal_mode")).rows
        log = Path(f"{file}-wal")
        return database.journal(str(mode), log.stat().st_size if log.exists() else 0)

    def disk(self) -> Steps[Finding]:
        file = yield from self._file()
        mounts = MOUNTS.read_text(encoding="utf-8", errors="replace") if MOUNTS.exists() else ""
        return database.disk(kind_of_disk(file, mounts) if file else None)

    def _file(self) -> Steps[Path | None]:
        """The database's file; None if it is in memory."""
        rows = (yield Query("PRAGMA database_list")).rows
        name = next((str(row[2] or "") for row in rows if row[1] == "main"), "")
        return Path(name) if name else None


def kind_of_disk(file: Path, mounts: str) -> str | None:
    """The kind of file system that the file is on, by the system's list of mounts; None if that says nothing."""
    found: list[tuple[int, str]] = []
    for line in mounts.splitlines():
        parts = line.split()
        if len(parts) > 2:  # noqa: PLR2004 - device, place and kind come first
            place = Path(parts[1].replace("\\040", " "))
            if file.is_relative_to(place):
                found.append((len(place.parts), parts[2]))
    return max(found, default=(0, None))[1]
