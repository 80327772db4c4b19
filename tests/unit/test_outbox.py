"""Outbox and Inbox without a server: settings, masking, and what they load."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from postroom import Inbox, Message, Outbox
from postroom.errors import InvalidIdentifier, InvalidMessage, InvalidSetting, PayloadTooLarge, SchemaMissing
from postroom.store.connections.stores import Store
from postroom.store.schema.migrations import upgrade
from postroom.store.sql.names import Names

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "test.db"
    create(path)
    return path


def create(path: Path, prefix: str | None = None) -> None:
    store = Store(f"sqlite:///{path}")
    store.call(lambda connection: upgrade(connection, Names.of("sqlite", None, prefix)))
    store.close()


@pytest.fixture
def connection(database: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(database)) as connection:
        yield connection


def payloads(connection: sqlite3.Connection, table: str = "postroom_outbox") -> list[bytes]:
    return [payload for [payload] in connection.execute(f"SELECT payload FROM {table} ORDER BY position")]


def test_O_4_the_mask_decides_what_is_stored(connection: sqlite3.Connection) -> None:
    seen: list[tuple[str, Any]] = []

    def mask(topic: str, payload: Any) -> Any:
        seen.append((topic, payload))
        return {**payload, "card": "****"}

    outbox = Outbox(mask=mask)
    message = outbox.add(connection, "orders", {"order": 7, "card": "4111"})
    [other] = outbox.add_many(connection, [outbox.message("orders", {"order": 8, "card": "4222"}, key="8")])
    assert payloads(connection) == [b'{"order":7,"card":"****"}', b'{"order":8,"card":"****"}']
    assert seen == [("orders", {"order": 7, "card": "4111"}), ("orders", {"order": 8, "card": "4222"})]
    assert (message.json()["card"], other.json()["card"], other.key) == ("****", "****", "8")


def test_O_4_the_mask_may_refuse(connection: sqlite3.Connection) -> None:
    def mask(topic: str, payload: Any) -> Any:
        raise PermissionError(topic, type(payload))

    with pytest.raises(PermissionError):
        Outbox(mask=mask).add(connection, "orders", {})
    assert payloads(connection) == []


def test_O_4_the_limit_is_a_megabyte_unless_set_otherwise(
    connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    Outbox().add(connection, "orders", b"x" * 1_048_576)
    with pytest.raises(PayloadTooLarge, match="has 1,048,577 bytes of payload and headers, the limit is 1,048,576"):
        Outbox().add(connection, "orders", b"x" * 1_048_577)
    Outbox(max_payload_bytes=2_000_000).add(connection, "orders", b"x" * 1_048_577)
    monkeypatch.setenv("POSTROOM_MAX_PAYLOAD_BYTES", "10")
    with pytest.raises(PayloadTooLarge, match="the limit is 10"):
        Outbox().add(connection, "orders", b"x" * 11)
    assert len(payloads(connection)) == 2


def test_the_settings_say_where_the_tables_are(
    database: Path, connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(database, "own_")
    Outbox(table_prefix="own_").add(connection, "orders", b"by argument")
    monkeypatch.setenv("POSTROOM_TABLE_PREFIX", "own_")
    Outbox().add(connection, "orders", b"by environment")
    assert Inbox("billing").first_time(connection, "7")
    assert payloads(connection, "own_outbox") == [b"by argument", b"by environment"]
    assert payloads(connection) == []
    assert connection.execute("SELECT consumer, message_id FROM own_inbox").fetchall() == [("billing", "7")]


def test_tables_that_are_not_there_are_missed_with_the_way_to_make_them(connection: sqlite3.Connection) -> None:
    with pytest.raises(SchemaMissing, match="run `postroom init`, or check schema and table prefix"):
        Outbox(table_prefix="missing_").add(connection, "orders")


@pytest.mark.parametrize("prefix", ["a-b", "1a", "a b", 'a"', "a" * 40])
def test_a_name_that_is_no_identifier_is_refused_at_once(prefix: str) -> None:
    with pytest.raises(InvalidIdentifier, match="table prefix"):
        Outbox(table_prefix=prefix)
    with pytest.raises(InvalidIdentifier, match="table prefix"):
        Inbox("billing", table_prefix=prefix)
    with pytest.raises(InvalidIdentifier, match="schema"):
        Outbox(schema=f"{prefix}-")


def test_a_schema_on_sqlite_is_refused(connection: sqlite3.Connection) -> None:
    with pytest.raises(InvalidIdentifier, match="SQLite has no schemas"):
        Outbox(schema="shop").add(connection, "orders")


def test_a_bad_setting_is_refused_at_once() -> None:
    with pytest.raises(InvalidSetting, match="max_payload_bytes = 0 is not valid"):
        Outbox(max_payload_bytes=0)


def test_an_idempotency_key_that_reads_like_an_error_is_reported_as_what_it_is(connection: sqlite3.Connection) -> None:
    from postroom.errors import IdempotencyConflict

    outbox = Outbox()
    outbox.add(connection, "orders", 1, idempotency_key="no such table")
    with pytest.raises(IdempotencyConflict):
        outbox.add(connection, "orders", 2, idempotency_key="no such table")


def test_messages_of_a_generator_are_recorded(connection: sqlite3.Connection) -> None:
    recorded = Outbox().add_many(connection, (Message.new("orders", n) for n in range(3)))
    assert [message.json() for message in recorded] == [0, 1, 2]
    assert payloads(connection) == [b"0", b"1", b"2"]


def test_adding_over_sqlite3_loads_neither_sqlalchemy_nor_another_driver(database: Path) -> None:
    program = (
        "import sqlite3, sys; from postroom import Outbox; connection = sqlite3.connect(sys.argv[1]); "
        "Outbox().add(connection, 'orders', {'order': 7}); connection.commit(); connection.close(); "
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'sqlalchemy', 'psycopg', 'asyncpg', "
        "'pymysql', 'aiosqlite', 'asyncmy', 'django', 'typer', 'rich', 'opentelemetry', 'pydantic'}))"
    )
    shown = subprocess.run([sys.executable, "-c", program, str(database)], check=True, capture_output=True, text=True)
    assert shown.stdout.strip() == "[]"
    with closing(sqlite3.connect(database)) as connection:
        assert payloads(connection) == [b'{"order":7}']


@pytest.mark.parametrize("messages", [None, 7, Message.new("t")])
def test_add_many_of_what_is_no_list_is_refused_in_words(messages: Any) -> None:
    with pytest.raises(InvalidMessage, match="add_many takes a list of messages"):
        Outbox().add_many(object(), messages)


class TestTopicsOfAKnownBroker:
    """What a broker cannot have, or keeps to itself, is refused where it is added."""

    @pytest.mark.parametrize("topic", ["$JS.API.STREAM.PURGE.X", "_INBOX.a", "orders.*", "a b"])
    def test_R_9_a_topic_that_it_cannot_have_is_refused(self, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("POSTROOM_BROKER", "nats://host")
        connection = sqlite3.connect(":memory:")
        with closing(connection), pytest.raises(InvalidMessage, match=re.escape(repr(topic))):
            Outbox().add(connection, topic, "a")

    def test_the_broker_of_the_pattern_decides(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("POSTROOM_BROKER", "nats://host")
        monkeypatch.setenv("POSTROOM_BROKERS", "queue.*=amqp://host?exchange=e raw.*=stdout:")
        outbox = Outbox()
        messages = [Message.new(topic, "a") for topic in ("orders", "queue.$a *", "raw.$ *")]
        outbox._accept(messages)
        with pytest.raises(InvalidMessage, match="not a subject"):
            outbox._accept([Message.new("orders *", "a")])

    def test_without_a_broker_any_topic_is_recorded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("POSTROOM_BROKER", raising=False)
        Outbox()._accept([Message.new("$JS.a *", "a")])
