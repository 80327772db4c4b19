"""Dramatiq's actors and Taskiq's tasks sent by the outbox, and run by real workers, through Redis."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from postroom import Message, Outbox, Relay
from postroom.brokers.port import Accepted, Refused, Unreached
from postroom.dramatiq import DramatiqBroker
from postroom.errors import BrokerUnavailable, InvalidMessage, InvalidSetting
from postroom.rules.failures import Reason
from postroom.taskiq import TaskiqBroker
from tests.acceptance.service import Service
from tests.acceptance.waiting import wait_for
from tests.acceptance.worker_programs import make_actors, make_tasks
from tests.services.databases import need
from tests.services.ports import free_port
from tests.services.ready import ready_database
from tests.services.redis import Redis

if TYPE_CHECKING:
    from collections.abc import Iterator

DATABASES = {"dramatiq": "mariadb", "taskiq": "postgresql"}
BRIDGES: dict[str, Any] = {"dramatiq": (make_actors, DramatiqBroker), "taskiq": (make_tasks, TaskiqBroker)}


@pytest.fixture(params=DATABASES)
def library(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def service(library: str) -> Iterator[Service]:
    with ready_database(DATABASES[library]) as url, closing(Service(url)) as opened:
        opened.execute("CREATE TABLE done (task_id VARCHAR(64), what VARCHAR(255))")
        yield opened


async def test_tasks_leave_with_the_transaction_and_have_their_effect_once(library: str, service: Service) -> None:
    redis = f"redis://127.0.0.1:{need(Redis).port}"
    make, bridge = BRIDGES[library]
    theirs, charge = make(redis, service.url)
    outbox = Outbox()
    negative = -1 if library == "dramatiq" else 1  # the first attempt fails, and the retry finds no mark
    with service.engine.begin() as connection:
        first = outbox.task(connection, charge, [1], {"cents": negative}, tenant="globex")
        again = outbox.task(connection, charge, [2], idempotency_key="charge-2")
        assert outbox.task(connection, charge, [2], idempotency_key="charge-2").id == again.id
    with service.engine.connect() as connection:
        outbox.task(connection, charge, [3])
        connection.rollback()
    with ExitStack() as stack:
        program = [sys.executable, "-m", "tests.acceptance.worker_programs", library, redis, service.url]
        worker = await asyncio.to_thread(subprocess.Popen, program)
        stack.enter_context(worker)
        stack.callback(worker.kill)
        broker = bridge(theirs)
        await Relay(service.url, brokers={f"{library}.*": broker}).run_until_empty()
        last = outbox.task_message(charge, [4])
        found = await broker.publish([again, last, Message.new("orders", 1)], 5)
        assert found[:2] == [Accepted(str(again.id)), Accepted(str(last.id))]
        assert isinstance(found[2], Refused)
        assert found[2].code == Reason.INVALID_TARGET
        await broker.close()
        rows = "SELECT task_id, what FROM done"
        await wait_for(lambda: len(service.rows(rows)) >= 3)
    done = {str(task_id): str(what) for task_id, what in service.rows(rows)}
    assert len(service.rows(rows)) == 3
    place = "money " if library == "dramatiq" else ""
    assert done[str(first.id)] == f"1 {negative} {place}globex"
    assert done[str(again.id)] == f"2 0 {place}{'None' if library == 'dramatiq' else 'acme'}"
    assert str(last.id) in done


async def test_an_absent_server_and_wrong_calls_are_named(library: str) -> None:
    make, bridge = BRIDGES[library]
    theirs, charge = make(f"redis://127.0.0.1:{free_port()}", "sqlite://")
    broker = bridge(theirs)
    try:
        outcomes = await broker.publish([Outbox().task_message(charge, [1])], 2)
    except BrokerUnavailable:
        outcomes = [Unreached("")]
    assert [type(one) for one in outcomes] == [Unreached]
    await broker.close()
    if library == "dramatiq":
        before = datetime.now(UTC)
        for delay in (60_000, timedelta(minutes=1)):
            later = Outbox().task_message(charge, [1], delay=delay)
            assert later.deliver_at is not None
            assert timedelta(seconds=60) <= later.deliver_at - before < timedelta(seconds=120)
        for wrong in ("soon", 1e300):
            with pytest.raises(InvalidMessage, match="the delay of the actor 'charge' is"):
                Outbox().task_message(charge, [1], delay=wrong)
    with pytest.raises(InvalidMessage, match=r"the arguments of the .* 'charge'"):
        Outbox().task_message(charge, [object()])
    with pytest.raises(InvalidMessage, match=r"option '.*' of the task 'charge' is a dict, which cannot be stored"):
        Outbox().task_message(charge, [1], when=object())
    with pytest.raises(InvalidMessage, match=f"task is a {type(theirs).__name__} of {library.capitalize()}"):
        Outbox().task_message(theirs, [1])
    with pytest.raises(InvalidSetting, match=f"takes a {library.capitalize()} broker, not a str"):
        bridge("redis")
