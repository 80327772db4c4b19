"""Messages in a branch: PostgreSQL prepares no transaction that notifies, so relays are woken after the commit."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from postroom import Message, Outbox
from tests.contract.test_notify import Ear
from tests.contract.twophase_ways import BY_NAME, participant

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.contract.twophase_ways import Participant
    from tests.contract.write_support import Databases

WAYS = (
    *("function, psycopg", "function, psycopg2", "function, asyncpg", "pool, asyncpg", "Django, postgresql"),
    *("Engine, psycopg", "sessionmaker, psycopg2", "AsyncEngine, asyncpg", "async_sessionmaker, psycopg"),
)
on_every_way = pytest.mark.parametrize("name", WAYS)


@pytest.fixture
def ear(databases: Databases) -> Iterator[Ear]:
    with closing(Ear(databases["postgresql"].url.render_as_string(hide_password=False))) as ear:
        yield ear


def add(bank: Participant, given: Any, outbox: Outbox) -> list[Message]:
    """One message, one of the same kind again, and several."""
    many = [Message.new("orders", number) for number in range(3)]
    if bank.way.asynchronous:
        one = [bank.wait(outbox.aadd(given, "orders", number)) for number in range(2)]
        return [*one, *bank.wait(outbox.aadd_many(given, many))]
    return [*(outbox.add(given, "orders", number) for number in range(2)), *outbox.add_many(given, many)]


@on_every_way
def test_relays_are_woken_after_the_commit(name: str, databases: Databases, ear: Ear) -> None:
    with participant(BY_NAME[name], databases) as (bank, database):
        for end in ("commit_prepared", "roll_back", "commit_prepared"):
            line, branches, branch, _ = bank.begun()
            messages = add(bank, line.given, Outbox(notify=True))
            if end != "roll_back":
                bank.run(line, branches.prepare(branch))
            bank.run(line, getattr(branches, end)(branch))
            assert ear.heard() == []
            bank.run(line, branches.restore())
            bank.wait(line.release())
            committed = end == "commit_prepared"
            assert ear.heard() == [""] * committed
            assert database.stored(messages) == len(messages) * committed


def test_each_queue_is_noted_once(databases: Databases) -> None:
    outbox = Outbox(notify=True, brokers=["mail.*", "sms.*"])
    with participant(BY_NAME["function, psycopg"], databases) as (bank, _):
        line, branches, branch, _ = bank.begun()
        for topic in ("mail.sent", "sms.sent", "orders", "mail.sent"):
            outbox.add(line.given, topic, 1)
        outbox.add_many(line.given, [Message.new(topic, 1) for topic in ("mail.sent", "orders")])
        [[noted]] = line.given.execute("SELECT current_setting('postroom.channels')").fetchall()
        assert len(noted.split()) == len(set(noted.split())) == 3
        bank.run(line, branches.prepare(branch))
        bank.run(line, branches.commit_prepared(branch))
        bank.run(line, branches.restore())
        assert line.given.execute("SELECT current_setting('postroom.channels')").fetchall() == [("",)]
        bank.wait(line.release())


@pytest.mark.parametrize("name", ["function, psycopg", "AsyncEngine, asyncpg"])
def test_the_holder_of_the_log_notifies_as_ever(name: str, databases: Databases, ear: Ear) -> None:
    with participant(BY_NAME[name], databases) as (bank, _):
        line = bank.open()
        branches = bank.branches(line)
        bank.run(line, branches.begin_plain("tx", 30))
        add(bank, line.given, Outbox(notify=True))
        bank.run(line, branches.confirm("tx"))
        assert ear.heard() == []
        bank.run(line, branches.commit("tx"))
        assert ear.heard() == ["rows", ""]
        bank.run(line, branches.restore())
        bank.wait(line.release())
    assert ear.heard() == []
