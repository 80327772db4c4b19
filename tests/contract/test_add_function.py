"""PostgreSQL's function `add`, for producers in other languages: the same rules as `Outbox.add`."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import psycopg
import pytest

from postroom import encoding
from postroom.message import Message
from postroom.rules.ordering import key_hash, lane_of
from tests.contract.schema_support import engine_for, init, names_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import FreshDatabase

Connection = psycopg.Connection[dict[str, Any]]


@pytest.fixture(scope="module")
def url(module_database: FreshDatabase) -> str:
    url = module_database("postgresql")
    with engine_for(url) as engine:
        init(engine, names_for(url))
    return url


@pytest.fixture
def connection(url: str) -> Iterator[Connection]:
    with connect(url) as connection:
        yield connection
        connection.rollback()


def connect(url: str) -> Connection:
    return psycopg.connect(url, row_factory=psycopg.rows.dict_row)


def add(connection: Connection, topic: str | None = "orders", payload: str | None = "{}", **rest: Any) -> UUID:
    named = "".join(f", {name} => %({name})s" for name in rest)
    call = f"SELECT postroom.add(%(topic)s::text, %(payload)s::jsonb{named}) AS id"
    row = connection.execute(call.encode(), {"topic": topic, "payload": payload, **rest}).fetchone()
    assert row is not None
    assert isinstance(row["id"], UUID)
    return row["id"]


def stored(connection: Connection, identifier: UUID) -> dict[str, Any]:
    """The message with its delivery, whose due time is None where it is minus infinity."""
    row = connection.execute(
        "SELECT m.*, d.queue AS delivery_queue, d.state, d.lane, d.key_hash, nullif(d.due, '-infinity') AS due "
        "FROM postroom.outbox m JOIN postroom.outbox_delivery d USING (position) WHERE id = %s",
        [identifier],
    ).fetchone()
    assert row is not None
    return row


def test_O_1_the_message_is_in_the_callers_transaction(connection: Connection) -> None:
    identifier = add(connection)
    assert stored(connection, identifier)["topic"] == "orders"
    connection.rollback()
    left = connection.execute("SELECT 1 FROM postroom.outbox WHERE id = %s", [identifier]).fetchone()
    assert left is None


def test_O_2_everything_given_is_recorded(connection: Connection) -> None:
    given: dict[str, Any] = {
        "type": "OrderCreated",
        "aggregate_type": "order",
        "aggregate_id": "7",
        "key": "7",
        "idempotency_key": "once",
        "expires_at": datetime(2999, 1, 1, tzinfo=UTC),
    }
    identifier = uuid4()
    assert add(connection, payload='{"order":  7}', headers='{"a": "b"}', id=identifier, **given) == identifier
    row = stored(connection, identifier)
    assert {name: row["ordering_key" if name == "key" else name] for name in given} == given
    assert row["payload"] == b'{"order": 7}'
    assert row["content_type"] == "application/json"
    assert row["headers"] == {"a": "b"}
    assert row["queue"] == row["delivery_queue"] == "default"


def test_the_id_is_a_time_ordered_uuid(connection: Connection) -> None:
    row = stored(connection, first := add(connection))
    assert first.version == 7
    assert first.variant == UUID(int=1 << 63).variant
    made = datetime.fromtimestamp((first.int >> 80) / 1000, UTC)
    assert abs(made - row["created_at"]) < timedelta(seconds=5)


@pytest.mark.parametrize("key", ["7", "a", "Ä", "日本", "x" * 255])
def test_L_16_the_lane_is_that_of_python(connection: Connection, key: str) -> None:
    row = stored(connection, add(connection, key=key))
    assert (row["key_hash"], row["lane"]) == (key_hash(key), lane_of(key_hash(key)))


def test_without_a_key_there_is_no_lane(connection: Connection) -> None:
    row = stored(connection, add(connection))
    assert (row["state"], row["lane"], row["key_hash"], row["due"]) == (0, -1, None, None)


def test_the_digest_frames_its_parts_as_python_does(connection: Connection) -> None:
    row = stored(connection, add(connection, "tópic", '{"a": 1}', type="T", key="k", aggregate_id="ä"))
    assert row["digest"] == encoding.digest("tópic", "T", None, "ä", "k", "application/json", b'{"a": 1}')


def test_a_tombstone_is_that_of_python(connection: Connection) -> None:
    row = stored(connection, add(connection, "orders", None, key="7"))
    message = Message.new("orders", None, key="7")
    assert (row["payload"], row["content_type"], row["digest"]) == (None, message.content_type, message.digest)


def test_a_message_for_later_is_scheduled(connection: Connection) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    row = stored(connection, add(connection, deliver_at=later, key="k"))
    assert (row["state"], row["due"]) == (1, later)


def test_a_time_that_has_passed_means_now(connection: Connection) -> None:
    row = stored(connection, add(connection, deliver_at=datetime(2001, 1, 1, tzinfo=UTC)))
    assert (row["state"], row["due"]) == (0, None)


def test_O_3_the_same_key_and_content_is_recorded_once(connection: Connection) -> None:
    first = add(connection, payload='{"a": 1, "b": 2}', idempotency_key="k")
    assert add(connection, payload='{"b": 2, "a": 1}', idempotency_key="k") == first
    count = connection.execute("SELECT count(*) FROM postroom.outbox_delivery").fetchone()
    assert count == {"count": 1}


@pytest.mark.parametrize("other", [{"payload": "2"}, {"topic": "invoices"}, {"type": "T"}, {"key": "7"}])
def test_O_3_the_same_key_with_other_content_is_refused(connection: Connection, other: dict[str, str]) -> None:
    first = add(connection, payload="1", idempotency_key="k")
    with pytest.raises(psycopg.errors.UniqueViolation, match="idempotency key k was used") as refusal:
        add(connection, **{"payload": "1", "idempotency_key": "k"} | other)
    assert str(first) in str(refusal.value)
    assert "use a new key" in str(refusal.value.diag.message_hint)


def test_O_3_a_key_that_another_transaction_is_using_is_waited_for(url: str, connection: Connection) -> None:
    key = uuid4().hex
    first = add(connection, idempotency_key=key)
    found: list[UUID] = []

    def add_too() -> None:
        with connect(url) as other:
            found.append(add(other, idempotency_key=key))

    thread = threading.Thread(target=add_too)
    thread.start()
    with connect(url) as observer:
        observer.autocommit = True
        waiting = (
            "SELECT count(*) AS n FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        while observer.execute(waiting).fetchone() != {"n": 1}:
            assert thread.is_alive()
    connection.commit()
    thread.join()
    assert found == [first]


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"topic": ""}, "topic has 0 characters"),
        ({"topic": None}, "topic has 0 characters"),
        ({"topic": "x" * 256}, "topic has 256 characters"),
        ({"topic": "a\nb"}, "topic holds a control character"),
        ({"type": ""}, "type has 0 characters"),
        ({"key": ""}, "key has 0 characters"),
        ({"key": "x" * 256}, "key has 256 characters"),
        ({"aggregate_type": "x" * 256}, "aggregate_type has 256 characters"),
        ({"aggregate_id": ""}, "aggregate_id has 0 characters"),
        ({"idempotency_key": ""}, "idempotency_key has 0 characters"),
        ({"headers": "[]"}, "headers are not a JSON object of strings"),
        ({"headers": '{"a": 1}'}, "headers are not a JSON object of strings"),
        ({"headers": '{"": "a"}'}, 'header "" has a name of 0 characters'),
        ({"headers": '{"a": "b", "c\\n": "d"}'}, "holds a control character"),
        ({"headers": '{"a": "b\\u0085"}'}, 'header "a" holds a control character'),
        ({"headers": json.dumps({"x" * 256: "a"})}, "has a name of 256 characters"),
        *(
            ({"headers": json.dumps({"a": "b", name: "[]"})}, f'header "{name}" is one of Postroom\'s own')
            for name in ("postroom-ledger", "Postroom-Ledger", " POSTROOM_LEDGER ", "postroom-received-id")
        ),
        ({"idempotency_key": "postroom:parked:7:billing:1"}, "idempotency_key begins with postroom:"),
        ({"idempotency_key": "k "}, "or ends with a space"),
        ({"deliver_at": "2999-01-02", "expires_at": "2999-01-01"}, "is not after deliver_at"),
        *(
            ({name: moment}, f"{name} .* is outside the years 1000 to 9998")
            for name in ("deliver_at", "expires_at")
            for moment in ("infinity", "-infinity", "20000-01-01", "4000-01-01 BC", "0999-12-31", "9999-01-02")
        ),
    ],
)
def test_O_4_bad_input_is_refused_with_what_to_do(connection: Connection, wrong: dict[str, Any], problem: str) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=problem) as refusal:
        add(connection, **wrong)
    assert refusal.value.diag.message_hint


def test_an_id_that_is_already_there_is_refused(connection: Connection) -> None:
    first = add(connection)
    with pytest.raises(psycopg.errors.UniqueViolation, match="already in the outbox"):
        add(connection, id=first)
