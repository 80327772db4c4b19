"""Coming from another outbox: its own code makes the table, the command takes its messages over, a relay sends them."""

from __future__ import annotations

import asyncio
import json
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import asyncpg
import pytest
import txoutbox
from sqlalchemy import create_engine, text
from txoutbox.adapters.postgres import PostgresStorage

from postroom import Admin, AsyncAdmin, Outbox, Relay
from postroom.errors import InvalidIdentifier, InvalidSetting
from postroom.rules.importing.layouts import IMPORTED_FROM, RECORDED_AT
from postroom.store.connections.urls import resolve
from postroom.store.importing import foreign_table
from tests.acceptance import other_outboxes
from tests.acceptance.operator_desk import OperatorDesk
from tests.acceptance.other_outboxes import HOUR, run
from tests.acceptance.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from postroom import Message
    from postroom.admin import Left
    from tests.conftest import FreshDatabase

pytestmark = pytest.mark.usefixtures("no_settings")
SECRET = "not for logs"  # noqa: S105 - the word to look for in the output


@pytest.fixture
def desk_at(
    ready_database: FreshDatabase, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[[str], OperatorDesk]]:
    desks: list[OperatorDesk] = []

    def open_desk(kind: str) -> OperatorDesk:
        desks.append(OperatorDesk(ready_database(kind), capsys))
        return desks[-1]

    yield open_desk
    for desk in desks:
        desk.store.close()


def sent_by(url: str) -> list[Message]:
    """What a relay sends."""
    sent: list[Message] = []
    asyncio.run(Relay(url, sent.append).run_until_empty())
    return sent


def recent(moment: str) -> bool:
    return abs(datetime.now(UTC) - datetime.fromisoformat(moment)) < HOUR


@contextmanager
def held_by_their_publisher(url: str, kind: str, identifier: UUID) -> Iterator[None]:
    """A transaction in which `manage.py publish` has locked a row, as it does where the database can."""
    engine = create_engine(resolve(url))
    with engine.begin() as connection:
        if kind != "sqlite":
            cast = {"postgresql": "CAST(:id AS uuid)", "mariadb": ":id"}[kind]
            locked = text(f"SELECT id FROM published WHERE id = {cast} AND status = 1 FOR UPDATE SKIP LOCKED")
            assert len(connection.execute(locked, {"id": str(identifier)}).all()) == 1
        yield
    engine.dispose()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])
