"""The connections that all queues of an engine share, so that a lock in one queue does not hold up the others."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from postroom.store.connections.reconnecting import (
    A_MOMENT,
    QUICK,
    TIME_LIMIT,
    ConnectionReplaced,
    StatementTimedOut,
    until_done,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from postroom.store.connections.reconnecting import Database
    from postroom.store.sql.steps import Steps

T = TypeVar("T")

ASIDE = 10.0
"""Seconds for which a queue uses the spare connection, from the last time that an operation of it took too long."""


class SteppedAside(StatementTimedOut):
    """The operation took too long for a connection that several queues share: the next one may take longer."""


class Connection(Protocol):
    """A connection as one part of a queue's work sees it: its own, or one that several queues share."""

    @property
    def connections(self) -> int:
        """The number of the connection that is open, or the next to be opened."""
        ...

    async def attempt(self, steps: Steps[T], on: int | None = None) -> T:
        """Run an operation once, only `on` this connection if one is given. Raises `Outage`: it may have been done."""
        ...

    async def run(self, operation: Callable[[], Steps[T]]) -> T:
        """Run an operation until the database has done it."""
        ...

    async def answers(self) -> bool:
        """Whether the database answers at all."""
        ...


class Aside:
    """Whether a queue uses spare connections: it does from when one of its operations took too long.

    What one of them waits for, the others may meet too: while it waits on a spare connection, none goes back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until = 0.0
        self._waiting = 0

    def __bool__(self) -> bool:
        """Whether it does now."""
        return self._waiting > 0 or self._clock() < self._until

    def step(self) -> None:
        """An operation took too long."""
        self._until = self._clock() + ASIDE

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """An operation is under way on a spare connection."""
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1


class SharedConnection:
    """One queue's access to a connection that several queues share.

    An operation that takes too long, because it waits for a lock, has held up the other queues: those that follow it
    in this queue use the spare connection, where they may wait for longer.
    """

    def __init__(self, shared: Connection, spare: Connection, aside: Aside | None = None) -> None:
        self._shared = shared
        self._spare = spare
        self._aside = Aside() if aside is None else aside

    @property
    def connections(self) -> int:
        """The number of the connection that is used now: negative if it is the spare one."""
        return -self._spare.connections if self._aside else self._shared.connections

    async def attempt(self, steps: Steps[T], on: int | None = None) -> T:
        """Run an operation once, only `on` this connection if one is given. Raises `Outage`: it may have been done."""
        is_aside = bool(self._aside)
        if on is not None and (on < 0) != is_aside:
            raise ConnectionReplaced("its connection is not used now")
        number = None if on is None else abs(on)
        try:
            if not is_aside:
                return await self._shared.attempt(steps, number)
            with self._aside.waiting():
                return await self._spare.attempt(steps, number)
        except StatementTimedOut as error:
            self._aside.step()
            if is_aside:
                raise
            raise SteppedAside(str(error)) from error.__cause__

    async def run(self, operation: Callable[[], Steps[T]]) -> T:
        """Run an operation until the database has done it."""
        return await until_done(self.attempt, operation)

    async def answers(self) -> bool:
        """Whether the database answers at all."""
        return await (self._spare if self._aside else self._shared).answers()


@dataclass(frozen=True, slots=True)
class Spares:
    """What operations that take too long are moved to: heartbeats, and all others."""

    heartbeats: Connection
    others: Connection


@dataclass(frozen=True, slots=True)
class ConnectionSet:
    """The connections that all queues of an engine share. Some may be the same: each does one thing at a time."""

    settlements: Connection
    heartbeats: Connection
    claims: tuple[Connection, Connection]
    reads: tuple[Connection, Connection]
    spares: Spares | None = None

    @classmethod
    def full(cls, database: Database, queues: int = 1, *, keyed: bool = True) -> ConnectionSet:
        """Six connections: as fast as it can be. Two more if several queues share them, two less if none has keys."""
        several = queues > 1
        limit = QUICK if several else TIME_LIMIT
        settlements, heartbeats = database.connect(limit), database.connect(A_MOMENT if several else QUICK)
        claims = database.connect(limit), database.connect(limit)
        return cls(
            settlements,
            heartbeats,
            claims,
            (database.connect(limit), database.connect(limit)) if keyed else claims,
            Spares(database.connect(QUICK), database.connect()) if several else None,
        )

    @classmethod
    def small(cls, database: Database) -> ConnectionSet:
        """Three connections, for queues with little to do: to find work, to settle, and for heartbeats."""
        work = database.connect()
        return cls(database.connect(), database.connect(QUICK), (work, work), (work, work))

    def for_queue(self) -> ConnectionSet:
        """The connections as one of the queues uses them."""
        if self.spares is None:
            return self
        spare, aside = self.spares.others, Aside()
        return ConnectionSet(
            SharedConnection(self.settlements, spare, aside),
            SharedConnection(self.heartbeats, self.spares.heartbeats),
            (SharedConnection(self.claims[0], spare, aside), SharedConnection(self.claims[1], spare, aside)),
            (SharedConnection(self.reads[0], spare, aside), SharedConnection(self.reads[1], spare, aside)),
        )
