"""The port of a relay's and of a consumer's own: metrics, and whether it lives and can work."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from postroom import Message
from postroom.cli import main
from tests.acceptance.probing import PATIENCE, Process, plain_environment, started, wait_until
from tests.acceptance.service import Service
from tests.services.databases import need
from tests.services.nats import Nats
from tests.services.ports import free_port
from tests.services.postgresql import PostgreSQL

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import FreshDatabase

DEFAULT = {"queue": "default"}

BROKER = """
def publish(message):
    if message.topic == "poison":
        return {"status": "error", "reason_code": "INVALID_TARGET"}
    if message.topic == "later":
        raise RuntimeError("not now")
"""

CONSUMER = """
from postroom import Consumer

consumer = Consumer("billing", {broker!r}, database={database!r})

@consumer.handler({topic!r})
def bill(connection, message):
    pass
"""


@pytest.fixture
def own_server() -> Iterator[PostgreSQL]:
    """A database server that the test may stop."""
    need(PostgreSQL)
    with closing(PostgreSQL()) as server:
        server.start()
        server.create_database("shop")
        yield server


@pytest.fixture
def own_broker() -> Iterator[Nats]:
    """A broker that the test may stop."""
    need(Nats)
    with closing(Nats()) as server:
        server.start()
        yield server


def test_V_1_a_relays_metrics_can_be_scraped(ready_database: FreshDatabase, tmp_path: Path) -> None:
    (tmp_path / "shop_broker.py").write_text(BROKER)
    with closing(Service(ready_database("postgresql"))) as service:
        service.commit(
            *(Message.new("orders", {"n": n}, key=f"k{n % 3}" if n % 2 else None) for n in range(20)),
            Message.new("poison"),
            Message.new("later"),
        )
        command = (
            "relay",
            "--database",
            service.url,
            "--broker",
            "python:shop_broker:publish",
            "--backoff-sec",
            "3600",
        )
        with started(tmp_path, *command) as relay:  # one retry, however slow the machine is
            wait_until(lambda: service.status().sent == 20)
            wait_until(lambda: relay.value("outbox_dead", DEFAULT) == 1, relay.log)
            shown = {
                (topic, outcome): relay.value(
                    "outbox_processed_total", {**DEFAULT, "topic": topic, "outcome": f"outbox_flush_{outcome}"}
                )
                for topic, outcome in (
                    ("orders", "success"),
                    ("later", "retry"),
                    ("poison", "dead"),
                    ("orders", "dead"),
                )
            }
            assert list(shown.values()) == [20, 1, 1, 0]
            assert relay.value("outbox_delivery_seconds_count", {**DEFAULT, "topic": "orders"}) == 20
            assert (relay.value("outbox_claimed_total", DEFAULT) or 0) >= 22
            assert relay.value("outbox_retry_total", {**DEFAULT, "attempt": "1"}) == 1
            assert relay.value("outbox_lock_lease_expired_total", DEFAULT) == 0
            for phase in ("claim", "send", "commit"):
                assert relay.value("outbox_latency_seconds_count", {**DEFAULT, "phase": phase})
            wait_until(lambda: relay.value("outbox_backlog", {**DEFAULT, "state": "waiting"}) == 1, relay.log)
            wait_until(lambda: relay.value("outbox_backlog", {**DEFAULT, "state": "pending"}) == 0, relay.log)
            wait_until(lambda: relay.value("outbox_in_flight", DEFAULT) == 0, relay.log)
            assert relay.value("outbox_oldest_pending_seconds", DEFAULT) == 0
            assert relay.value("outbox_relay_alive", DEFAULT) == 1
            assert relay.value("outbox_database_up") == 1
            assert relay.value("outbox_broker_up", {**DEFAULT, "adapter": "python:shop_broker:publish"}) == 1
            assert relay.get("/livez")[0] == 200
            assert relay.get("/")[0] == 404
            assert relay.stop() == 0


def test_V_1_a_message_whose_relay_was_killed_counts_as_a_lease_that_expired(
    ready_database: FreshDatabase, tmp_path: Path
) -> None:
    (tmp_path / "shop_broker.py").write_text("import time\n\ndef publish(message):\n    time.sleep(2)\n")
    with closing(Service(ready_database("postgresql"))) as service:
        command = (
            "relay",
            "--database",
            service.url,
            "--broker",
            "python:shop_broker:publish",
            "--lock-lease-sec",
            "2",
        )
        with started(tmp_path, *command) as relay:
            service.commit(Message.new("orders"))
            wait_until(lambda: service.status().sending, relay.log)
            relay.process.kill()
        with started(tmp_path, *command) as relay:
            wait_until(lambda: relay.value("outbox_lock_lease_expired_total", DEFAULT) == 1, relay.log)
            wait_until(lambda: service.status().sent == 1)


def test_V_4_while_the_broker_is_away_a_relay_lives_and_is_not_ready(
    ready_database: FreshDatabase, own_broker: Nats, tmp_path: Path
) -> None:
    broker = f"nats://127.0.0.1:{own_broker.port}?declare=true&stream=orders&subjects=orders"
    with (
        closing(Service(ready_database("postgresql"))) as service,
        started(tmp_path, "relay", "--database", service.url, "--broker", broker) as relay,
    ):
        own_broker.stop()
        service.commit(Message.new("orders"))
        away = ["the broker nats of default cannot be reached"]
        wait_until(lambda: relay.problems() == away, relay.log)
        assert relay.get("/livez")[0] == 200
        wait_until(lambda: relay.value("outbox_broker_up", {**DEFAULT, "adapter": "nats"}) == 0, relay.log)
        own_broker.start()
        wait_until(lambda: relay.problems() == [], relay.log)
        assert relay.value("outbox_broker_up", {**DEFAULT, "adapter": "nats"}) == 1
        assert relay.stop() == 0


def test_V_4_while_the_database_is_away_a_relay_lives_and_is_not_ready(own_server: PostgreSQL, tmp_path: Path) -> None:
    with closing(Service(own_server.url("shop"))):
        command = ("relay", "--database", own_server.url("shop"), "--broker", "stdout:")
        with started(tmp_path, *command) as relay:
            own_server.stop()
            wait_until(lambda: relay.problems() == ["the database cannot be reached"], relay.log)
            assert relay.get("/livez")[0] == 200
            assert relay.value("outbox_database_up") == 0
            wait_until(lambda: relay.value("outbox_relay_alive", DEFAULT) == 0, relay.log)
            own_server.start()
            wait_until(lambda: relay.problems() == [], relay.log)
            wait_until(lambda: relay.value("outbox_relay_alive", DEFAULT) == 1, relay.log)
            assert relay.stop() == 0


def test_V_4_a_consumer_has_a_port_too(tmp_path: Path, own_broker: Nats) -> None:
    topic = f"orders-{uuid4().hex}"
    database = f"sqlite:///{tmp_path}/shop.db"
    broker = f"nats://127.0.0.1:{own_broker.port}?declare=true&stream={topic}&subjects={topic}"
    (tmp_path / "application.py").write_text(CONSUMER.format(broker=broker, database=database, topic=topic))
    with (
        closing(Service(database)) as service,
        started(tmp_path, "consume", "--app", "application:consumer") as consumer,
    ):
        service.commit(Message.new(topic, key="k"))
        assert main(["relay", "--once", "--database", database, "--broker", broker]) == 0
        name = "postroom_consumer_messages_total"
        wait_until(lambda: consumer.value(name, {"consumer": "billing", "fate": "handled"}) == 1, consumer.log)
        assert consumer.value("postroom_consumer_handler_seconds_count", {"consumer": "billing"}) == 1
        wait_until(lambda: consumer.value("outbox_relay_alive", {"queue": "handler:billing"}) == 1, consumer.log)
        own_broker.stop()
        wait_until(lambda: consumer.problems() == ["the broker nats cannot be reached"], consumer.log)
        assert consumer.get("/livez")[0] == 200
        own_broker.start()
        wait_until(lambda: consumer.problems() == [], consumer.log)
        assert consumer.stop() == 0


def test_V_4_each_of_several_processes_has_the_next_port(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/shop.db"
    port = neighbours()
    with closing(Service(database)):
        command = ("relay", "--database", database, "--broker", "stdout:", "--processes", "2")
        with started(tmp_path, *command, port=port) as relays:
            wait_until(lambda: relays.get("/readyz", port + 1)[0] == 200, relays.log)
            assert "outbox_claimed_total" in relays.get("/metrics", port + 1)[1]
            assert relays.stop() == 0


def neighbours() -> int:
    """Two free ports in a row."""
    while True:
        port = free_port()
        with closing(socket.socket()) as probe:
            if probe.connect_ex(("127.0.0.1", port + 1)) != 0:
                return port


def test_V_4_a_port_in_use_is_told_at_the_start(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/shop.db"
    with closing(Service(database)), started(tmp_path, "relay", "--database", database, "--broker", "stdout:") as relay:
        folder = tmp_path / "second"
        folder.mkdir()
        second = Process(folder, "relay", "--database", database, "--broker", "stdout:", port=relay.port)
        assert second.process.wait(PATIENCE) == 2
        assert f"postroom: http_port = {relay.port}: cannot listen at 127.0.0.1:{relay.port}" in second.log()
        assert relay.stop() == 0


def test_a_port_that_leaves_no_room_for_all_processes_is_an_error(tmp_path: Path) -> None:
    place = ["--database", f"sqlite:///{tmp_path}/shop.db", "--broker", "stdout:"]
    ended = subprocess.run(
        [sys.executable, "-m", "postroom", "relay", *place, "--processes", "3", "--http-port", "65534"],
        capture_output=True,
        text=True,
        check=False,
        env=plain_environment(),
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "each of 3 processes has a port of its own" in ended.stderr
