"""The lease of a request is renewed for as long as its handler runs, and no longer."""

from __future__ import annotations

import asyncio
import threading

import pytest

from postroom.idempotency import Entry, Ledger, Run
from postroom.rules.replay import Response
from postroom.web.idempotency.keyed_request import KeyedRequest
from postroom.web.idempotency.lease_renewal import LeaseRenewal, renewing
from postroom.web.idempotency.options import Options
from postroom.web.idempotency.policy import Policy

SOON = 0.01
LONG = 30.0


def keyed(key: str) -> KeyedRequest:
    return KeyedRequest(Run(Entry("s", key, "0" * 64, 1)), Policy(Options()), Ledger())


async def test_it_is_renewed_until_the_work_is_done() -> None:
    renewals = 0
    work: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def renew() -> None:
        nonlocal renewals
        renewals += 1
        if renewals == 3:
            work.set_result(None)

    async with asyncio.timeout(LONG):
        await renewing(SOON, renew, work)
    assert renewals == 3


async def test_when_it_is_cancelled_so_is_the_work() -> None:
    work: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    began = asyncio.Event()

    async def renew() -> None:
        began.set()

    running = asyncio.create_task(renewing(SOON, renew, work))
    await began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert work.cancelled()


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
