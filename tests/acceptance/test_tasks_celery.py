"""Celery tasks sent by the outbox, and run by a real worker, through Redis and RabbitMQ."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery, signals
from sqlalchemy.ext.asyncio import create_async_engine

from postroom import Outbox, Relay
from postroom.brokers.memory import MemoryBroker
from postroom.brokers.port import Accepted, TargetUnavailable, Unreached
from postroom.celery import CeleryBroker
from postroom.store.connections.urls import resolve
from tests.acceptance.celery_program import make_app
from tests.acceptance.service import Service
from tests.acceptance.waiting import wait_for
from tests.services.databases import need
from tests.services.ports import free_port
from tests.services.rabbitmq import RabbitMQ
from tests.services.ready import ready_database as one_ready_database
from tests.services.redis import Redis

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import FreshDatabase

PLACES = {"redis": "postgresql", "rabbitmq": "mariadb"}


@dataclass
class Shop:
    """A service with a Celery app and its worker."""

    app: Celery
    service: Service
    server: Redis | RabbitMQ

    def done(self) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.service.rows("SELECT task_id, what FROM done ORDER BY task_id")]

    def task(self, name: str) -> Any:
        return self.app.tasks[name]


@pytest.fixture(scope="module", params=PLACES)
def running(request: pytest.FixtureRequest) -> Iterator[Shop]:
    server: Redis | RabbitMQ = need(Redis) if request.param == "redis" else need(RabbitMQ)
    scheme = "redis" if request.param == "redis" else "amqp"
    broker = f"{scheme}://127.0.0.1:{server.port}"
    with ExitStack() as stack:
        service = stack.enter_context(closing(Service(stack.enter_context(one_ready_database(PLACES[request.param])))))
        service.execute("CREATE TABLE done (task_id VARCHAR(64), what VARCHAR(255))")
        program = [sys.executable, "-m", "tests.acceptance.celery_program", broker, service.url]
        worker = stack.enter_context(subprocess.Popen(program))
        stack.callback(worker.kill)
        yield Shop(make_app(broker, service.url), service, server)


@pytest.fixture
def shop(running: Shop) -> Shop:
    running.service.execute("DELETE FROM done")
    return running


async def test_tasks_commit_and_roll_back_with_the_transaction(shop: Shop) -> None:
    outbox = Outbox()
    charge, audit = shop.task("shop.charge"), shop.task("shop.audit")
    at = datetime(2026, 1, 2, tzinfo=UTC)
    soon = datetime.now(UTC) + timedelta(milliseconds=300)
    with shop.service.engine.begin() as connection:
        first = outbox.task(connection, charge, [1], {"price": Decimal("9.90"), "at": at}, headers={"tenant": "acme"})
        again = outbox.task(connection, audit, ["again"], idempotency_key="audit-1", countdown=0.5)
        known = outbox.task(connection, audit, ["again"], idempotency_key="audit-1", expires=60)
        retried = outbox.task(connection, charge.s(2).set(eta=soon), kwargs={"price": Decimal(-1)})
        named = outbox.task(connection, audit.si("named"), ["ignored"], task_id="a-name", queue="shop", priority=3)
    assert known.duplicate
    assert known.id == again.id
    engine = create_async_engine(resolve(shop.service.url, asynchronous=True))
    async with engine.begin() as async_connection:
        later = await outbox.atask(async_connection, audit, kwargs={"what": "async"})
    with shop.service.engine.connect() as connection:
        outbox.task(connection, audit, ["rolled back"])
        connection.rollback()
    async with engine.connect() as async_connection:
        await outbox.atask(async_connection, audit, ["rolled back"])
    await engine.dispose()

    published: list[str] = []
    headers_seen: list[Any] = []

    def note(sender: str, headers: dict[str, Any], **_: Any) -> None:
        published.append(sender)
        headers_seen.append(headers)

    signals.before_task_publish.connect(note)
    broker = CeleryBroker(shop.app)
    try:
        await Relay(shop.service.url, broker).run_until_empty()
    finally:
        signals.before_task_publish.disconnect(note)
        await broker.close()
    assert sorted(published) == ["shop.audit"] * 3 + ["shop.charge"] * 2
    assert not any(headers["ignore_result"] for headers in headers_seen)
    assert shop.service.status().pending == 0
    await wait_for(lambda: len(shop.done()) == 5)
    done = dict(shop.done())
    assert done[str(first.id)].startswith(f"1 Decimal('9.90') {at!r}")
    assert "'tenant': 'acme'" in done[str(first.id)]
    assert done[str(retried.id)].startswith("2 Decimal('-1')")
    assert datetime.now(UTC) > soon
    assert done[str(later.id)] == "async audit 0"
    assert done["a-name"] == "named shop 3"
    assert done[str(again.id)] == "again audit 0"
    assert str(named.id) not in done


async def test_a_task_that_arrives_twice_has_its_effect_once(shop: Shop) -> None:
    broker = CeleryBroker(shop.app)
    outbox = Outbox()
    twice = outbox.task_message(shop.task("shop.charge"), [3], {"price": Decimal(5)})
    last = outbox.task_message(shop.task("shop.audit"), ["last"], queue="shop")  # behind both
    outcomes = await broker.publish([twice, twice, last], 5)
    assert outcomes == [Accepted(str(twice.id)), Accepted(str(twice.id)), Accepted(str(last.id))]
    await wait_for(lambda: str(last.id) in dict(shop.done()))
    assert len(shop.done()) == 2
    await broker.close()


async def test_an_absent_broker_keeps_nothing_else_waiting_and_no_task_is_lost(ready_database: FreshDatabase) -> None:
    with closing(Redis()) as server, closing(Service(ready_database("sqlite"))) as service:
        server.start()
        app = make_app(f"redis://127.0.0.1:{server.port}", service.url)
        audit = app.tasks["shop.audit"]
        broker = CeleryBroker(app)
        assert isinstance((await broker.publish([Outbox().task_message(audit, ["kept"])], 5))[0], Accepted)
        server.stop(kill=True)
        others = MemoryBroker()
        with service.engine.begin() as connection:
            outbox = Outbox(brokers=["celery.*"])
            outbox.task(connection, audit, ["waits"])
            outbox.add(connection, "orders", 1)
        relay = Relay(service.url, others, brokers={"celery.*": broker}, broker_timeout_ms=500)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(relay.run())
            await wait_for(lambda: others.messages and relay.report.queues_down)
            server.start()
            await wait_for(lambda: relay.report.sent == 2)
            relay.stop()
        with app.connection_for_read() as connection:
            assert connection.default_channel.queue_declare("audit", passive=True).message_count == 2
        with server.hung():
            [outcome] = await broker.publish([outbox.task_message(audit, ["unheard"])], 0.5)
            assert not isinstance(outcome, Accepted)
        await broker.close()
        assert not service.dead()
        absent = CeleryBroker(make_app(f"amqp://127.0.0.1:{free_port()}", service.url))
        [outcome] = await absent.publish([outbox.task_message(audit, ["nobody"])], 2)
        assert isinstance(outcome, Unreached)
        await absent.close()


@pytest.mark.parametrize("running", ["rabbitmq"], indirect=True)
async def test_a_queue_that_was_deleted_is_declared_again(shop: Shop) -> None:
    broker = CeleryBroker(shop.app)
    task = shop.task("shop.audit")
    messages = [Outbox().task_message(task, [what], queue="spare") for what in ("one", "two", "three")]
    before = await broker.publish([messages[0]] * 64, 5)  # over several lines, each of which has declared the queue
    assert {type(one) for one in before} == {Accepted}
    with shop.app.connection_for_write() as connection:
        connection.default_channel.queue_delete("spare")
    returned, accepted = await broker.publish(messages[1:], 5)
    assert isinstance(returned, TargetUnavailable)
    assert isinstance(accepted, Accepted)
    assert isinstance((await broker.publish(messages[1:2], 5))[0], Accepted)
    with shop.app.connection_for_write() as connection:
        assert connection.default_channel.queue_declare("spare", passive=True).message_count == 2
        connection.default_channel.queue_delete("spare")
    await broker.close()


@pytest.mark.parametrize("running", ["rabbitmq"], indirect=True)
async def test_no_task_is_lost_while_rabbitmq_crashes_and_the_command_sends(shop: Shop, tmp_path: Path) -> None:
    maker = f"make_app({shop.app.conf.broker_write_url!r}, {shop.service.url!r})"
    (tmp_path / "shop_app.py").write_text(f"from tests.acceptance.celery_program import make_app\napp = {maker}\n")
    command = [sys.executable, "-m", "postroom", "relay", "--database", shop.service.url, "--broker-timeout-ms", "5000"]
    command += ["--broker-for", "celery.*=celery://shop_app:app"]
    places = os.pathsep.join([str(tmp_path), str(Path.cwd())])
    recorded: list[str] = []

    def record() -> None:
        with shop.service.engine.begin() as connection:
            for _ in range(20):
                message = Outbox().task(connection, shop.task("shop.charge"), [len(recorded)], {"price": Decimal(1)})
                recorded.append(str(message.id))

    with ExitStack() as stack:
        relay = await asyncio.to_thread(
            subprocess.Popen, command, env=os.environ | {"PYTHONPATH": places}, stderr=subprocess.PIPE
        )
        stack.enter_context(relay)
        stack.callback(relay.kill)
        record()
        await wait_for(shop.done)
        crash = asyncio.create_task(asyncio.to_thread(shop.server.stop, kill=True))
        while not crash.done():  # so that some are on their way whenever it comes
            before = len(recorded) - 20
            record()
            await wait_for(lambda: len(shop.done()) > before or crash.done())  # noqa: B023 - called at once
        await crash
        await asyncio.to_thread(shop.server.start)
        await wait_for(lambda: {str(task_id) for task_id, _ in shop.done()} >= {*recorded})
        await wait_for(lambda: shop.service.status().pending == 0)
        relay.terminate()
        _, said = await asyncio.to_thread(relay.communicate)
    assert relay.returncode == 0, said.decode()
    assert len(shop.done()) == len(recorded)
    assert not shop.service.dead()
