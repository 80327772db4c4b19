"""The database behind the pages: few connections, beside the event loop, and counts that all tabs share."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from postroom.admin import Admin
from postroom.errors import DatabaseUnreachable, SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from postroom.settings import SettingsOverrides

T = TypeVar("T")

READERS = 4
"""Connections for pages. More requests wait."""
WRITERS = 2
"""Connections for acts, which may take minutes."""
PATIENCE = 15.0
"""Seconds that a page waits for the database."""
MOST_CACHED = 200
REST = 10
"""What took a second is kept for ten: however slow a read is, it keeps the database busy a tenth of the time."""


class Away(DatabaseUnreachable):
    """The database did not answer in time."""


class Connections:
    """Calls `Admin` in a few threads; each has its own, made when it is needed and made again after an outage."""

    def __init__(self, count: int, name: str, database: str | None, settings: SettingsOverrides) -> None:
        self._database = database
        self._settings = settings
        self._threads = ThreadPoolExecutor(count, thread_name_prefix=f"postroom-dashboard-{name}")
        self._own = threading.local()
        self._open: set[Admin] = set()
        self._changing = threading.Lock()

    def submit(self, call: Callable[[Admin], T]) -> Future[T]:
        """Run it in one of the threads."""
        return self._threads.submit(self._call, call)

    def close(self) -> None:
        """Close what is open, once the threads are done."""
        self._threads.shutdown(cancel_futures=True)
        with self._changing:
            while self._open:
                self._open.pop().close()

    def _call(self, call: Callable[[Admin], T]) -> T:
        admin = self._admin()
        try:
            return call(admin)
        except (DatabaseUnreachable, SchemaError, OSError):
            self._forget(admin)
            raise

    def _admin(self) -> Admin:
        admin: Admin | None = getattr(self._own, "admin", None)
        if admin is None:
            admin = Admin(self._database, **self._settings)
            self._own.admin = admin
            with self._changing:
                self._open.add(admin)
        return admin

    def _forget(self, admin: Admin) -> None:
        self._own.admin = None
        with self._changing:
            self._open.discard(admin)
        admin.close()


class Shared:
    """A read whose answer everyone gets who asks for it in time."""

    def __init__(self, readers: Connections, call: Callable[[Admin], Any], seconds: float) -> None:
        self._seconds = seconds
        self._began = time.monotonic()
        self._until: float | None = None
        self.future = readers.submit(lambda admin: self._timed(call, admin))

    def is_over(self, now: float) -> bool:
        """Whether it must be read again: it has failed, is too old, or its connection seems to be lost."""
        if not self.future.done():
            return now - self._began > 2 * PATIENCE
        failed = self.future.cancelled() or self.future.exception() is not None
        return failed or self._until is None or now >= self._until

    def _timed(self, call: Callable[[Admin], Any], admin: Admin) -> Any:
        start = time.monotonic()
        answer = call(admin)
        self._until = max(self._began + self._seconds, start + REST * (time.monotonic() - start))
        return answer


class Database:
    """What pages ask, and what acts do. Works in any event loop, and in several."""

    def __init__(self, database: str | None = None, **settings: Unpack[SettingsOverrides]) -> None:
        self._readers = Connections(READERS, "read", database, settings)
        self._writers = Connections(WRITERS, "act", database, settings)
        self._shared: dict[Hashable, Shared] = {}
        self._sharing = threading.Lock()

    async def read(self, call: Callable[[Admin], T]) -> T:
        """The answer. Raises what `Admin` raises, and `Away` if it takes too long."""
        future = self._readers.submit(call)
        try:
            return await self._awaited(future)
        finally:
            # Nobody waits for it any longer: a slow database is not asked what has not begun.
            future.cancel()

    async def shared(self, name: Hashable, seconds: float, call: Callable[[Admin], T]) -> T:
        """The same answer for everyone who asks within some seconds: ten tabs cost as much as one.

        Whoever comes while it is being read waits for it, however long that takes. A slow answer is kept for longer.
        """
        now = time.monotonic()
        with self._sharing:
            shared = self._shared.get(name)
            if shared is None or shared.is_over(now):
                if len(self._shared) >= MOST_CACHED:
                    self._shared = {key: kept for key, kept in self._shared.items() if not kept.is_over(now)}
                shared = self._shared[name] = Shared(self._readers, call, seconds)
        return await self._awaited(shared.future)

    def act(self, call: Callable[[Admin], T]) -> Future[T]:
        """Start an act. It goes on to its end, whether or not somebody waits for it."""
        self.forget_shared()
        return self._writers.submit(call)

    async def write(self, call: Callable[[Admin], T]) -> T:
        """A short act, and its result."""
        try:
            return await self._awaited(self.act(call))
        finally:
            self.forget_shared()

    def forget_shared(self) -> None:
        """Have the next page ask again: somebody has changed something."""
        with self._sharing:
            self._shared.clear()

    def close(self) -> None:
        """Wait for acts that are under way, and close the connections."""
        self._readers.close()
        self._writers.close()

    async def _awaited(self, future: Future[T]) -> T:
        try:
            async with asyncio.timeout(PATIENCE):
                # Shielded, since others may wait for it too.
                return await asyncio.shield(asyncio.wrap_future(future))
        except TimeoutError:
            if future.done():
                raise
            raise Away(f"the database has not answered within {PATIENCE:g} s") from None
