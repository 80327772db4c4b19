"""Messages from programs in other languages: the statements of the guide's page, exactly as it prints them."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import pytest

from postroom import Outbox
from postroom.errors import IdempotencyConflict
from postroom.rules.ordering import LANES, NO_LANE, key_hash, lane_of
from postroom.store.outbox.queue_store import QueueStore
from postroom.store.sql.steps import ParamStyle, render
from tests.contract.connection_kinds import CONNECT
from tests.contract.write_support import Database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from postroom.store.outbox.leases import Claimed
    from tests.conftest import FreshDatabase

PAGE = (Path(__file__).parents[2] / "docs" / "guide" / "plain-sql.md").read_text(encoding="utf-8")
KEYS = [None, "7", "order-7", "Ä", "日本", "😀", 'it\'s \\ "%s"', "x" * 255]


def statements(heading: str, number: int = 0) -> list[str]:
    """The statements of a section's SQL block, without comments."""
    section = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert section, heading
    block = re.findall(r"^```sql\n(.*?)^```", section[1], re.DOTALL | re.MULTILINE)[number]
    return [statement for statement in map(str.strip, block.split(";")) if statement]


class Producer(NamedTuple):
    """A section of the page, and what a program needs to use it."""

    database: str
    driver: str
    style: ParamStyle
    statements: list[str]
    payload: Callable[[str], str | bytes] = str


PRODUCERS = {
    "function": Producer("postgresql", "psycopg", "format", statements("PostgreSQL")),
    "postgresql": Producer("postgresql", "psycopg", "format", statements("PostgreSQL", 1), str.encode),
    "mariadb": Producer("mariadb", "PyMySQL", "format", statements("MySQL and MariaDB")),
    "sqlite": Producer("sqlite", "sqlite3", "qmark", statements("SQLite")),
    "sqlite, bytes": Producer("sqlite", "sqlite3", "qmark", statements("SQLite"), str.encode),
}
each_producer = pytest.mark.parametrize("producer", PRODUCERS)


@pytest.fixture
def database(producer: str, fresh_database: FreshDatabase) -> Iterator[Database]:
    database = Database(fresh_database(PRODUCERS[producer].database))
    yield database
    database.store.close()


class Program:
    """A program in another language: a driver, and the page's statements."""

    def __init__(self, producer: Producer, database: Database) -> None:
        self.producer = producer
        self.connection = CONNECT[producer.driver](database.url)

    def add(self, key: str | None, number: int) -> None:
        params = self._params(key, number)
        cursor = self.connection.cursor()
        for statement in self.producer.statements:
            rendered = render(statement, self.producer.style)
            cursor.execute(rendered.text, [params[name] for name in rendered.order])
        cursor.close()

    def _params(self, key: str | None, number: int) -> dict[str, Any]:
        """Every parameter that one of the statements has."""
        hashed = None if key is None else key_hash(key)
        return {
            "id": str(uuid4()),
            "topic": "orders.created",
            "key": key,
            "payload": self.producer.payload(f'{{"n": {number}}}'),
            "content_type": "application/json",
            "key_hash": hashed,
            "lane": NO_LANE if hashed is None else lane_of(hashed),
        }

    def close(self) -> None:
        self.connection.close()


@pytest.fixture
def program(producer: str, database: Database) -> Iterator[Program]:
    with closing(Program(PRODUCERS[producer], database)) as program:
        yield program


def claimed(database: Database) -> list[Claimed]:
    """All that a relay gets."""
    store = database.store
    protocol = QueueStore(store.names)
    without_key = store.run(protocol.rows.claim("relay", 100, 60)).messages
    lanes = store.run(protocol.lanes.take("relay", 60))
    assert len(lanes) == LANES
    return [*without_key, *store.run(protocol.lanes.read(lanes, 100, 60)).messages]


@each_producer
def test_a_relay_gets_what_the_program_added_in_the_right_lane(program: Program, database: Database) -> None:
    for number, key in enumerate(KEYS):
        program.add(key, number)
    program.connection.commit()
    found = sorted(claimed(database), key=lambda one: one.position)
    assert [one.message.key for one in found] == KEYS
    assert [one.message.payload for one in found] == [b'{"n": %d}' % n for n in range(len(KEYS))]
    assert {(one.message.topic, one.message.content_type) for one in found} == {("orders.created", "application/json")}
    assert [one.lane for one in found] == [NO_LANE if key is None else lane_of(key_hash(key)) for key in KEYS]
    hashes = database.rows("SELECT key_hash FROM {delivery} ORDER BY position")
    assert [hashed for [hashed] in hashes] == [None if key is None else key_hash(key) for key in KEYS]


@each_producer
def test_L_16_messages_of_one_key_are_in_one_lane_whoever_added_them(program: Program, database: Database) -> None:
    outbox = Outbox()
    for number in range(3):
        program.add("Ä 7", number)
        outbox.add(program.connection, "orders.created", {"n": number}, key="Ä 7")
    program.connection.commit()
    found = claimed(database)
    assert [one.message.json()["n"] for one in found] == [0, 0, 1, 1, 2, 2]
    assert len({one.lane for one in found}) == 1


@each_producer
def test_O_1_what_the_program_rolls_back_is_not_there(program: Program, database: Database) -> None:
    program.add("7", 1)
    program.connection.rollback()
    assert database.size() == (0, 0)


@pytest.mark.parametrize("producer", ["function"])
def test_O_3_the_function_and_the_outbox_share_idempotency_keys(program: Program, database: Database) -> None:
    outbox = Outbox()
    cursor = program.connection.cursor()
    cursor.execute(
        "SELECT postroom.add('orders', '[1, 2]', idempotency_key => 'once', key => '7')",
    )
    [identifier] = cursor.fetchone()
    with pytest.raises(IdempotencyConflict, match=str(identifier)):
        outbox.add(program.connection, "orders", [3], idempotency_key="once", key="7")
    program.connection.commit()
    assert database.size() == (1, 1)


def test_the_pages_table_of_hashes_is_right() -> None:
    rows = re.findall(r"^\| `(.+)` \| (-?\d+) \| (\d+) \|$", PAGE, re.MULTILINE)
    assert len(rows) == 5
    for key, hashed, lane in rows:
        assert (int(hashed), int(lane)) == (key_hash(key), lane_of(key_hash(key)))


def test_the_pages_way_to_compute_them_is_right() -> None:
    [program] = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(program, names)  # noqa: S102 - it is our own page
    for key in filter(None, KEYS):
        assert names["hash_and_lane"](key) == (key_hash(key), lane_of(key_hash(key)))
    assert names["hash_and_lane"](None) == (None, NO_LANE)
