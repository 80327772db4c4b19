"""The real Debezium, with the settings of the guide, on what every kind of producer writes."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import asyncpg
import psycopg
import pytest

from postroom import Admin, Message, Outbox
from postroom.sources.kafka_records import received_from
from postroom.store.sql.steps import render
from tests.contract.waiting import wait_until
from tests.contract.write_support import Database
from tests.services.databases import need
from tests.services.debezium import Debezium, Record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from postroom.incoming import Incoming
    from tests.conftest import FreshDatabase

PAGE = (Path(__file__).parents[2] / "docs" / "guide" / "debezium.md").read_text(encoding="utf-8")
TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "grüße": "日本 😀"}
outbox = Outbox(cdc=True)


def settings() -> dict[str, str]:
    """The page's connector, but for how often it tells that it lives."""
    [block] = re.findall(r"^```json\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    config: dict[str, str] = json.loads(block)["config"]
    return {**config, "name": "postroom-outbox", "heartbeat.interval.ms": "300", "status.update.interval.ms": "300"}


def page_sql(mark: str) -> str:
    """The page's SQL block with this in it."""
    blocks: list[str] = re.findall(r"^```sql\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    [block] = [block for block in blocks if mark in block]
    return block.strip().rstrip(";")


class Expected(NamedTuple):
    """What one message is in Kafka."""

    topic: str
    key: str | None
    value: bytes | None
    type: str
    content_type: str
    headers: Mapping[str, str] = MappingProxyType({})
    aggregate: tuple[str | None, str | None] = (None, None)


JSON, BYTES = "application/json", "application/octet-stream"
EXPECTED = {
    "add": Expected("orders", "Ä 日本 😀", b'{"n":1}', "OrderCreated", JSON, TRACE, ("order", "ä7")),
    "no key, no type": Expected("orders.created", None, b"text", "orders.created", "text/plain; charset=utf-8"),
    "empty payload": Expected("orders", "k", b"", "orders", BYTES),
    "tombstone": Expected("orders", "k", None, "orders", BYTES),
    "all bytes": Expected("raw", None, bytes(range(256)), "Raw", "image/png"),
    "aadd": Expected("async", "7", b"[1]", "async", JSON),
    "add_many 1": Expected("many", "a", b"1", "many", JSON),
    "add_many 2": Expected("many", "a", b"2", "Two", JSON, {"h": "2"}),
    "function": Expected("sql", "Ä", b'{"n": 1}', "sql", JSON, {"h": "1"}),
    "function, tombstone": Expected("sql", None, None, "Gone", BYTES),
    "plain SQL": Expected("plain", "k", b"\x00\xff", "Plain", "image/png"),
}


def write_all(url: str) -> None:
    """Each in a transaction of its own, in the order of `EXPECTED`."""
    with psycopg.connect(url, autocommit=True) as connection:

        def add(topic: str, payload: Any, **fields: Any) -> None:
            with connection.transaction():
                outbox.add(connection, topic, payload, **fields)

        aggregate = {"aggregate_type": "order", "aggregate_id": "ä7"}
        add("orders", {"n": 1}, key="Ä 日本 😀", type="OrderCreated", headers=TRACE, **aggregate)
        add("orders.created", "text")
        add("orders", b"", key="k")
        add("orders", None, key="k")
        add("raw", bytes(range(256)), type="Raw", content_type="image/png")
        asyncio.run(add_async(url))
        with connection.transaction():
            two = [Message.new("many", 1, key="a"), Message.new("many", 2, key="a", type="Two", headers={"h": "2"})]
            outbox.add_many(connection, two)
        connection.execute("""SELECT postroom.add('sql', '{"n":1}', key => 'Ä', headers => '{"h": "1"}')""")
        connection.execute("SELECT postroom.add('sql', NULL, type => 'Gone')")
        statement = render(page_sql(":topic"), "format")
        values = {"topic": "plain", "type": "Plain", "key": "k", "payload": b"\x00\xff", "content_type": "image/png"}
        connection.execute(statement.text.encode(), [values[name] for name in statement.order])


async def add_async(url: str) -> None:
    connection = await asyncpg.connect(url)
    async with connection.transaction():
        await outbox.aadd(connection, "async", [1], key="7")
    await connection.close()


@pytest.fixture(scope="module")
def url(module_database: FreshDatabase) -> str:
    url = module_database("postgresql")
    with closing(Database(url).store), Admin(url) as admin:
        admin.debezium_on()
        assert ";\n".join(admin.debezium_sql()) == page_sql("CREATE PUBLICATION")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(page_sql("CREATE ROLE").encode())
    return url


@pytest.fixture(scope="module")
def debezium(url: str) -> Iterator[Debezium]:
    """Started after most was written: the slot has kept it."""
    write_all(url)
    debezium = Debezium(settings(), url)
    with closing(debezium):
        need(Debezium, debezium)
        wait_until(lambda: len(debezium.records()) >= len(EXPECTED))
        yield debezium


@pytest.fixture(scope="module")
def records(debezium: Debezium) -> dict[str, Record]:
    return dict(zip(EXPECTED, debezium.records(), strict=True))


def test_every_producers_messages_come_as_cloud_events_in_their_order(url: str, records: dict[str, Record]) -> None:
    with psycopg.connect(url) as connection:
        stored = connection.execute(
            "SELECT id, position, to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS') "
            "FROM postroom.outbox ORDER BY position"
        ).fetchall()
        assert connection.execute("SELECT count(*) FROM postroom.outbox_delivery").fetchone() == (0,)
    for (name, expected), (identifier, position, time) in zip(EXPECTED.items(), stored, strict=True):
        record = records[name]
        headers = dict(record.headers)
        assert len(headers) == len(record.headers), name
        assert record.topic == expected.topic, name
        assert record.key == _bytes(expected.key), name
        assert record.value == expected.value, name
        assert (headers.pop("ce_time") or b"").startswith(time.encode()), name
        assert json.loads(headers.pop("postroom-headers") or "{}") == expected.headers, name
        assert headers == {
            "ce_specversion": b"1.0",
            "ce_source": b"postroom",
            "ce_id": str(identifier).encode(),
            "ce_type": expected.type.encode(),
            "ce_sequence": str(position).encode(),
            "ce_partitionkey": _bytes(expected.key),
            "ce_aggregatetype": _bytes(expected.aggregate[0]),
            "ce_subject": _bytes(expected.aggregate[1]),
            "content-type": expected.content_type.encode(),
        }, name


def test_our_consumer_reads_them_as_if_a_relay_had_sent_them(records: dict[str, Record]) -> None:
    for name, expected in EXPECTED.items():
        found = consumed(records[name])
        assert found.problem is None, name
        assert found.id == str(UUID(found.id)), name
        assert (found.topic, found.key, found.payload) == (expected.topic, expected.key, expected.value), name
        assert (found.type, found.source, found.headers) == (expected.type, "postroom", expected.headers), name
        assert (found.aggregate_type, found.aggregate_id) == expected.aggregate, name
        assert found.content_type == expected.content_type, name
        assert found.position is not None, name
        assert found.created_at is not None, name
        assert found.expires_at is None, name


def test_what_kafka_has_not_taken_is_not_confirmed_and_comes_after_a_crash(url: str, debezium: Debezium) -> None:
    before = len(debezium.records())
    with debezium.held():
        start = one(url, "SELECT pg_current_wal_insert_lsn()::text")
        for n in range(3):  # the first may be held, and the others be read behind it
            one(url, "SELECT postroom.add('held', %s::text::jsonb)", str(n))
        with psycopg.connect(url) as connection:
            connection.execute("INSERT INTO business SELECT 'x' || n FROM generate_series(1, 1000) n")
        # It knows the end of the log, which has nothing for it, and has told so.
        wait_until(
            lambda: one(
                url,
                "SELECT write_lsn >= pg_current_wal_lsn() AND reply_time > statement_timestamp() - interval '1 s' "
                "FROM pg_stat_replication JOIN pg_replication_slots ON pid = active_pid WHERE slot_name = %s",
                settings()["slot.name"],
            )
        )
        assert one(url, "SELECT confirmed_flush_lsn < %s::pg_lsn + 200 FROM pg_replication_slots WHERE active", start)
        assert len(debezium.records()) == before
        debezium.stop(kill=True)
    debezium.start()
    wait_until(lambda: len(debezium.records()) >= before + 3)
    assert [record.value for record in debezium.records()[before:]] == [b"0", b"1", b"2"]


def test_it_confirms_what_others_write_gets_receipts_and_gives_the_outbox_back(url: str, debezium: Debezium) -> None:
    sent = "SELECT count(*) FROM postroom.outbox_receipt WHERE outcome = 'sent'"
    streamed = one(url, "SELECT count(*) FROM postroom.outbox WHERE streamed")
    with psycopg.connect(url) as connection:
        connection.execute("INSERT INTO business SELECT 'y' || n FROM generate_series(1, 1000) n")
    end = one(url, "SELECT pg_current_wal_insert_lsn()")
    wait_until(lambda: one(url, f"SELECT confirmed_flush_lsn >= '{end}' FROM pg_replication_slots WHERE active"))
    with Admin(url) as admin:
        admin.cleanup()
        wait_until(lambda: (admin.cleanup(), one(url, sent))[1] == streamed)
        before = len(debezium.records())
        with psycopg.connect(url) as connection:
            outbox.add(connection, "orders", {"last": True}, key="k")
        admin.debezium_off()
    assert len(debezium.records()) == before + 1
    with psycopg.connect(url) as connection:
        outbox.add(connection, "orders", {"in": "the table"}, key="k")
    assert one(url, "SELECT mode FROM postroom.outbox_stream") == "table"
    assert one(url, "SELECT count(*) FROM postroom.outbox_delivery") == 1
    assert one(url, sent) == streamed + 1


def one(url: str, statement: str, *values: object) -> Any:
    """The first value that a statement finds."""
    with psycopg.connect(url, autocommit=True) as connection:
        return (connection.execute(statement.encode(), values or None).fetchone() or (None,))[0]


class Received:
    """A record as the client of Kafka gives it."""

    def __init__(self, record: Record) -> None:
        self._record = record

    def topic(self) -> str:
        return self._record.topic

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 0

    def timestamp(self) -> tuple[int, int]:
        return 1, 0

    def key(self) -> bytes | None:
        return self._record.key

    def value(self) -> bytes | None:
        return self._record.value

    def headers(self) -> list[tuple[str, bytes | None]]:
        return self._record.headers


def consumed(record: Record) -> Incoming:
    partition: Any = type("Partition", (), {"topic": record.topic, "rewinds": 0})
    return received_from(partition, Received(record)).message


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()
