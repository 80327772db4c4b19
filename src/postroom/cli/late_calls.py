"""Leave behind calls of users' functions that do not end, so that a command can."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from postroom.runtime.calls import CALLS

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

LAST_CHANCE = 1.0
"""Seconds that a function's thread has to end when all is done."""

LateCalls = tuple[asyncio.Task[Any], ...]


def run(main: Coroutine[Any, Any, None]) -> LateCalls:
    """Run a coroutine to its end; returns calls of async functions that continue although they were cancelled."""
    runner = asyncio.Runner()
    late: LateCalls = ()
    try:
        runner.run(main)
    finally:
        late = tuple(task for task in asyncio.all_tasks(runner.get_loop()) if task.get_name() == CALLS)
        if not late:
            runner.close()  # which would wait for them
    return late


def leave(late: Sequence[asyncio.Task[Any]]) -> None:
    """End the process if a call does not end, long after its timeout. The database rolls back what it wrote."""
    deadline = time.monotonic() + LAST_CHANCE
    threads = [thread for thread in threading.enumerate() if thread.name.startswith(CALLS)]
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if late or any(thread.is_alive() for thread in threads):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
