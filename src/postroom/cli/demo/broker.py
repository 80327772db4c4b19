"""The demo's broker: a log of messages in an SQLite file. Further files are the switches that break it."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from postroom.message import Message

POISON = b"\xff\xfe damaged"
"""A payload that this broker never takes."""


class Received(NamedTuple):
    """A message as a consumer receives it."""

    offset: int
    id: str
    request: str


class Broker:
    """Shared by the demo, which breaks it and reads from it, and the relays, which publish to it."""

    def __init__(self, directory: Path) -> None:
        self._log = directory / "broker.db"
        self._down = directory / "broker-is-down"
        self._refusals = directory / "broker-refusals"
        self._trap = directory / "trap"

    def create(self) -> None:
        """An empty log."""
        with self._opened() as log:
            log.execute("PRAGMA journal_mode = WAL")
            log.execute("CREATE TABLE log (offset INTEGER PRIMARY KEY, id TEXT NOT NULL, request TEXT NOT NULL)")

    def go_down(self) -> None:
        """Refuse every call from now on."""
        self._down.touch()

    def come_back(self) -> None:
        """Work again."""
        self._down.unlink()

    def has_refused(self) -> bool:
        """Whether a relay has found the broker down."""
        return self._refusals.exists()

    def set_trap(self) -> None:
        """Stop the next relay right after its messages were taken, before it can record that."""
        self._trap.touch()

    def trapped(self) -> str | None:
        """The relay that is in the trap."""
        return next((path.suffix.removeprefix(".") for path in self._trap.parent.glob("trapped.*")), None)

    def received(self, after: int) -> list[Received]:
        """What a consumer has not read yet."""
        with self._opened() as log:
            rows = log.execute("SELECT offset, id, request FROM log WHERE offset > ? ORDER BY offset", (after,))
            return [Received(*row) for row in rows]

    def orders(self) -> int:
        """How many different orders were received."""
        with self._opened() as log:
            [[number]] = log.execute("SELECT count(DISTINCT id) FROM log")
            return int(number)

    def publish(self, messages: Sequence[Message], relay: str) -> list[dict[str, Any]]:
        """Take messages. Raises `ConnectionError` while the broker is down."""
        if self._down.exists():
            self._refusals.touch()
            raise ConnectionError("the broker is down")
        good = [message for message in messages if message.payload != POISON]
        with self._opened() as log:
            rows = [(str(message.id), message.json()["request"]) for message in good]
            log.executemany("INSERT INTO log (id, request) VALUES (?, ?)", rows)
        if good and self._springs(relay):
            threading.Event().wait()  # for SIGKILL
        return [_DAMAGED if message.payload == POISON else _TAKEN for message in messages]

    def _springs(self, relay: str) -> bool:
        """Whether this relay has run into the trap; only one can."""
        try:
            self._trap.rename(self._trap.with_name(f"trapped.{relay}"))
        except FileNotFoundError:
            return False
        return True

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._log, timeout=30)) as log, log:
            log.execute("PRAGMA synchronous = OFF")
            yield log


_TAKEN = {"status": "ok"}
_DAMAGED = {"status": "refused", "reason_code": "DAMAGED", "message": "the content cannot be read"}
