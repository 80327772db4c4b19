"""The store behind PgBouncer in transaction mode: the lease protocol works, and nothing stays on shared sessions."""

from __future__ import annotations

from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import psycopg
import pytest

from postroom.store.connections.stores import AsyncStore, BridgedStore, Store
from postroom.store.outbox.leases import Claimed, Sent
from postroom.store.schema.migrations import upgrade
from postroom.store.sql.steps import Query, run
from tests.contract.store_drivers import DRIVERS, Driver, Room, lost_by, single
from tests.services.databases import need
from tests.services.pgbouncer import PgBouncer
from tests.services.postgresql import PostgreSQL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from postroom.store.connections.stores import BlockingStore
    from tests.conftest import FreshDatabase

ON_POSTGRESQL = [
    *(driver for driver in DRIVERS if driver.kind == "postgresql"),
    Driver("psycopg2", "postgresql", "postgresql+psycopg2", Store),
]
OUR_SETTINGS = ("transaction_isolation", "synchronous_commit", "enable_seqscan", "plan_cache_mode")
SHOWN = "SELECT " + ", ".join(f"current_setting('{name}')" for name in OUR_SETTINGS)
OURS = ("read committed", "on", "off", "force_generic_plan")
THE_DATABASES = ("repeatable read", "off", "on", "auto")


@pytest.fixture(scope="module", params=ON_POSTGRESQL, ids=lambda driver: driver.name)
def driver(request: pytest.FixtureRequest) -> Driver:
    found: Driver = request.param
    return found


@pytest.fixture(scope="module")
def urls(pgbouncer: PgBouncer, module_database: FreshDatabase) -> tuple[str, str]:
    """A database through the pooler, and as it is; by itself it would have it otherwise than the store needs."""
    direct = module_database("postgresql")
    name = direct.rpartition("/")[2]
    with psycopg.connect(direct, autocommit=True) as connection:
        for setting in ("default_transaction_isolation = 'repeatable read'", "synchronous_commit = off"):
            connection.execute(f'ALTER DATABASE "{name}" SET {setting}'.encode())
    pooled = pgbouncer.url(name)
    with closing(Store(pooled)) as store:
        store.call(lambda connection: upgrade(connection, store.names))
    with ExitStack() as transactions:  # all at a time, so that the pooler opens all its sessions
        for _ in range(pgbouncer.sessions):
            transactions.enter_context(psycopg.connect(pooled)).execute("SELECT 1")
    return pooled, direct


@pytest.fixture
def room(driver: Driver, urls: tuple[str, str]) -> Iterator[Room]:
    pooled, direct = urls
    with closing(driver.open(pooled)) as store, closing(Store(direct)) as producer:
        room = Room(store, driver, producer)
        room.empty()
        yield room


def is_pooled(store: BlockingStore) -> bool:
    store.run(single("SELECT 1"))
    inner = store._store if isinstance(store, BridgedStore) else store
    assert isinstance(inner, Store | AsyncStore)
    return inner.connector.pooled


def test_the_pooler_is_found_by_itself(driver: Driver, urls: tuple[str, str]) -> None:
    for url, pooled in zip(urls, (True, False), strict=True):
        with closing(driver.open(url)) as store:
            assert is_pooled(store) == pooled


def test_each_statement_has_the_settings_alone_and_in_a_transaction(room: Room) -> None:
    for _ in range(10):
        assert tuple(room.run(single(SHOWN)).rows[0]) == OURS
        assert tuple(room.run(room._operations.transaction(single, SHOWN)).rows[0]) == OURS


def test_nothing_stays_behind_on_the_shared_sessions(room: Room, urls: tuple[str, str], pgbouncer: PgBouncer) -> None:
    for _ in range(20):
        room.add(2)
        room.settle(*map(Sent, room.claim()))
        room.run(single("SELECT count(*) FROM pg_class WHERE relname = :name", {"name": "outbox"}))
    looked_at = f"{SHOWN}, (SELECT count(*) FROM pg_prepared_statements), pg_backend_pid()"
    with ExitStack() as stack:  # each stranger has a session of its own while its transaction is open
        strangers = [psycopg.connect(urls[0], prepare_threshold=None) for _ in range(pgbouncer.sessions)]
        rows = [stack.enter_context(stranger).execute(looked_at.encode()).fetchone() for stranger in strangers]
    assert {row[:-1] for row in rows if row} == {(*THE_DATABASES, 0)}
    assert len({row[-1] for row in rows if row}) == pgbouncer.sessions


