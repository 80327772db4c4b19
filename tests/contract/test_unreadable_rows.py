"""Rows that a program in plain SQL wrote wrongly: such a message is dead, with the reason, and no other is affected."""

from __future__ import annotations

import json
import re
from contextlib import closing
from typing import TYPE_CHECKING, get_args
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postroom.admin import ALL, Filter, as_json
from postroom.brokers.cloudevents import AMQP, HTTP, KAFKA, NATS, REDIS, Envelope, Mode
from postroom.cli.output import print_json
from postroom.errors import DatabaseUnreachable
from postroom.rules.failures import Reason
from postroom.rules.ordering import NO_LANE, key_hash, lane_of
from postroom.store.admin.backlog import BacklogReader
from postroom.store.admin.retention import swept
from postroom.store.admin.settled_messages import SettledMessages
from postroom.store.connections.stores import Store
from postroom.store.outbox.leases import Sent
from postroom.store.outbox.rerouting import Rerouting
from tests.contract.schema_support import without_guards
from tests.contract.store_drivers import Driver, Room, only_on, single

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from postroom.store.outbox.leases import Claimed
    from tests.conftest import FreshDatabase


@pytest.fixture(scope="module")
def urls(module_database: FreshDatabase) -> Callable[[str], str]:
    """Databases whose tables refuse nothing: as one of an earlier version, which took everything."""
    made: dict[str, str] = {}

    def url_of(kind: str) -> str:
        if kind not in made:
            made[kind] = module_database(kind)
            without_guards(made[kind])
        return made[kind]

    return url_of


@pytest.fixture(scope="module")
def opened_room(driver: Driver, urls: Callable[[str], str]) -> Iterator[Room]:
    url = urls(driver.kind)
    with (
        closing(driver.open(url)) as store,
        closing(Store(url)) as producer,
        closing(Room(store, driver, producer, url)) as room,
    ):
        yield room


def write(
    room: Room,
    key: str | None,
    message: dict[str, str],
    delivery: dict[str, str] | None = None,
    params: dict[str, object] | None = None,
) -> int:
    """Write a message with its delivery, as SQL; what is not given is as in a good one. Returns its position."""
    hashed = None if key is None else key_hash(key)
    columns = {
        "id": f"'{uuid4()}'",
        "topic": "'orders'",
        "ordering_key": "NULL" if key is None else f"'{key}'",
        "content_type": "'application/json'",
        "payload": {"postgresql": "'{}'::bytea", "sqlite": "CAST('{}' AS BLOB)", "mysql": "'{}'"}[room.names.dialect],
        **message,
    }
    room.producer.run(
        single(
            f"INSERT INTO {room.tables['outbox']} ({', '.join(columns)}) VALUES ({', '.join(columns.values())})", params
        )
    )
    [[position]] = room.select("SELECT max(position) FROM {outbox}")
    states = {
        "position": str(position),
        "lane": str(NO_LANE if hashed is None else lane_of(hashed)),
        "key_hash": "NULL" if hashed is None else str(hashed),
        **(delivery or {}),
    }
    room.producer.run(
        single(f"INSERT INTO {room.tables['delivery']} ({', '.join(states)}) VALUES ({', '.join(states.values())})")
    )
    return int(position)


