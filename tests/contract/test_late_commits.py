"""Positions are given before the commit: what a relay must know to read on behind them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING

import psycopg
import pytest

from postroom import Outbox
from postroom.rules.ordering import key_hash, lane_of
from postroom.store.connections.stores import Store
from postroom.store.outbox.leases import NO_AGES, UNKNOWN_AGES, Cursors
from postroom.store.outbox.queue_store import QueueStore
from postroom.store.schema.migrations import upgrade
from tests.crash.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import FreshDatabase


def test_a_transaction_is_numbered_before_its_position_even_while_it_waits(fresh_database: FreshDatabase) -> None:
    """† One that waits for another with the same idempotency key has a position, and would have no number yet."""
    with closing(Store(fresh_database("postgresql"))) as store:
        store.call(lambda connection: upgrade(connection, store.names))
        url = store.call(lambda connection: connection.engine.url).render_as_string(hide_password=False)
        plain = url.replace("postgresql+psycopg", "postgresql")
        ways: list[Callable[[psycopg.Connection[tuple[object, ...]]], object]] = [
            lambda connection: Outbox().add(connection, "t", {}, idempotency_key="one"),
            lambda connection: Outbox().add_many(
                connection, [Outbox().message("t", {"n": n}, idempotency_key=key) for n, key in enumerate(("a", "one"))]
            ),
            lambda connection: connection.execute("SELECT postroom.add('t', '{}', idempotency_key => 'one')"),
        ]
        for add in ways:
            with (
                psycopg.connect(plain) as first,
                psycopg.connect(plain) as second,
                psycopg.connect(plain, autocommit=True) as watch,
                ThreadPoolExecutor(1) as thread,
            ):
                Outbox().add(first, "t", {}, idempotency_key="one")
                waiting = thread.submit(add, second)
                seen = (
                    "SELECT backend_xid IS NOT NULL FROM pg_stat_activity "
                    f"WHERE wait_event_type = 'Lock' AND pid = {second.info.backend_pid}"
                )
                wait_until(lambda watch=watch, seen=seen: watch.execute(seen.encode()).fetchall(), "it waits")  # type: ignore[misc]
                assert watch.execute(seen.encode()).fetchall() == [(True,)]
                first.rollback()
                waiting.result()
                second.rollback()


def test_ages_tell_an_open_transaction_from_one_that_ended(fresh_database: FreshDatabase) -> None:
    with closing(Store(fresh_database("postgresql"))) as store:
        store.call(lambda connection: upgrade(connection, store.names))
        operations = QueueStore(store.names)
        url = store.call(lambda connection: connection.engine.url).render_as_string(hide_password=False)
        with psycopg.connect(url.replace("postgresql+psycopg", "postgresql")) as producer:
            Outbox().add(producer, "t")
            asked = store.run(operations.lanes.ages())
            assert store.run(operations.lanes.ages()).oldest < asked.youngest
            producer.commit()
            assert store.run(operations.lanes.ages()).oldest >= asked.youngest


def test_a_read_starts_ahead_only_while_the_transactions_are_open(fresh_database: FreshDatabase) -> None:
    """† Decided by the read's own snapshot: one that was asked for before would miss what has committed since."""
    with closing(Store(fresh_database("postgresql"))) as store:
        store.call(lambda connection: upgrade(connection, store.names))
        operations = QueueStore(store.names)
        url = store.call(lambda connection: connection.engine.url).render_as_string(hide_password=False)
        plain = url.replace("postgresql+psycopg", "postgresql")
        with psycopg.connect(plain) as late, psycopg.connect(plain) as prompt:
            Outbox().add(late, "t", key="k")
            Outbox().add(prompt, "t", key="k")
            prompt.commit()
            [lane] = [one for one in store.run(operations.lanes.take("w", 30)) if one.number == lane_of(key_hash("k"))]
            open_ = store.run(operations.lanes.ages()).open

            def read(after: int, ahead: int) -> list[int]:
                cursors = Cursors({lane.number: after}, {lane.number: ahead}, open_)
                return [one.position for one in store.run(operations.lanes.read([lane], 9, 30, after=cursors)).messages]

            position = store.run(operations.lanes.read([lane], 9, 30)).messages[0].position
            assert (read(0, 0), read(0, position)) == ([position], [])
            late.commit()
            assert read(0, position) == [position - 1, position]


@pytest.mark.parametrize(("kind", "ages"), [("sqlite", NO_AGES), ("mariadb", UNKNOWN_AGES)])
def test_elsewhere_all_is_safe_at_once_or_never(kind: str, ages: object, fresh_database: FreshDatabase) -> None:
    with closing(Store(fresh_database(kind))) as store:
        assert store.run(QueueStore(store.names).lanes.ages()) == ages