def test_an_error_leaves_no_transaction_open(room: Room) -> None:
    with pytest.raises(Exception, match="division by zero"):
        room.run(single("SELECT 1 / 0"))
    [[idle]] = room.select("SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'")
    assert idle == 0
    assert room.run(single("SELECT 1")).rows[0][0] == 1


def test_several_operations_on_one_session(urls: tuple[str, str]) -> None:
    with closing(Store(urls[0])) as store, store.session() as execute:
        with pytest.raises(psycopg.errors.DivisionByZero):
            execute(Query("SELECT 1 / 0"))
        assert [run(single("SELECT :n", {"n": n}), execute).rows[0][0] for n in range(3)] == [0, 1, 2]


def test_leases_are_renewed_lost_and_settled(room: Room) -> None:
    added = room.add(3)
    [first, *rest] = room.claim("slow", seconds=20)
    [lane, *lanes] = room.take_lanes("slow", seconds=20)
    assert lost_by(room.run(room.deliveries.renewals.renew(rest, lanes, 60))) == ([], [])
    room.advance(21)
    assert [one.position for one in room.claim("quick")] == added[:1]
    assert lost_by(room.run(room.deliveries.renewals.renew([first, *rest], [lane, *lanes], 60))) == ([first], [lane])
    assert room.settle(*map(Sent, [first, *rest])) == [first]
    assert room.receipts() == dict.fromkeys(added[1:], "sent")


def test_two_workers_send_everything_once_and_in_order(room: Room, urls: tuple[str, str]) -> None:
    keys = [f"key-{n % 7}" for n in range(140)]
    for key in keys:
        room.add(key=key)
    room.add(140)
    with ThreadPoolExecutor(2) as pool:
        sent = list(pool.map(lambda name: worker(room, urls[0], name), ("first", "second")))
    assert room.positions() == []
    everything = [one.position for work in sent for one in work]
    assert len(everything) == len(set(everything)) == 280
    for work in sent:
        by_key = defaultdict(list)
        for one in work:
            by_key[one.message.key].append(one.position)
        del by_key[None]
        assert all(positions == sorted(positions) for positions in by_key.values())


def worker(room: Room, url: str, name: str) -> Sequence[Claimed]:
    """Send until nothing is left; returns what was sent, in its order."""
    sent: list[Claimed] = []
    protocol = room.deliveries
    with closing(room.driver.open(url)) as store:
        lanes = store.run(protocol.lanes.take(name, 30, limit=8))
        while store.run(single(f"SELECT count(*) FROM {room.tables['delivery']}")).rows[0][0]:
            claimed = store.run(protocol.rows.claim(name, 10, 30)).messages
            read = store.run(protocol.lanes.read(lanes, 10, 30)).messages
            assert lost_by(store.run(protocol.renewals.renew(claimed, lanes, 30))) == ([], [])
            assert store.run(protocol.settlements.settle([Sent(one) for one in (*claimed, *read)])) == []
            sent += [*claimed, *read]
    return sent


async def test_another_server_behind_the_pooler_is_found_out() -> None:
    """The pooler keeps its clients when servers change: nobody would know that what they remember is void."""
    with (
        closing(need(PostgreSQL, PostgreSQL())) as server,
        closing(need(PgBouncer, PgBouncer(server))) as pooler,
    ):
        store = AsyncStore(pooler.url("postgres"))

        async def ask_twice(meanwhile: Callable[[], None]) -> None:
            async with store.connection() as run_steps:
                await run_steps(single("SELECT 1"))
                meanwhile()
                await run_steps(single("SELECT 1"))

        def restart() -> None:
            server.stop()
            server.start()

        with pytest.raises(Exception, match="another_server_answers"):
            await ask_twice(restart)
        await ask_twice(lambda: None)
        await store.close()