EVERYWHERE = {
    "header of a number": ({"headers": """'{"n": 1}'"""}, "headers are not a JSON object of strings"),
    "header of null": ({"headers": """'{"n": null}'"""}, "headers are not a JSON object of strings"),
    "headers nested": ({"headers": """'{"n": {"m": "x"}}'"""}, "headers are not a JSON object of strings"),
    "headers as an array": ({"headers": """'["n"]'"""}, "headers are not a JSON object of strings"),
    "headers as a text": ({"headers": """'"n"'"""}, "headers are not a JSON object of strings"),
    "header without a name": ({"headers": """'{"": "x"}'"""}, "headers are not a JSON object of strings"),
    "line break in a header": ({"headers": r"""'{"n": "a\\nb"}'"""}, "header 'n' holds the character"),
    "empty topic": ({"topic": "''"}, "topic is empty"),
    "line break in the topic": ({"topic": "'a\nb'"}, r"topic holds the character '\\n'"),
    "empty type": ({"type": "''"}, "type is empty"),
    "empty content type": ({"content_type": "''"}, "content_type is empty"),
    "line break in the content type": ({"content_type": "'a\nb'"}, "content_type holds the character"),
    "empty key": ({"ordering_key": "''"}, "key is empty"),
    "empty aggregate id": ({"aggregate_id": "''"}, "aggregate_id is empty"),
}
LOOSE = {
    "no UUID": ({"id": "'order-7'"}, "id 'order-7' is not a UUID"),
    "no JSON": ({"headers": "'{'"}, "headers are not a JSON object of strings"),
    "headers that are empty": ({"headers": "' '"}, "headers are not a JSON object of strings"),
    "NUL in the key": ({"ordering_key": "concat('a', char(0))"}, "key holds the character"),
}
SQLITE = {
    "bytes as topic": ({"topic": "x'6162'"}, "topic must be a str, not bytes"),
    "bytes as key": ({"ordering_key": "x'ff'"}, "ordering_key is bytes, not text"),
    "bytes as idempotency key": ({"idempotency_key": "x'fe'"}, "idempotency_key must be a str, not bytes"),
    "topic that is no UTF-8": ({"topic": "CAST(x'61ff' AS TEXT)"}, "topic holds the character"),
    "header that is no UTF-8": ({"headers": """CAST(x'7b2261223a2022ff227d' AS TEXT)"""}, "cannot be read"),
    "key that is too long": ({"ordering_key": f"'{'x' * 256}'"}, "key has 256 characters"),
    "number as payload": ({"payload": "7"}, "payload is a number"),
    "expires at no moment": ({"expires_at": "'tomorrow'"}, "expires_at 'tomorrow' is not a time"),
    "created at no moment": ({"created_at": "'yesterday'"}, "created_at 'yesterday' is not a time"),
}
FINE = {
    "postgresql": {
        "expires never": {"expires_at": "'infinity'"},
        "expires in the year 20000": {"expires_at": "'20000-01-01'"},
        "created at the end of time": {"created_at": "'infinity'"},
        "created in the year 20000": {"created_at": "'20000-01-01'"},
        "created before Christ": {"created_at": "'4000-01-01 BC'"},
    },
    "mysql": {"created at the end of time": {"created_at": "'9999-12-31 23:59:59'"}},
    "sqlite": {"text as payload": {"payload": "'{\"ä\": 1}'"}, "number as topic": {"topic": "7"}},
}


def bad_rows(room: Room) -> dict[str, tuple[dict[str, str], str]]:
    match room.names.dialect:
        case "postgresql":
            return EVERYWHERE
        case "mysql":
            return EVERYWHERE | LOOSE
        case _:
            no_concat = {"NUL in the key": ({"ordering_key": "'a' || char(0)"}, "key holds the character")}
            escaped = {"line break in a header": ({"headers": r"""'{"n": "a\nb"}'"""}, "header 'n' holds")}
            return EVERYWHERE | LOOSE | no_concat | escaped | SQLITE


def fine_rows(room: Room) -> dict[str, dict[str, str]]:
    return FINE[room.names.dialect]


def literal(room: Room, message: dict[str, str]) -> dict[str, str]:
    """PostgreSQL takes a backslash in a literal as it is, as SQLite does."""
    if room.names.dialect == "postgresql":
        return {name: value.replace("\\\\", "\\") for name, value in message.items()}
    return message


def send_all(room: Room, send: Callable[[Claimed], None] = lambda _: None) -> list[int]:
    """Claim and send as a relay does until there is nothing left; returns the positions that were sent, in order."""
    sent: list[int] = []
    lanes = room.take_lanes()
    while True:
        room.run(room.deliveries.lanes.promote(lanes))
        claims = [room.run(room.deliveries.rows.claim("worker", 100, 30)), room.read_lanes(lanes)]
        if not any(claim.found for claim in claims):
            room.run(room.deliveries.lanes.release(lanes))
            return sent
        for claim in claims:
            for one in claim.messages:
                send(one)
            assert room.settle(*map(Sent, claim.messages)) == []
            sent += [one.position for one in claim.messages]


