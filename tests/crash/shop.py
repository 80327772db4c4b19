"""A service with an outbox, as a test sees it: its tables, what it committed, and what the broker must have got."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec

from postroom import Admin, Message, Outbox
from postroom.store.connections.stores import Store
from postroom.store.schema.migrations import upgrade
from postroom.store.sql.dialect import DIALECTS
from tests.contract.schema_support import engine_for
from tests.contract.store_drivers import single

if TYPE_CHECKING:
    from collections.abc import Iterable

    from postroom.admin import Status
    from tests.crash.places import Line, Places


class Shop:
    """The database of the service under test."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._store = Store(url)
        self._store.call(lambda connection: upgrade(connection, self._store.names))
        self._now = DIALECTS[self._store.names.dialect].now

    def close(self) -> None:
        self._store.close()

    def commit(self, *messages: Message) -> None:
        """Record messages in one transaction."""
        with engine_for(self.url) as engine, engine.begin() as connection:
            Outbox().add_many(connection, messages)

    def select(self, text: str, **params: Any) -> list[tuple[Any, ...]]:
        """Run a statement in which ``{outbox}``, ``{delivery}`` and the others stand for tables, ``{now}`` for now."""
        tables = self._store.names.mapping()
        return [tuple(row) for row in self._store.run(single(text.format(**tables, now=self._now), params)).rows]

    def status(self) -> Status:
        with Admin(self.url) as admin:
            return admin.status()

    def unsent(self) -> int:
        return int(self.select("SELECT count(*) FROM {delivery}")[0][0])

    def unread(self) -> int:
        """How many messages of the stream are neither sent nor on record."""
        absent = "NOT EXISTS (SELECT 1 FROM {} x WHERE x.position = m.position)"
        unsettled = " AND ".join(absent.format(f"{{{table}}}") for table in ("receipt", "delivery"))
        return int(self.select(f"SELECT count(*) FROM {{outbox}} m WHERE streamed AND {unsettled}")[0][0])

    def streams(self) -> bool:
        """Whether the outbox is in the stream."""
        return bool(self.select("SELECT 1 FROM {stream} WHERE mode = 'stream'"))

    def reader(self) -> str:
        """Who reads the stream."""
        found = self.select("SELECT owner FROM {stream} WHERE leased_until > {now}")
        return str(found[0][0]) if found else ""

    def leases_of(self, worker: str) -> int:
        """How many leases of this worker run, on messages and on lanes."""
        live = "WHERE owner = :worker AND leased_until > {now}"
        return sum(
            int(self.select(f"SELECT count(*) FROM {{{table}}} {live}", worker=worker)[0][0])
            for table in ("delivery", "lane")
        )

    def lanes(self) -> dict[str, int]:
        """How many lanes each worker holds."""
        held = "SELECT owner, count(*) FROM {lane} WHERE leased_until > {now} GROUP BY owner"
        return {str(owner): int(count) for owner, count in self.select(held)}

    def workers(self) -> set[str]:
        return {str(worker) for [worker] in self.select("SELECT worker FROM {worker}")}

    def worker_pids(self) -> set[int]:
        return {pid for [pid] in self.select("SELECT pid FROM {worker}")}

    def conflicts(self) -> list[tuple[str, int, dict[str, Any]]]:
        """Audited conflicts: whose, on which position, and what was found."""
        found = self.select("SELECT actor, position, details FROM {audit} WHERE action = 'conflict' ORDER BY id")
        return [(actor, position, json.loads(details)) for actor, position, details in found]


def check(shop: Shop, places: Places) -> None:
    """Everything that was committed is delivered and settled, nothing else is, and each key's order holds.

    What its producer does not know about, because the database went away at the commit, is in the table or not. What is
    in the log alone has a row only if it was not sent at once.
    """
    logged = {one: number for number, one in enumerate(places.ids_in_order(places.logged))}
    lines = [msgspec.structs.replace(line, position=logged.get(line.id, line.position)) for line in places.lines()]
    committed = {str(one) for [one] in shop.select("SELECT id FROM {outbox}")}
    delivered = {line.id for line in lines}
    undone = places.ids(places.undone)
    assert undone.isdisjoint(committed)
    assert undone.isdisjoint(delivered)
    assert places.ids(places.acknowledged) <= committed
    assert delivered == committed | logged.keys()
    assert out_of_order(lines) == []
    status = shop.status()
    unsent = (status.pending, status.sending, status.waiting, status.dead, status.expired, shop.unsent())
    assert (status.sent, unsent) == (len(committed), (0,) * 6)
    receipts = shop.select("SELECT outcome, count(*) FROM {receipt} GROUP BY outcome")
    assert [tuple(row) for row in receipts] == [("sent", len(committed))]


def out_of_order(lines: Iterable[Line]) -> list[tuple[Line, Line]]:
    """Neighbours on one key, after repeats are dropped, of which the later one was added first."""
    first: dict[str, Line] = {}
    for line in lines:
        first.setdefault(line.id, line)
    by_key = defaultdict(list)
    for line in first.values():
        if line.key is not None:
            by_key[line.key].append(line)
    return [pair for of_key in by_key.values() for pair in pairwise(of_key) if pair[0].position > pair[1].position]