def test_from_django_outbox_pattern(kind: str, desk_at: Callable[[str], OperatorDesk]) -> None:
    desk = desk_at(kind)
    rows: list[dict[str, Any]] = [
        {"destination": "/exchange/shop/orders", "body": {"n": n, "é": SECRET}, "version": "v1"} for n in range(7)
    ]
    rows[0]["headers"] = {"tenant": "ada", "retries": 3}
    rows += [{"destination": "old", "body": {}, "hours": -1}]  # expired: their publisher never sends it
    rows += [{"destination": "x", "body": {}, "status": status} for status in (2, -1)]
    ids = other_outboxes.django_outbox_pattern(desk.url, rows)
    command = ("import", "django-outbox-pattern", "--from-table", "published", "--batch", "3")
    shown = desk(*command, "--dry-run")
    assert "destination  topic\n" in shown
    assert f"{ids[0]}  /exchange/shop/orders.v1" in shown
    assert shown.endswith("would import 7 messages, 1 expired; 8 unsent rows in published\n")
    assert SECRET not in shown
    assert run(desk.url, "SELECT count(*) FROM published WHERE status = 1") == [(8,)]
    with held_by_their_publisher(desk.url, kind, ids[2]):
        done = desk.json(*command, "--by", "ada")
        assert (done["added"], done["held"], done["left"]) == (7 if kind == "sqlite" else 6, 1, 0)
    done = desk.json(*command, "--by", "ada")
    assert (done["added"], done["held"], done["unsent"], done["left"]) == (0 if kind == "sqlite" else 1, 1, 1, 0)
    assert set(desk.audit()) == {("import", "ada")}
    statuses = run(desk.url, "SELECT status, count(*) FROM published GROUP BY status ORDER BY status")
    assert statuses == [(-1, 1), (1, 1), (2, 8)]
    sent = sent_by(desk.url)
    assert sorted(one.id for one in sent) == sorted(ids[:7])
    first = sent[0]
    assert first.id == ids[0]
    assert (first.topic, first.json(), first.content_type) == (
        *("/exchange/shop/orders.v1", {"n": 0, "é": SECRET}, "application/json"),
    )
    assert (first.headers["tenant"], first.headers["retries"]) == ("ada", "3")
    assert first.headers["dop-msg-id"] == str(ids[0])
    assert recent(first.headers[RECORDED_AT])
    assert first.expires_at is not None
    assert first.expires_at > datetime.now(UTC)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_from_txoutbox_keys_keep_their_order_beside_its_relay(
    kind: str, desk_at: Callable[[str], OperatorDesk]
) -> None:
    desk = desk_at(kind)
    rows: list[tuple[str, Any, str | None]] = [("orders", {"n": n}, f"k{n % 3}") for n in range(9)]
    other_outboxes.txoutbox(desk.url, [*rows, ("mails", b"\xff\x00", None)])
    later = "unixepoch() + 60" if kind == "sqlite" else "now() + interval '1 minute'"
    run(desk.url, f"UPDATE outbox SET leased_by = 'w', lease_until = {later}, attempts = 1 WHERE id = 4")  # of k0
    run(desk.url, "UPDATE outbox SET status = 'dead' WHERE id = 2")
    command = ("import", "txoutbox", "--batch", "2", "--topic", "shop.{topic}")
    done = desk.json(*command)
    assert (done["added"], done["held"]) == (7, 2)  # what its relay has leased, and the one behind it on its key
    assert desk(*command).startswith("imported 0 messages, 2 leased by a relay")
    assert desk(*command, "--take-leased") == "imported 2 messages; 0 unsent rows in outbox\n"
    assert run(desk.url, "SELECT status, count(leased_by) FROM outbox GROUP BY status ORDER BY 1") == [
        *[("dead", 0), ("done", 0)],
    ]
    sent = sent_by(desk.url)
    by_key: dict[str | None, list[Any]] = {}
    for one in sent:
        by_key.setdefault(one.key, []).append(one.json()["n"] if one.key else one.payload)
    assert by_key == {"k0": [0, 3, 6], "k1": [4, 7], "k2": [2, 5, 8], None: [b"\xff\x00"]}
    assert {one.topic for one in sent} == {"shop.orders", "shop.mails"}
    [first] = [one for one in sent if one.headers[IMPORTED_FROM] == "outbox/1"]
    assert (first.headers["tenant"], recent(first.headers[RECORDED_AT])) == ("7", True)


def test_a_row_that_is_leased_meanwhile_holds_back_those_behind_it(ready_database: FreshDatabase) -> None:
    """Also on one key with thousands of rows, none of which is compared with all others."""
    url = ready_database("postgresql")
    other_outboxes.txoutbox(url, [])
    run(
        url,
        "INSERT INTO outbox (topic, key, payload) SELECT 'orders', 'k', '{}' FROM generate_series(1, 60000)",
    )
    run(url, f"ALTER DATABASE \"{resolve(url).database}\" SET statement_timeout = '20s'")
    batches: list[int] = []

    def lease_the_next(count: int) -> None:
        batches.append(count)
        run(url, "UPDATE outbox SET leased_by = 'w', lease_until = now() + interval '1 minute' WHERE id = 5")

    with Admin(url) as admin:
        assert admin.import_messages("txoutbox", actor="ada", stop=lambda: True).unsent == 60_000
        done = admin.import_messages(
            "txoutbox", actor="ada", batch=3, progress=lease_the_next, stop=lambda: len(batches) > 1
        )
        assert (done.added, done.held, done.unsent, batches) == (4, 59_996, 59_996, [3, 1])


async def test_beside_the_relay_of_txoutbox_each_row_is_sent_once(ready_database: FreshDatabase) -> None:
    url = ready_database("postgresql")
    await asyncio.to_thread(other_outboxes.txoutbox, url, [("orders", {"n": n}, f"k{n % 50}") for n in range(400)])
    by_them: list[int] = []

    async def publish(message: txoutbox.OutboxMessage) -> None:
        await asyncio.sleep(0)
        by_them.append(message.json()["n"])

    async with asyncpg.create_pool(
        resolve(url).set(drivername="postgresql").render_as_string(hide_password=False)
    ) as pool:
        config = txoutbox.RelayConfig(batch_size=20)
        theirs = txoutbox.Relay(PostgresStorage(pool), publish, config=config)
        async with theirs, AsyncAdmin(url) as admin:
            await wait_for(lambda: by_them)
            while (done := await admin.import_messages("txoutbox", actor="ada", batch=20)).unsent:  # what they hold
                assert done.left == 0
    by_us: list[int] = []
    await Relay(url, lambda message: by_us.append(message.json()["n"])).run_until_empty()
    assert (bool(by_them), bool(by_us)) == (True, True)
    assert sorted(by_them + by_us) == list(range(400))