@pytest.mark.parametrize("key", [None, "7"])
def test_B_3_a_row_that_cannot_be_read_is_dead_and_its_neighbours_are_sent(room: Room, key: str | None) -> None:
    good: list[int] = []
    bad: dict[int, str] = {}
    for message, problem in bad_rows(room).values():
        good.append(write(room, None if key is None else f"{len(good)}", {}))
        bad[write(room, None if key is None else f"bad {len(bad)}", literal(room, message))] = problem
        good.append(write(room, None if key is None else f"{len(good)}", {}))
    assert sorted(send_all(room)) == good
    for position, problem in bad.items():
        row = room.delivery(position)
        assert (row.state, row.error_code, row.attempts) == (3, Reason.UNDECODABLE, 0), problem
        assert re.search(problem, row.error_message)


def test_B_3_what_can_be_read_is_sent(room: Room) -> None:
    rows = [write(room, None, message) for message in fine_rows(room).values()]
    assert send_all(room) == rows


@only_on("sqlite")
@pytest.mark.parametrize("key", [None, "7"])
@pytest.mark.parametrize("column", ["size", "attempts", "claims"])
def test_B_3_counts_that_are_no_numbers_count_as_none(room: Room, column: str, key: str | None) -> None:
    """No SQL function wrote them, and no trigger looks at what is changed by hand."""
    rows = [write(room, key, {}), write(room, key, {}, {column: "'many'"}), write(room, key, {})]
    assert send_all(room) == rows


def test_L_16_what_stands_behind_an_unreadable_message_of_its_key_waits(room: Room) -> None:
    first = write(room, "7", {})
    bad = write(room, "7", {"headers": """'{"n": 1}'"""})
    behind = write(room, "7", {})
    other = write(room, "8", {})
    assert sorted(send_all(room)) == [first, other]
    assert room.positions(3) == [bad]
    room.admin().discard(ALL, actor="ada")
    assert send_all(room) == [behind]


def test_a_row_without_a_size_counts_with_its_real_size(room: Room) -> None:
    content = {"postgresql": "repeat('x', 600)::bytea", "mysql": "repeat('x', 600)", "sqlite": "zeroblob(600)"}
    payload = {"payload": content[room.names.dialect], "headers": """'{"n": "x"}'"""}
    rows = [write(room, None, payload) for _ in range(3)]
    rows.append(write(room, None, payload, {"size": "-5"}))
    claim = room.run(room.deliveries.rows.claim("worker", 100, 30, most_bytes=1000))
    assert [one.position for one in claim.messages] == rows[:2]
    assert all(600 < one.size < 620 for one in claim.messages)
    keyed = [write(room, "7", payload) for _ in range(3)]
    read = room.read_lanes(room.take_lanes(), most_bytes=1000)
    assert [one.position for one in read.messages] == keyed[:2]
    assert all(600 < one.size < 620 for one in read.messages)


def test_B_3_operators_can_look_at_unreadable_rows_and_act_on_them(room: Room) -> None:
    rows: list[int] = []
    for n, (message, _) in enumerate(bad_rows(room).values()):
        rows.append(write(room, f"{n}" if n % 2 else None, literal(room, message)))
        write(room, None, {})
    send_all(room)
    admin = room.admin()
    letters = admin.dead_letters(limit=1000)
    assert sorted(letter.position for letter in letters) == rows
    looked_at = 0
    for letter in letters:
        if letter.id is not None and is_uuid(letter.id):
            found = admin.dead_letter(letter.id)
            assert found.delivery is not None
            assert (found.delivery.error_code, found.status) == (Reason.UNDECODABLE, "dead")
            admin.message(letter.id, payload=True)
            looked_at += 1
    assert looked_at >= len(rows) - 1
    admin.status()
    assert len(admin.messages(limit=1000)) == 2 * len(rows)
    room.run(BacklogReader(room.names).backlog())
    assert admin.count_dead_letters().total == len(rows)
    known = [letter.id for letter in letters if letter.id is not None and is_uuid(letter.id)]
    assert admin.requeue(Filter(ids=known[:2]), actor="ada").count == 2
    assert admin.requeue(ALL, actor="ada").count == len(rows) - 2
    assert admin.status().dead == 0
    assert send_all(room) == []
    assert admin.discard(Filter(ids=known[:2]), actor="ada").count == 2
    assert admin.discard(Filter(code=Reason.UNDECODABLE), actor="ada").count == len(rows) - 2
    assert room.run(swept(SettledMessages(room.names, -10))) == len(rows)


