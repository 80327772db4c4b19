"""Workflows of three steps that do nothing, on DBOS: a program of its own, for an environment that has DBOS.

``python dbos_workflows.py URL direct|async|queue WORKFLOWS``: prepares, writes a line, waits for one, and then writes
as JSON the seconds from the first start to the last end, and those of processor time. See `benchmarks.sagas`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

AT_ONCE = 16
"""Workflows at a time. Four and fifty are no faster: the interpreter is busy."""


def main(url: str, how: str, count: int) -> None:
    """Measure once, in a database of its own."""
    from dbos import DBOS  # type: ignore[import-not-found,unused-ignore]  # not in the project's environment

    DBOS(
        config={
            "name": "bench",
            "system_database_url": url,
            "sys_db_pool_size": AT_ONCE + 4,
            "max_executor_threads": 4 * AT_ONCE,
            "log_level": "ERROR",
        }
    )
    flow, async_flow = _workflows(DBOS)
    DBOS.launch()
    runner = asyncio.Runner()  # one for all: DBOS keeps its loop
    run = {"direct": lambda n: _direct(flow, n), "async": lambda n: runner.run(_async(async_flow, n))}
    if how == "queue":
        queue = DBOS.register_queue("bench", worker_concurrency=4 * AT_ONCE, polling_interval_sec=0.01)
        run["queue"] = lambda n: _queue(queue, flow, n)
    run[how](2 * AT_ONCE)  # so that connections are open, and all code has been run
    print("ready", flush=True)
    sys.stdin.readline()
    gc.collect()
    cpu, begun = sum(os.times()[:2]), time.perf_counter()
    run[how](count)
    seconds = time.perf_counter() - begun
    print(json.dumps({"seconds": seconds, "cpu": sum(os.times()[:2]) - cpu}), flush=True)
    os._exit(0)  # a shutdown waits for its pollers


def _workflows(dbos: Any) -> tuple[Any, Any]:
    def nothing(n: int) -> int:
        return n

    async def async_nothing(n: int) -> int:
        return n

    steps = [dbos.step(name=f"step_{n}")(nothing) for n in range(3)]
    async_steps = [dbos.step(name=f"async_step_{n}")(async_nothing) for n in range(3)]

    def flow(n: int) -> None:
        for step in steps:
            step(n)

    async def async_flow(n: int) -> None:
        for step in async_steps:
            await step(n)

    return dbos.workflow(name="flow")(flow), dbos.workflow(name="async_flow")(async_flow)


def _direct(flow: Any, count: int) -> None:
    """Call them from threads, as a web application does. A call returns when its workflow is recorded as ended."""
    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(flow, range(count)))


async def _async(flow: Any, count: int) -> None:
    numbers = iter(range(count))

    async def one() -> None:
        for n in numbers:
            await flow(n)

    await asyncio.gather(*(one() for _ in range(AT_ONCE)))


def _queue(queue: Any, flow: Any, count: int) -> None:
    """Enqueue them, and wait for the worker, which is this process."""
    with ThreadPoolExecutor(AT_ONCE) as threads:
        handles = list(threads.map(lambda n: queue.enqueue(flow, n), range(count)))
        list(threads.map(lambda handle: handle.get_result(polling_interval_sec=0.05), handles))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
