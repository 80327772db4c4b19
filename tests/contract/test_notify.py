"""Notification of a commit: one for each transaction with messages, none otherwise, and no more statements."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.rows import tuple_row

from postroom import Message, Outbox
from postroom.errors import IdempotencyConflict
from postroom.store.sql.names import Names, channel
from tests.contract.connection_kinds import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.contract.connection_callers import Caller
    from tests.contract.write_support import Databases

CHANNEL = channel(Names.of("postgresql"), "default")
DONE = "done"


class Ear:
    """Hears what is said on the channel."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True, row_factory=tuple_row)
        self._connection.execute(f'LISTEN "{CHANNEL}"'.encode())

    def heard(self) -> list[str]:
        """The payloads of all that was said since. A last word of our own tells that nothing more is on its way."""
        self._connection.execute("SELECT pg_notify(%s, %s)", [CHANNEL, DONE])
        payloads = []
        for said in self._connection.notifies():
            if said.payload == DONE:
                break
            payloads.append(said.payload)
        return payloads

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def ear(databases: Databases) -> Iterator[Ear]:
    url = databases["postgresql"].url.render_as_string(hide_password=False)
    with closing(Ear(url)) as ear:
        yield ear


ADDED: dict[str, Callable[[Caller, Outbox], Any]] = {
    "one": lambda caller, outbox: caller.add(outbox, "orders", 1),
    "one with a key": lambda caller, outbox: caller.add(outbox, "orders", 1, key="7"),
    "several": lambda caller, outbox: [caller.add(outbox, "orders", n) for n in range(5)],
    "many": lambda caller, outbox: caller.add_many(outbox, [Message.new("orders", n) for n in range(50)]),
}
SAID = {"one": "rows", "one with a key": "lanes", "several": "rows", "many": ""}


NAMED = {kind.name: kind for kind in KINDS}
STYLES = ("psycopg", "psycopg2", "psycopg async", "asyncpg", "Django proxy, postgresql")


@pytest.mark.parametrize("added", ADDED)
@pytest.mark.parametrize("kind", STYLES)
def test_a_commit_with_messages_is_said_once(kind: str, added: str, databases: Databases, ear: Ear) -> None:
    with NAMED[kind].open(databases["postgresql"].url) as caller:
        caller.begin()
        ADDED[added](caller, Outbox(notify=True))
        assert ear.heard() == []
        caller.commit()
    assert ear.heard() == [SAID[added]]


@pytest.mark.parametrize("added", ADDED)
def test_nothing_is_said_of_a_rollback_or_without_notify(added: str, databases: Databases, ear: Ear) -> None:
    with NAMED["psycopg"].open(databases["postgresql"].url) as caller:
        ADDED[added](caller, Outbox(notify=True))
        caller.rollback()
        ADDED[added](caller, Outbox())
        caller.commit()
    assert ear.heard() == []


def test_the_setting_switches_it_on(databases: Databases, ear: Ear, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROOM_NOTIFY", "true")
    with NAMED["psycopg"].open(databases["postgresql"].url) as caller:
        caller.add(Outbox(), "orders", 1)
        caller.commit()
        assert ear.heard() == ["rows"]
        caller.add(Outbox(notify=False), "orders", 1)
        caller.commit()
        assert ear.heard() == []


def test_a_refused_message_is_refused_as_ever(databases: Databases) -> None:
    outbox = Outbox(notify=True)
    with NAMED["psycopg"].open(databases["postgresql"].url) as caller:
        first = caller.add(outbox, "orders", 1, idempotency_key="once")
        again = caller.add(outbox, "orders", 1, idempotency_key="once")
        assert (again.id, again.duplicate) == (first.id, True)
        with pytest.raises(IdempotencyConflict):
            caller.add(outbox, "orders", 2, idempotency_key="once")
        caller.rollback()


@pytest.mark.parametrize("kind", ["sqlite3", "PyMySQL"])
def test_elsewhere_it_has_no_effect(kind: str, databases: Databases) -> None:
    database = databases[NAMED[kind].database]
    with NAMED[kind].open(database.url) as caller:
        caller.begin()
        message = caller.add(Outbox(notify=True), "orders", 1)
        caller.commit()
    assert database.stored([message]) == 1