def is_uuid(text: str) -> bool:
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False


@pytest.fixture
def guarded(driver: Driver, contract_database: Callable[[str], str]) -> Iterator[Room]:
    """Tables as they are made now."""
    url = contract_database(driver.kind)
    with closing(driver.open(url)) as store, closing(Store(url)) as producer:
        room = Room(store, driver, producer)
        room.empty()
        yield room


REFUSED = {
    "postgresql": EVERYWHERE.keys() - {"line break in a header", "line break in the content type"},
    "mysql": {"no UUID", "no JSON", "headers that are empty", "headers as an array", "headers as a text"}
    | {"empty topic", "empty type", "empty content type", "empty key", "empty aggregate id"},
    "sqlite": (EVERYWHERE | LOOSE | SQLITE).keys()
    - {"line break in a header", "line break in the topic", "line break in the content type", "NUL in the key"}
    - {"topic that is no UTF-8", "header that is no UTF-8"},
}


@only_on("sqlite3", "psycopg", "pymysql")
def test_O_4_the_tables_refuse_what_they_can(guarded: Room) -> None:
    """And what they cannot is dead: the same rows as above, whoever catches them."""
    for name, (message, _) in bad_rows(guarded).items():
        if name in REFUSED[guarded.names.dialect]:
            with pytest.raises(Exception, match=r"check constraint|postroom: |CONSTRAINT"):
                write(guarded, None, literal(guarded, message))
        else:
            write(guarded, None, literal(guarded, message))
    assert send_all(guarded) == []


BAD_DELIVERIES = [{"size": "-1"}, {"lane": "16"}, {"lane": "-2"}, {"state": "7"}]


@only_on("sqlite3", "psycopg", "pymysql")
def test_O_4_deliveries_out_of_range_are_refused(guarded: Room) -> None:
    moments = {"postgresql": ["'infinity'", "'20000-01-01'"], "sqlite": ["'tomorrow'", "7"], "mysql": []}
    for wrong in [*BAD_DELIVERIES, *({"due": moment} for moment in moments[guarded.names.dialect])]:
        with pytest.raises(Exception, match=r"check constraint|postroom: |CONSTRAINT"):
            write(guarded, None, {}, wrong)


@pytest.mark.parametrize("moment", ["'infinity'", "'-infinity'", "'20000-01-01'", "'4000-01-01 BC'"])
@only_on("postgresql")
def test_moments_that_python_does_not_know_break_no_question(room: Room, moment: str) -> None:
    write(room, None, {"created_at": moment}, {"state": "1", "due": moment, "failed_at": moment})
    position = write(room, None, {"created_at": moment}, {"state": "3", "due": moment, "failed_at": moment})
    write(room, "7", {"created_at": moment, "expires_at": moment}, {"due": moment})
    admin = room.admin()
    assert len(admin.messages()) == 3
    assert [letter.position for letter in admin.dead_letters()] == [position]
    assert admin.status().oldest_pending_seconds == 0.0
    room.run(BacklogReader(room.names).backlog())
    for [identifier] in room.select("SELECT id FROM {outbox}"):
        admin.message(str(identifier))
    send_all(room)