def test_from_faststream_outbox_keeps_schedules_and_content_types(desk_at: Callable[[str], OperatorDesk]) -> None:
    desk = desk_at("postgresql")
    bodies: list[tuple[Any, dict[str, Any]]] = [
        ({"n": 0}, {"queue": "orders", "correlation_id": "c-0"}),
        ("text", {"queue": "orders"}),
        ({"n": 2}, {"queue": "orders", "activate_in": HOUR, "timer_id": "t-2"}),
        ({"n": 3}, {"queue": "mails"}),
        ({"n": 4}, {"queue": "orders"}),
    ]
    other_outboxes.faststream_outbox(desk.url, bodies)
    run(desk.url, "UPDATE outbox SET acquired_at = now(), acquired_token = gen_random_uuid() WHERE id = 5")
    command = ("import", "faststream-outbox", "--from-table", "public.outbox", "--only", "orders")
    done = desk.json(*command)
    assert (done["added"], done["held"], done["unsent"]) == (3, 1, 1)
    assert run(desk.url, "SELECT id FROM outbox ORDER BY id") == [(4,), (5,)]
    assert desk.json("import", "faststream-outbox", "--take-leased")["added"] == 2
    sent = sent_by(desk.url)
    assert [(one.topic, one.json() if one.content_type == "application/json" else one.payload) for one in sent] == [
        *[("orders", {"n": 0}), ("orders", b"text"), ("mails", {"n": 3}), ("orders", {"n": 4})],
    ]
    assert sent[0].headers["correlation_id"] == "c-0"
    assert "content-type" not in sent[0].headers
    with Admin(desk.url) as admin:
        [waiting] = admin.messages(status="waiting")
        details = admin.message(str(waiting.id), headers=True)
    assert details.delivery is not None
    assert details.delivery.due is not None
    assert details.delivery.due > datetime.now(UTC) + HOUR * 0.9
    assert (details.header_values or {})["timer-id"] == "t-2"


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_from_a_table_for_debezium(kind: str, desk_at: Callable[[str], OperatorDesk]) -> None:
    desk = desk_at(kind)
    rows: list[tuple[str, str, str, object]] = [("Order", str(n % 2), "OrderCreated", {"n": n}) for n in range(5)]
    ids = other_outboxes.debezium(desk.url, kind, rows)
    done = desk.json("import", "debezium", "--batch", "2")
    assert (done["added"], done["unsent"]) == (5, 0)
    sent = {one.id: one for one in sent_by(desk.url)}
    assert set(sent) == set(ids)
    one = sent[ids[0]]
    assert (one.topic, one.key, one.type) == ("outbox.event.Order", "0", "OrderCreated")
    assert (one.aggregate_type, one.aggregate_id) == ("Order", "0")
    assert (one.json(), one.content_type, one.headers) == ({"n": 0}, "application/json", {"id": str(ids[0])})


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_other_names_times_and_ids_for_debezium(kind: str, desk_at: Callable[[str], OperatorDesk]) -> None:
    """Columns under other names, a column as header, rows in the order of their times, numbers as ids."""
    desk = desk_at(kind)
    binary, moment = ("bytea", "timestamptz") if kind == "postgresql" else ("blob", "datetime(6)")
    run(
        desk.url,
        f"CREATE TABLE events (event_id bigint PRIMARY KEY, topic varchar(99), entity varchar(99), body {binary}, "
        f"at {moment} NULL, tenant integer, span varchar(99))",
    )
    zone = "+00" if kind == "postgresql" else ""
    times = [None, None, *(f"2026-01-01 00:00:0{second}{zone}" for second in (2, 3, 1))]
    for n, time in enumerate(times):
        run(
            desk.url,
            "INSERT INTO events VALUES (:id, 'Order', 'k', :body, :at, 7, 'traceparent=00-a-b-01')",
            id=10 - n,
            body=b"\x00\xff" + bytes([n]),
            at=time,
        )
    names = {"id": "event_id", "aggregatetype": "topic", "aggregateid": "entity", "payload": "body", "timestamp": "at"}
    columns = [word for role, name in names.items() for word in ("--column", f"{role}={name}")]
    options = ("--column", "tracingspancontext=span", "--header", "tenant=tenant", "--topic", "{topic}", "--batch", "2")
    done = desk.json("import", "debezium", "--from-table", "events", *columns, *options)
    assert (done["added"], done["unsent"]) == (5, 0)
    sent = sent_by(desk.url)
    assert [one.payload for one in sent] == [b"\x00\xff" + bytes([n]) for n in (1, 0, 4, 2, 3)]
    last = sent[-1]
    assert dict(last.headers) == {
        "id": "7",
        "tenant": "7",
        "traceparent": "00-a-b-01",
        RECORDED_AT: "2026-01-01T00:00:03+00:00",
    }
    assert (last.topic, last.type, last.content_type) == ("Order", None, "application/octet-stream")


