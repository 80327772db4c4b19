"""What a check asks of a database server. Each database answers what it can; the rest does not apply to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.rules.checks.findings import Finding, skip
from postroom.store.sql.operations import Operations
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from collections.abc import Generator

    from postroom.store.sql.steps import Result


class Server(Operations):
    """The questions. `title` is the database's name."""

    title: str

    def version(self) -> Steps[str]:
        """The server's name and version."""
        raise NotImplementedError

    def writable(self) -> Steps[Finding]:
        raise NotImplementedError

    def durability(self) -> Steps[Finding]:
        return self._none("durability")

    def connections(self) -> Steps[Finding]:
        return self._none("limit of connections")

    def snapshots(self) -> Steps[Finding]:
        return self._none("snapshots that hold up vacuum")

    def vacuum(self) -> Steps[Finding]:
        return self._none("vacuum of its own")

    def slots(self) -> Steps[Finding]:
        return self._none("replication slots")

    def prepared_limit(self, *, is_used: bool) -> Steps[Finding]:
        del is_used
        return self._none("limit of prepared transactions")

    def prepared(self) -> Steps[Finding]:
        return self._none("prepared transactions")

    def journal(self) -> Steps[Finding]:
        return self._none("journal mode")

    def disk(self) -> Steps[Finding]:
        return self._none("file here")

    def clock(self) -> Steps[float]:
        """The server's time, in seconds since 1970."""
        found = yield Query(f"SELECT {self.dialect.now_ms}")
        return int(found.rows[0][0]) / 1000

    def _none(self, what: str) -> Generator[Query, Result, Finding]:
        yield from ()
        return skip(f"{self.title} has no {what}")
