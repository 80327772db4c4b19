"""Lines: a participant's connection for one branch, whatever kind it is; and what opens them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from postroom.twophase.log_clock import LogClock

if TYPE_CHECKING:
    from postroom.store.sql.steps import Query
    from postroom.store.twophase.branches import Branches
    from postroom.store.twophase.log import TwoPhaseLog


class Line(Protocol):
    """A connection in autocommit, on which SQL begins and ends transactions. What is awaitable on an async one is said.

    A user's code gets `given`. Nothing else uses the connection until it is released.
    """

    dialect: str
    given: Any
    flushes: bool
    """There is an ORM, whose changes `flush` writes."""
    isolation: str | None
    """The level that its transactions begin with; None for the session's default."""

    def execute(self, query: Query) -> Any:
        """Run a statement; returns a `Result`, or an awaitable of it."""

    def flush(self) -> Any:
        """Write what an ORM has not written yet. Awaitable on an async line."""

    def break_off(self) -> None:
        """Close it for good, from any thread: whoever waits for the server gets an error. May be repeated."""

    def release(self) -> Any:
        """Give it back to where it came from, or close it if it was broken off. Awaitable on an async line."""


class Opener:
    """Opens lines to one database. Lives as long as the `TwoPhaseCommit`."""

    thread_bound = False
    """A sync line may only be used in the thread that opened it."""

    def __init__(self) -> None:
        self.branches: dict[bool, Branches] = {}
        """What was found out about the database, for branches that prepare, and for those that do not."""
        self.scope = ""
        """Of the log in this database, once it is known."""
        self.log: TwoPhaseLog | None = None
        """In this database, once its dialect is known."""
        self.clock = LogClock()
        """Of the log in this database."""

    def open(self) -> Line:
        """Raises `WrongMethod` if only async lines can be opened."""
        raise NotImplementedError

    async def aopen(self) -> Line:
        """Raises `WrongMethod` if only sync lines can be opened."""
        raise NotImplementedError

    def close(self) -> None:
        """Close what was made here, such as the engine of a URL."""

    async def aclose(self) -> None:
        """`close` for async lines."""
