"""V-7: `postroom doctor` looks at real brokers, healthy ones and such as lose what they are given."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import nats
import pytest
import redis
from nats.js.api import StorageType, StreamConfig
from pamqp import commands

from postroom.brokers.rabbitmq_connection import QueueDeclare, RabbitConnection
from tests.acceptance.clinic import FAIL, OK, SKIP, WARN, Clinic
from tests.contract.brokers.rigs import KafkaRig
from tests.contract.brokers.test_tls import TlsNats
from tests.services.databases import need
from tests.services.kafka import Kafka
from tests.services.nats import Nats
from tests.services.ports import free_port
from tests.services.rabbitmq import RabbitMQ
from tests.services.redis import Redis

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from postroom.doctor import Verdict
    from tests.conftest import FreshDatabase

BROKER = "BROKER_*"


@pytest.fixture
def clinic(ready_database: FreshDatabase) -> Iterator[Clinic]:
    with Clinic(ready_database("sqlite")) as opened:
        yield opened


def found(clinic: Clinic, broker: str, **settings: Any) -> dict[str, tuple[Verdict, str]]:
    """Verdict and evidence of each check of a broker, without the common part of its code."""
    report = clinic.examine(BROKER, broker=broker, **settings)
    assert len({result.subject for result in report}) == 1
    return {one.code.removeprefix("BROKER_"): (one.verdict, f"{one.evidence} | {one.remedy}") for one in report}


def verdicts(told: dict[str, tuple[Verdict, str]]) -> dict[str, Verdict]:
    return {code: verdict for code, (verdict, _) in told.items()}


def test_V_7_nats(clinic: Clinic) -> None:
    server = need(Nats)
    url = f"nats://127.0.0.1:{server.port}"
    clinic.add("doctor.orders")

    async def declare(**config: Any) -> None:
        client = await nats.connect(url)
        context = client.jetstream()
        with suppress(nats.js.errors.NotFoundError):
            await context.delete_stream("DOCTOR")
        if config:
            await context.add_stream(StreamConfig(name="DOCTOR", subjects=["doctor.>"], **config))
        await client.close()

    asyncio.run(declare())
    assert "no stream" in found(clinic, url)["TOPICS"][1]
    try:
        asyncio.run(declare(storage=StorageType.FILE, duplicate_window=300))
        assert verdicts(found(clinic, url)) == {
            **dict.fromkeys(("REACHABLE", "TOPICS", "DURABILITY", "DEDUP", "PAYLOAD", "ENCRYPTION"), OK),
            **dict.fromkeys(("EVICTION", "CERTIFICATE"), SKIP),
            "REPLICAS": WARN,  # one server
        }
        assert found(clinic, f"{url}?stream=OTHER")["TOPICS"][0] is FAIL
        asyncio.run(declare(storage=StorageType.MEMORY, duplicate_window=10, max_msg_size=1000))
        sick = found(clinic, url)
        assert [sick[code][0] for code in ("DURABILITY", "DEDUP", "PAYLOAD")] == [FAIL, WARN, WARN]
        assert "stream DOCTOR: it is kept in memory" in sick["DURABILITY"][1]
        assert found(clinic, url, max_payload_bytes=1000)["PAYLOAD"][0] is OK
    finally:
        asyncio.run(declare())


def test_V_7_redis(clinic: Clinic) -> None:
    server = need(Redis)
    url = f"redis://127.0.0.1:{server.port}"
    clinic.add("doctor.orders")
    with redis.Redis(port=server.port) as client:
        try:
            assert found(clinic, url)["TOPICS"][0] is FAIL
            client.xadd("doctor.orders", {"a": "1"})
            assert verdicts(found(clinic, url)) == {
                **dict.fromkeys(("REACHABLE", "TOPICS", "DURABILITY", "EVICTION", "PAYLOAD", "ENCRYPTION"), OK),
                **dict.fromkeys(("REPLICAS", "DEDUP", "CERTIFICATE"), SKIP),
            }
            client.config_set("appendfsync", "no")
            assert "appendfsync is no" in found(clinic, url)["DURABILITY"][1]
            client.config_set("appendonly", "no")
            client.config_set("maxmemory-policy", "allkeys-lru")
            client.delete("doctor.orders")
            client.set("doctor.orders", "no stream")
            sick = found(clinic, url, max_payload_bytes=2_000_000)
            assert [sick[code][0] for code in ("DURABILITY", "EVICTION", "TOPICS", "PAYLOAD")] == [
                FAIL,
                WARN,
                FAIL,
                WARN,
            ]
            client.config_set("maxmemory", "100mb")
            assert found(clinic, url)["EVICTION"][0] is FAIL
        finally:
            client.delete("doctor.orders")
            for name, value in {
                "maxmemory": "0",
                "maxmemory-policy": "noeviction",
                "appendonly": "yes",
                "appendfsync": "always",
            }.items():
                client.config_set(name, value)


def test_V_7_rabbitmq(clinic: Clinic) -> None:
    server = need(RabbitMQ)
    url = f"amqp://127.0.0.1:{server.port}"
    clinic.add("doctor.orders", "doctor.mails", "doctor.bills")

    async def declare(**queues: dict[str, Any]) -> None:
        connection = await RabbitConnection.open("127.0.0.1", server.port, None, "guest", "guest", "/")
        for name in ("orders", "mails", "bills"):
            await connection.look(commands.Queue.Delete(0, f"doctor.{name}"), commands.Queue.DeleteOk)
        for name, options in queues.items():
            await connection.look(QueueDeclare(0, f"doctor.{name}", **options), commands.Queue.DeclareOk)
        await connection.close()

    quorum = {"durable": True, "arguments": {"x-queue-type": "quorum"}}
    asyncio.run(declare())
    missing = found(clinic, url)
    assert (missing["TOPICS"][0], missing["DURABILITY"][0]) == (FAIL, SKIP)
    assert found(clinic, f"{url}?declare=true")["TOPICS"][0] is OK, "the relay makes them"
    assert found(clinic, url)["TOPICS"][0] is FAIL, "looking has made none"
    try:
        asyncio.run(declare(orders=quorum, mails=quorum, bills=quorum))
        assert verdicts(found(clinic, url)) == {
            **dict.fromkeys(("REACHABLE", "TOPICS", "DURABILITY", "PAYLOAD", "ENCRYPTION"), OK),
            **dict.fromkeys(("REPLICAS", "DEDUP", "EVICTION", "CERTIFICATE"), SKIP),
        }
        others = {"x-max-length": 10, "x-dead-letter-exchange": "doctor.dead", "x-single-active-consumer": True}
        limited = {"durable": True, "arguments": {"x-queue-type": "quorum", **others}}
        asyncio.run(declare(orders={"durable": True, "arguments": others}, mails=limited, bills={}))
        sick = found(clinic, url)
        assert sick["DURABILITY"][0] is FAIL
        assert "queue doctor.orders: it is a classic queue" in sick["DURABILITY"][1]
        assert "queue doctor.bills: it is not durable" in sick["DURABILITY"][1]
        assert "doctor.mails" not in sick["DURABILITY"][1]
        assert found(clinic, f"{url}?exchange=doctor.none")["TOPICS"][0] is FAIL
        assert verdicts(found(clinic, f"{url}?exchange=amq.topic"))["TOPICS"] is OK
    finally:
        asyncio.run(declare())


def test_V_7_kafka(clinic: Clinic) -> None:
    server = need(Kafka)
    rig = KafkaRig(server)
    clinic.add("doctor.orders")
    url = rig.url()
    assert found(clinic, url, limit=4)["TOPICS"][0] is FAIL
    asyncio.run(rig.declare("doctor.orders"))
    told = found(clinic, url, limit=4)
    assert [told[code][0] for code in ("REACHABLE", "TOPICS", "REPLICAS", "PAYLOAD")] == [OK, OK, OK, WARN]
    assert told["DURABILITY"][0] is SKIP, "the mock cluster does not tell the topic's settings"
    assert found(clinic, url, max_payload_bytes=1_000_000, limit=4)["PAYLOAD"][0] is OK
    server.stop()
    try:
        away = found(clinic, url, limit=1.5)
        assert (away["REACHABLE"][0], away["TOPICS"][0]) == (FAIL, SKIP)
    finally:
        server.start()


def test_V_7_certificates(clinic: Clinic, tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("NOT TESTED: TLS: there is no openssl")

    def make(days: int) -> tuple[Path, Path]:
        certificate, key = tmp_path / f"{days}.pem", tmp_path / f"{days}.key"
        subprocess.run(
            [
                *(openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=shop", "-days", str(days)),
                *("-addext", "subjectAltName=IP:127.0.0.1", "-out", str(certificate), "-keyout", str(key)),
            ],
            check=True,
            capture_output=True,
        )
        return certificate, key

    def look(days: int, verdict: Verdict) -> str:
        certificate, key = make(days)
        with closing(TlsNats(certificate, key)) as server:
            need(Nats, server)
            url = f"nats+tls://127.0.0.1:{server.port}"
            told = found(clinic, f"{url}?ca={certificate}")
            assert (told["REACHABLE"][0], told["CERTIFICATE"][0]) == (OK, verdict)
            unknown = found(clinic, url)
            assert (unknown["REACHABLE"][0], unknown["CERTIFICATE"][0]) == (FAIL, FAIL)
            assert "self-signed" in unknown["CERTIFICATE"][1]
        return f"{url}?ca={certificate}"

    look(90, OK)
    away = found(clinic, look(2, FAIL))
    assert (away["REACHABLE"][0], away["CERTIFICATE"][0]) == (FAIL, SKIP)


def test_V_7_several_brokers_one_of_which_is_away(clinic: Clinic) -> None:
    server, away = need(Redis), free_port()
    report = clinic.examine(
        "BROKER_REACHABLE",
        "BROKER_ENCRYPTION",
        broker="stdout:",
        brokers={"mails.*": f"redis://127.0.0.1:{server.port}", "orders.*": f"redis://:pass@127.0.0.2:{away}"},
        limit=5,
    )
    told = {(one.code, one.subject): one.verdict for one in report}
    assert told == {
        ("BROKER_REACHABLE", "stdout:"): SKIP,
        ("BROKER_REACHABLE", f"redis://127.0.0.1:{server.port}"): OK,
        ("BROKER_REACHABLE", f"redis://127.0.0.2:{away}"): FAIL,
        ("BROKER_ENCRYPTION", "stdout:"): SKIP,
        ("BROKER_ENCRYPTION", f"redis://127.0.0.1:{server.port}"): OK,
        ("BROKER_ENCRYPTION", f"redis://127.0.0.2:{away}"): WARN,
    }
