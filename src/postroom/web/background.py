"""Relays and consumers in a thread of their own, for applications without an event loop, such as Flask's.

::

    background = Background(relay, consumer)
    background.init_app(app)      # starts with the first request of each process, and ends with the process
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures.thread  # noqa: F401 - its end of threads is registered before ours, and so comes after it
import logging
import os
import threading
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from postroom.errors import PostroomError
from postroom.runtime.waiting import wait_for
from postroom.web.lifespan import check_runnable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flask import Flask

    from postroom.runtime.runnable import Runnable

LOG = logging.getLogger("postroom")
AGAIN = 5.0
"""Seconds until what could not start is tried again."""


class Background:
    """Runs relays and consumers in a thread, from `start` to `stop`; after a fork, the child has none.

    A part that cannot start, because the database is away or has no tables, is logged and tried again. Raises
    `InvalidSetting` for what is neither a relay nor a consumer.
    """

    def __init__(self, *parts: Runnable[Any]) -> None:
        check_runnable(*parts)
        self._parts: Sequence[Runnable[Any]] = parts
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._process = 0
        self._ends_with_process = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None

    def init_app(self, app: Flask) -> None:
        """Start with the first request of each process, so that it survives servers that fork."""
        app.before_request(self.start)

    def start(self) -> None:
        """Start, unless this process has done so. Stops by itself when the process ends."""
        if self._process == os.getpid():
            return
        with self._lock:
            if self._process == os.getpid():
                return
            ready = threading.Event()
            self._thread = threading.Thread(target=self._run, args=[ready], name="postroom-background", daemon=True)
            self._thread.start()
            ready.wait()
            self._process = os.getpid()
            if not self._ends_with_process:
                _before_executors_end(self.stop)
                self._ends_with_process = True

    def stop(self) -> None:
        """Finish what is in flight or give it back, and wait for that. Does nothing if this process has not started."""
        with self._lock:
            if self._process != os.getpid() or self._thread is None:
                return
            if self._loop is not None and self._stopping is not None and self._thread.is_alive():
                self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join()
            self._process, self._thread = 0, None

    def _run(self, ready: threading.Event) -> None:
        asyncio.run(self._serve(ready))

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        ready.set()
        async with AsyncExitStack() as stack:
            await asyncio.gather(*(self._enter(part, stack) for part in self._parts))
            await self._stopping.wait()

    async def _enter(self, part: Runnable[Any], stack: AsyncExitStack) -> None:
        assert self._stopping is not None  # noqa: S101 - set before
        while not self._stopping.is_set():
            try:
                await stack.enter_async_context(part)
            except PostroomError as error:
                LOG.error("%s cannot start, and is tried again: %s", type(part).__name__, error)  # noqa: TRY400 - it says all
            except Exception:  # whatever it is, the other parts go on
                LOG.exception("%s cannot start, and is tried again", type(part).__name__)
            else:
                return
            await wait_for(self._stopping, AGAIN)


def _before_executors_end(call: Callable[[], None]) -> None:
    """Call this when the process ends, while executors still take work: at `atexit` they no longer do."""
    register = getattr(threading, "_register_atexit", atexit.register)  # what concurrent.futures itself uses
    register(call)
