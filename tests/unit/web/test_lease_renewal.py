"""The lease of a request is renewed for as long as its handler runs, and no longer."""

from __future__ import annotations

import asyncio
import threading
from unittest.mock import patch

from postroom.idempotency import Entry, Ledger, Run
from postroom.rules.replay import Response
from postroom.web.idempotency.keyed_request import KeyedRequest
from postroom.web.idempotency.lease_renewal import LeaseRenewal, LoopLeaseRenewal
from postroom.web.idempotency.options import Options
from postroom.web.idempotency.policy import Policy
from tests.acceptance.waiting import wait_for

SOON = 0.01
LONG = 30.0


def keyed(key: str) -> KeyedRequest:
    return KeyedRequest(Run(Entry("s", key, "0" * 64, 1)), Policy(Options()), Ledger())


class Running:
    """A request that runs until it was renewed often enough."""

    def __init__(self, renewals: int) -> None:
        self.renewals = 0
        self.is_done = asyncio.Event()
        self._enough = renewals

    async def renew_lease(self) -> None:
        self.renewals += 1
        if self.renewals == self._enough:
            self.is_done.set()


async def test_one_timer_renews_all_that_run_and_ends_with_them() -> None:
    loop, renewal = asyncio.get_running_loop(), LoopLeaseRenewal(SOON)
    first, second, ended = Running(2), Running(3), Running(1)
    with patch.object(loop, "call_later", wraps=loop.call_later) as timer:
        for one in (first, second, ended):
            renewal.add(one)
        timer.assert_called_once()
    renewal.remove(ended)
    async with asyncio.timeout(LONG):
        await first.is_done.wait()
        renewal.remove(first)
        await second.is_done.wait()
        renewal.remove(second)
        await wait_for(lambda: not renewal._running)
    assert (first.renewals, second.renewals, ended.renewals) == (2, 3, 0)


async def test_a_loop_of_another_thread_may_begin_while_this_one_forgets_those_that_are_closed() -> None:
    renewal, others = LoopLeaseRenewal(LONG), [asyncio.new_event_loop() for _ in range(3)]

    def is_closed() -> bool:  # while it is asked, the third thread gets its turn
        renewal._running.setdefault(others[2], {})
        return False

    with patch.object(others[0], "is_closed", is_closed):
        renewal._running.update({others[0]: {}, others[1]: {}})
        others[1].close()
        renewal.add(Running(1))
    assert set(renewal._running) == {others[0], others[2], asyncio.get_running_loop()}
    for one in others:
        one.close()


def test_one_thread_renews_all_but_those_whose_handler_has_recorded_its_response() -> None:
    renewed: list[str] = []
    enough = threading.Event()

    def renew(entry: Entry) -> None:
        renewed.append(entry.key)
        if renewed.count("a") >= 2 and renewed.count("b") >= 2:
            enough.set()

    renewal = LeaseRenewal(SOON, renew)
    requests = [keyed(key) for key in ("a", "b", "joined")]
    requests[2].recorded = Response(201)
    others = set(threading.enumerate())
    for one in requests:
        renewal.add(one)
    [thread] = set(threading.enumerate()) - others
    assert enough.wait(LONG)
    for one in requests:
        renewal.remove(one)
    thread.join(LONG)
    assert not thread.is_alive()
    assert "joined" not in renewed