def test_columns_of_other_types_give_the_order_too(ready_database: FreshDatabase) -> None:
    """Days, fractions, moments that Python cannot hold: read in order, or refused with the column's name."""
    url = ready_database("postgresql")
    order = {
        "date": ("NULL", "'2026-01-01'", "'2026-01-02'"),
        "numeric": ("NULL", "1767225600.5", "1767225601.5"),
        "timestamptz": ("'-infinity'", "'2026-01-01'", "'infinity'"),
    }
    with Admin(url) as admin:
        for kind, times in order.items():
            rows = ", ".join(f"(gen_random_uuid(), '{kind}', 'k', '{n}', {at})" for n, at in enumerate(times))
            run(
                url,
                "CREATE TABLE events (id uuid PRIMARY KEY, aggregatetype text, aggregateid text, payload bytea, "
                f"timestamp {kind})",
            )
            run(url, f"INSERT INTO events VALUES {rows}")
            assert admin.import_messages("debezium", "events", actor="ada", batch=2).added == 3
            run(url, "DROP TABLE events")
        run(
            url,
            "CREATE TABLE events (id uuid PRIMARY KEY, aggregatetype text, aggregateid text, payload bytea, "
            "timestamp interval)",
        )
        with pytest.raises(InvalidSetting, match="'timestamp' of 'events' is of type 'interval', which gives rows no"):
            admin.import_messages("debezium", "events", actor="ada")
    assert [(one.topic, one.payload) for one in sent_by(url)] == [
        (f"outbox.event.{kind}", b"%d" % n) for kind in order for n in range(3)
    ]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_bad_row_stays_with_its_reason_and_stops_no_other(kind: str, desk_at: Callable[[str], OperatorDesk]) -> None:
    desk = desk_at(kind)
    other_outboxes.txoutbox(desk.url, [("orders", {"n": n, "s": SECRET}, None) for n in range(20)])
    run(desk.url, "UPDATE outbox SET topic = '' WHERE id IN (1, 2, 9, 20)")
    run(desk.url, "UPDATE outbox SET headers = '[]' WHERE id = 10")
    if kind == "sqlite":
        run(desk.url, "UPDATE outbox SET topic = CAST(x'ff' AS TEXT) WHERE id = 3")
    else:  # a row that the database itself refuses, in the middle of a batch
        run(desk.url, "UPDATE outbox SET topic = 'refused' WHERE id = 3")
        run(
            desk.url,
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "RAISE EXCEPTION 'no' USING ERRCODE = '22000'; END $$",
        )
        run(
            desk.url,
            "CREATE TRIGGER refusing BEFORE INSERT ON postroom.outbox FOR EACH ROW WHEN (NEW.topic = 'refused') "
            "EXECUTE FUNCTION refuse()",
        )
    command = ("import", "txoutbox", "--batch", "4")
    code, out, err = desk.ended(*command, "--json")
    done = json.loads(out)
    assert (code, done["added"], done["left"], done["unsent"]) == (1, 14, 6, 6)
    reasons = {one["id"]: one["reason"] for one in done["problems"]}
    third = "topic is not valid UTF-8" if kind == "sqlite" else "the database refuses it"
    assert (reasons["3"], reasons["10"]) == (third, "headers is no JSON object")
    assert reasons["1"].startswith("topic is empty")
    assert err.count("postroom: warning: row ") == 6
    assert "6 rows could not be imported, and stayed in outbox. The first: 1: topic is empty" in err
    assert SECRET not in out + err
    assert [one.json()["n"] for one in sent_by(desk.url)] == [3, 4, 5, 6, 7, *range(10, 19)]
    code, out, _ = desk.ended(*command)
    assert (code, out) == (1, "imported 0 messages, 6 cannot be imported; 6 unsent rows in outbox\n")