@only_on("sqlite")
def test_what_has_no_topic_of_text_is_sorted_like_the_rest(room: Room) -> None:
    write(room, None, {"topic": "x'6162'"})
    write(room, None, {"topic": "CAST(x'61ff' AS TEXT)"})
    room.run(
        Rerouting(room.names, "default").reroute(lambda topic: "elsewhere" if topic.startswith("a") else "default")
    )
    assert sorted(queue for [queue] in room.select("SELECT queue FROM {delivery}")) == ["default", "elsewhere"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
).map(json.dumps)
HEADERS = st.none() | JSON | st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2).map(json.dumps)
TEXT = st.text(max_size=12) | st.sampled_from(["", " ", "a\x7f", "\x85", "a\0b", "x" * 256, "orders", "日本", "\ud800"])
MOMENT = st.sampled_from(
    ["infinity", "-infinity", "20000-01-01", "4000-01-01 BC", "0000-00-00", "1000-01-01", "9999-12-31 23:59:59.999"]
) | st.datetimes().map(lambda moment: moment.isoformat(" ", "milliseconds"))
COLUMNS: dict[str, st.SearchStrategy[object]] = {
    "topic": TEXT,
    "type": TEXT | st.none(),
    "content_type": TEXT,
    "aggregate_type": TEXT | st.none(),
    "aggregate_id": TEXT | st.none(),
    "ordering_key": TEXT | st.none(),
    "idempotency_key": TEXT | st.none(),
    "digest": TEXT | st.none(),
    "headers": HEADERS,
    "expires_at": MOMENT | st.none(),
    "created_at": MOMENT,
}
CAST = {"headers": "::text::jsonb", "expires_at": "::text::timestamptz", "created_at": "::text::timestamptz"}
STRANGE = {
    "id": st.text(max_size=36),
    "headers": HEADERS | st.text(max_size=9),
    "payload": st.binary(max_size=9) | TEXT,
}
ROWS = st.fixed_dictionaries({}, optional=COLUMNS)
LOOSE_ROWS = st.fixed_dictionaries({}, optional={**COLUMNS, **STRANGE})
SQLITE_ROWS = st.fixed_dictionaries(
    {},
    optional={
        name: strategy | st.binary(max_size=6) | st.integers(-(2**63), 2**63 - 1)
        for name, strategy in {**COLUMNS, **STRANGE}.items()
    },
)


def write_any(room: Room, key: str | None, values: dict[str, object]) -> int | None:
    """Write a message with these values; None where the database takes none of it."""
    is_postgresql = room.names.dialect == "postgresql"
    casts = {name: CAST.get(name, "::text") if is_postgresql and name != "payload" else "" for name in values}
    try:
        return write(room, key, {name: f":{name}{cast}" for name, cast in casts.items()}, params=values)
    except Exception as error:  # noqa: BLE001 - each driver refuses in its own words
        assert_refused(error)
        return None


def assert_refused(error: Exception) -> None:
    assert not isinstance(error, DatabaseUnreachable | AssertionError)


@only_on("sqlite3", "asyncpg", "pymysql")
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_B_3_whatever_stands_between_two_messages_they_are_sent_once(room: Room, data: st.DataObject) -> None:
    room.empty()
    strategies = {"postgresql": ROWS, "mysql": LOOSE_ROWS, "sqlite": SQLITE_ROWS}
    key = data.draw(st.sampled_from([None, "7"]))
    values = data.draw(strategies[room.names.dialect])
    before = write(room, "before" if key else None, {})
    bad = write_any(room, key, values)
    after = write(room, "after" if key else None, {})
    sealed: list[int] = []
    sent = send_all(room, lambda one: sealed.append(seal(one)))
    assert sorted(set(sent) - {bad}) == [before, after]
    assert len(sent) == len(set(sent)) == len(sealed)
    if bad is not None:
        row = room.find_delivery(bad)
        fate = "sent" if bad in sent else "expired" if room.receipts().get(bad) == "expired" else "dead"
        assert fate != "dead" or (row is not None and (row.state, row.error_code) == (3, Reason.UNDECODABLE))
    look_at_everything(room, cancels=data.draw(st.booleans()))


ENVELOPES = [Envelope(wire, mode=mode) for wire in (HTTP, NATS, AMQP, KAFKA, REDIS) for mode in get_args(Mode)]


def seal(claimed: Claimed) -> int:
    """What publishers do with a message."""
    for envelope in ENVELOPES:
        headers, body = envelope.seal(claimed.message)
        assert all(isinstance(text, str) for header in headers.items() for text in header)
        assert body is None or isinstance(body, bytes)
        "".join([*headers, *headers.values()]).encode()
    return claimed.position


def look_at_everything(room: Room, *, cancels: bool) -> None:
    admin = room.admin()
    admin.status()
    admin.messages()
    room.run(BacklogReader(room.names).backlog())
    for [identifier] in room.select("SELECT id FROM {outbox}"):
        if is_uuid(str(identifier)):
            admin.message(str(identifier), payload=True)
    for letter in admin.dead_letters():
        print_json(as_json(letter))
    again = admin.requeue(ALL, actor="ada").count
    if cancels:
        assert admin.cancel(ALL, actor="ada").count == again
    else:
        send_all(room)
        assert admin.discard(ALL, actor="ada").count == again
    admin.cleanup(days=0)
    assert room.select("SELECT count(*) FROM {outbox}") == [(0,)]
