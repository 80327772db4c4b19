"""Two transactions at a time: one in a thread, which the test watches until it waits for the other."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.contract.write_support import Database

T = TypeVar("T")
PATIENCE = 60.0  # seconds
POLL = 0.12  # seconds: InnoDB shows what it last showed to who asks again within a tenth of a second

WAITING = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity "
    "WHERE wait_event_type = 'Lock' AND datname = current_database()",
    "mysql": "SELECT count(*) FROM information_schema.innodb_trx t "
    "JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id "
    "WHERE t.trx_state = 'LOCK WAIT' AND p.db = database()",
}
"""How many sessions wait for another one's lock."""


class Background(Generic[T]):
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._outcome: list[Any] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._outcome += [self._call(), None]
        except BaseException as error:  # noqa: BLE001 - raised again in the test's thread
            self._outcome += [None, error]

    def result(self) -> T:
        """What the call returned; raises what it raised."""
        self._thread.join(PATIENCE)
        assert self._outcome, "the call has not come to its end"
        result, error = self._outcome
        if error is not None:
            raise error
        found: T = result
        return found

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()


@contextmanager
def waiting(database: Database, call: Callable[[], T], sessions: int = 1) -> Iterator[Background[T]]:
    """Start the call, and go on when so many sessions wait for a lock. Fails if it comes to its end instead."""
    background = Background(call)
    deadline = time.monotonic() + PATIENCE
    while database.rows(WAITING[database.store.names.dialect])[0][0] < sessions:
        assert background.is_running, f"it did not wait: {background.result()!r}"
        assert time.monotonic() < deadline, "it neither waits nor ends"
        time.sleep(POLL)
    yield background


def wait_until(is_so: Callable[[], object]) -> None:
    """Go on when it is so."""
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline, "it has not come to be so"
        time.sleep(POLL)
