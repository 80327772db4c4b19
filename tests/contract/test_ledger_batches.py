"""K-1: what many requests ask of the ledger together is answered as if each had asked alone, on every driver."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from postroom.idempotency import Conflict, InProgress, Replay, Response, Run, Start, entry_of
from postroom.store.ledger.batches import Begin, Finish
from postroom.store.ledger.entries import Terms
from postroom.store.ledger.keyed_requests import KeyedRequests
from postroom.store.sql.steps import Query, run

if TYPE_CHECKING:
    from postroom.idempotency import Entry
    from tests.contract.store_drivers import Room

DIGEST, OTHER_DIGEST = "0" * 64, "1" * 64
CREATED = Response(201, (("location", "/orders/7 'é' % :x"),), b"\x00\xff{}")
EMPTY = Response(204)


def entry(key: str, digest: str = DIGEST) -> Entry:
    return entry_of("it's a scope", key, digest)


@pytest.fixture
def requests(room: Room) -> KeyedRequests:
    found = KeyedRequests(room.names, Terms(60.0, 3600.0), replay_failures=False)
    if not found.has_batches:
        pytest.skip("on MySQL and MariaDB each request asks alone")
    return found


def begun(room: Room, requests: KeyedRequests, key: str) -> Entry:
    decision = room.run(requests.begin(entry(key)))
    assert isinstance(decision, Run)
    return decision.entry


def test_requests_that_begin_together_are_each_told_what_it_would_be_told_alone(
    room: Room, requests: KeyedRequests
) -> None:
    assert room.run(requests.finish(begun(room, requests, "done"), CREATED))
    running = begun(room, requests, "running")
    assert room.run(requests.fail(begun(room, requests, "failed")))
    asked = [entry(key) for key in ("b", "done", "running", "a", "failed")] + [entry("done", OTHER_DIGEST)]
    new, done, still_running, also_new, failed = room.run(requests.together([Begin(one) for one in asked[:5]]))
    [conflict] = room.run(requests.together([Begin(asked[5])]))
    assert (new, also_new) == (Run(asked[0]), Run(asked[3]))
    assert (done, conflict) == (Replay(CREATED), Conflict())
    assert isinstance(still_running, InProgress)
    if failed is None:  # to take it over takes another statement
        failed = room.run(requests.begin(asked[4]))
    assert failed == Run(asked[4], Start.FAILED)
    for held in (running, *(one.entry for one in (new, also_new, failed) if isinstance(one, Run))):
        assert room.run(requests.is_held(held))


def test_of_requests_with_the_same_key_that_begin_together_one_runs(room: Room, requests: KeyedRequests) -> None:
    twins = [Begin(replace(entry("twin"), token=number)) for number in (1, 2, 3)]
    told = room.run(requests.together(twins))
    [running] = [one for one in told if isinstance(one, Run)]
    assert all(one in {running, None} or isinstance(one, InProgress) for one in told)
    assert room.run(requests.together([Finish(running.entry, CREATED)])) == [True]
    assert room.run(requests.together(twins)) == [Replay(CREATED)] * 3


def test_responses_that_are_recorded_together_are_those_of_each_request(room: Room, requests: KeyedRequests) -> None:
    first, second, lost = (begun(room, requests, key) for key in ("first", "second", "lost"))
    late = replace(lost, token=lost.token ^ 1)
    finished = [Finish(first, CREATED), Finish(late, CREATED), Finish(second, EMPTY), Finish(entry("none"), EMPTY)]
    assert room.run(requests.together(finished)) == [True, None, True, None]
    assert room.run(requests.together(finished)) == [None] * 4
    again = [Begin(entry(key)) for key in ("first", "second", "lost")]
    *replays, running = room.run(requests.together(again))
    assert replays == [Replay(CREATED), Replay(EMPTY)]
    assert isinstance(running, InProgress)


def test_nobody_waits_for_an_entry_that_the_transaction_of_another_request_has_locked(
    room: Room, requests: KeyedRequests
) -> None:
    if not room.dialect.skip_locked:
        pytest.skip("SQLite locks no rows")
    locked, other = begun(room, requests, "locked"), begun(room, requests, "other")
    with room.producer.session() as execute:
        execute(Query(room.dialect.begin))
        run(requests.fail(locked), execute)
        assert room.run(requests.together([Finish(locked, CREATED), Finish(other, CREATED)])) == [None, True]
        execute(Query("ROLLBACK"))
    assert room.run(requests.finish(locked, CREATED))


@pytest.mark.parametrize("analyzed", ["while it was empty", "as it is"])
def test_a_batch_finds_its_entries_by_the_primary_key(room: Room, requests: KeyedRequests, analyzed: str) -> None:
    if room.names.dialect != "postgresql":
        pytest.skip("a batch is one statement on PostgreSQL only")
    table = room.tables["idempotency"]
    fill = Query(
        f"INSERT INTO {table} (scope, idempotency_key, digest, token, leased_until, expires_at) "
        f"SELECT 's', n::text, '{DIGEST}', 1, now(), now() FROM generate_series(1, 20000) n"
    )
    empty, analyze = Query(f"DELETE FROM {table}"), Query(f"ANALYZE {table}")
    with room.producer.session() as execute:
        for query in (fill, empty, analyze, fill) if analyzed == "while it was empty" else (fill, analyze):
            execute(query)
        for asked in ([Begin(entry(str(n))) for n in range(20)], [Finish(entry(str(n)), EMPTY) for n in range(20)]):
            query = next(requests.together(asked))
            plan = "\n".join(row[0] for row in execute(Query(f"EXPLAIN {query.text}", query.params)).rows)
            assert "Seq Scan" not in plan
            assert "Join Filter" not in plan
            assert "Index Cond: (((scope)::text = " in plan