def test_a_message_that_is_there_already_is_not_added_again(desk_at: Callable[[str], OperatorDesk]) -> None:
    """Of a producer that writes to both outboxes; a row that came back, say from a backup; one with another's id."""
    desk = desk_at("postgresql")
    ids = other_outboxes.debezium(desk.url, "postgresql", [("Order", "1", "Created", {"n": n}) for n in range(3)])

    def add(connection: Any) -> None:
        fields: Any = {"id": ids[1], "key": "1", "type": "Created", "aggregate_type": "Order", "aggregate_id": "1"}
        Outbox().add(connection, "outbox.event.Order", b'{"n": 1}', content_type="application/json", **fields)
        connection.commit()

    desk.store.call(add)
    run(desk.url, "CREATE TABLE backup AS TABLE outboxevent")
    done = desk.json("import", "debezium")
    assert (done["added"], done["duplicates"], done["unsent"]) == (2, 1, 0)
    run(desk.url, "INSERT INTO outboxevent TABLE backup")
    run(desk.url, "UPDATE outboxevent SET aggregateid = '2' WHERE id = CAST(:id AS uuid)", id=str(ids[0]))
    code, out, err = desk.ended("import", "debezium", "--json")
    done = json.loads(out)
    assert (code, done["added"], done["duplicates"], done["left"]) == (1, 0, 2, 1)
    assert f"row {ids[0]} stays: our outbox has another message with this id" in err
    assert len(sent_by(desk.url)) == 3
    run(desk.url, "ALTER TABLE outboxevent DROP CONSTRAINT outboxevent_pkey")
    same = str(uuid4())
    row = "(CAST(:id AS uuid), 'A', 'k', 't', '{}')"
    run(desk.url, f"INSERT INTO outboxevent VALUES {row}, {row}", id=same)
    code, _, err = desk.ended("import", "debezium", "--batch", "1")
    assert (code, "column 'id' of 'outboxevent' is not unique: 1 ids are of 2 rows" in err) == (2, True)
    assert run(desk.url, "SELECT count(*) FROM outboxevent") == [(3,)]


async def test_async_in_batches_that_fit_into_memory(
    ready_database: FreshDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = ready_database("postgresql")
    bodies = [("x" * 1000, {"queue": "orders"}) for _ in range(10)]
    await asyncio.to_thread(other_outboxes.faststream_outbox, url, bodies)
    monkeypatch.setattr(foreign_table, "MOST_BYTES", 3000)
    sizes: list[int] = []
    problems: list[Left] = []
    async with AsyncAdmin(url) as admin:
        done = await admin.import_messages(
            "faststream-outbox", actor="ada", progress=sizes.append, problem=problems.append
        )
        assert (done.added, done.stopped, sizes, problems) == (10, False, [3, 3, 3, 1], [])
        stopped = await admin.import_messages("faststream-outbox", actor="ada", stop=lambda: True)
        assert (stopped.added, stopped.stopped) == (0, True)
        assert len(await admin.messages()) == 10


def test_wrong_input_is_refused_before_anything_is_written(desk_at: Callable[[str], OperatorDesk]) -> None:
    desk = desk_at("sqlite")
    other_outboxes.txoutbox(desk.url, [("orders", {}, None)])
    for arguments, problem in (
        (("txoutbox", "--from-table", "missing"), "there is no table 'missing' in this database"),
        (("django-outbox-pattern", "--from-table", "outbox"), "has no column 'destination', 'body'"),
        (("txoutbox", "--from-table", "out;box"), "table 'out;box' is not a plain identifier"),
        (("txoutbox", "--from-table", "main.outbox"), "SQLite has none"),
        (("txoutbox", "--column", "topic=a b"), "column 'a b' is not a plain identifier"),
        (("txoutbox", "--column", "topic"), "give NAME=COLUMN"),
        (("txoutbox", "--column", "nothing=x"), "columns has 'nothing'"),
        (("txoutbox", "--column", "key=missing"), "has no column 'missing'"),
        (("txoutbox", "--topic", "all"), "has no {topic}"),
        (("txoutbox", "--follow", "--dry-run"), "follow and dry_run"),
        (("django-outbox-pattern", "--take-leased"), "leases no rows"),
        (("faststream-outbox",), "is not valid on sqlite: it has its table in postgresql"),
        (("celery",), "'celery' is not one of"),
    ):
        code, out, err = desk.ended("import", *arguments)
        assert (code in (1, 2), out, problem in err) == (True, "", True), (arguments, err)
    with Admin(desk.url) as admin:
        with pytest.raises(InvalidSetting, match="batch = 0 is not valid"):
            admin.import_messages("txoutbox", actor="ada", batch=0)
        with pytest.raises(InvalidSetting, match="format = 'celery' is not valid: use django-outbox-pattern"):
            admin.import_messages("celery", actor="ada")
        with pytest.raises(InvalidIdentifier, match="'x' \\* 1"):
            admin.import_messages("txoutbox", "'x' * 1", actor="ada")
        assert not admin.messages()
    assert run(desk.url, "SELECT status FROM outbox") == [("pending",)]
