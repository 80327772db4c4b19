"""Finding messages and dead letters by what they are, what they hold and why they failed, on every database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from postroom.admin import ALL, Filter, as_json
from postroom.errors import InvalidSetting
from postroom.store.admin import message_list, newest_first
from postroom.store.outbox.leases import Dead, Retry, Sent
from tests.contract.store_drivers import Room, key_of_lane, on_one_driver_of_each_style, only_on

if TYPE_CHECKING:
    from collections.abc import Sequence

HOUR = timedelta(hours=1)


def bury(room: Room, errors: Sequence[tuple[str, str]], **fields: Any) -> list[int]:
    """Add a message for each error, and let it die of it."""
    added = room.add(len(errors), **fields)
    claimed = room.claim(limit=len(errors))
    room.settle(*(Dead(one, *error) for one, error in zip(claimed, errors, strict=True)))
    return added


def test_V_6_messages_are_found_by_type_error_and_payload(room: Room) -> None:
    [order] = room.add(type="order.placed", payload={"city": "Köln"})
    [mail] = room.add(type="mail.sent", payload={"city": "Paris"})
    dead, failed = room.claim()
    room.settle(Dead(dead, "REJECTED", "100% wrong_name"), Retry(failed, 60, "TIMEOUT", "no answer"))
    [sent] = room.add(type="mail.sent", payload=b"\xff\x00Paris")
    room.settle(*map(Sent, room.claim()))

    def found(**fields: str) -> list[int]:
        return [one.position for one in room.admin().messages(**fields)]  # type: ignore[arg-type]  # all are texts

    assert found() == [sent, mail, order]
    assert found(type="mail.sent") == [sent, mail]
    assert found(type="mail.sent", status="sent") == found(payload="Paris", queue="default", status="sent") == [sent]
    assert (found(payload="Köln"), found(payload="köln"), found(payload="Paris")) == ([order], [], [sent, mail])
    assert found(error="timeOUT") == found(error="ANSWER", status="waiting") == [mail]
    assert found(error="100% w") == found(error="wrong_", queue="default") == [order]
    assert found(error="100_") == found(error="1%w") == found(error="timeout", status="sent") == []
    letters = room.admin().dead_letters
    assert [one.position for one in letters(Filter(payload="Köln", type="order.placed", error="reject"))] == [order]
    assert [one.position for one in letters(Filter(payload="Paris"))] == []


def test_V_6_a_time_range_is_that_of_adding_or_of_failing(room: Room) -> None:
    [old] = room.add()
    room.settle(Dead(room.claim()[0], "REJECTED", "text"))
    room.advance(2 * 3600)
    [new] = room.add()
    admin = room.admin()
    border = admin.overview().as_of - HOUR

    def found(**fields: datetime) -> list[int]:
        return [one.position for one in admin.messages(**fields)]  # type: ignore[arg-type]  # all are moments

    assert (found(since=border), found(until=border), found(since=border, until=border)) == ([new], [old], [])
    assert [one.position for one in admin.dead_letters(Filter(until=border))] == [old]
    assert len(admin.dead_letters(Filter(since=border))) == 0
    assert (admin.count_unsent(Filter(since=border)).total, admin.count_unsent(Filter(until=border)).total) == (1, 0)
    assert admin.requeue(Filter(since=border), actor="ada").count == 0


@on_one_driver_of_each_style
def test_a_moment_is_found_in_the_primary_key(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest_first, "NEAR", 2)
    monkeypatch.setattr(newest_first, "OUT_OF_STEP", timedelta(0))
    old = room.add(30)
    room.advance(7200)
    new = room.add(30)
    room.execute("DELETE FROM {outbox} WHERE position IN (:a, :b)", a=old[20], b=new[10])  # as retention leaves gaps
    admin = room.admin()
    border = admin.overview().as_of - HOUR
    since = [one.position for one in admin.messages(since=border, limit=100)]
    assert since == [one for one in reversed(new) if one != new[10]]
    assert len(admin.messages(until=border, limit=100)) == 29
    assert len(admin.messages(since=datetime(2000, 1, 1, tzinfo=UTC), limit=100)) == 58
    assert len(admin.messages(since=datetime.now(UTC) + HOUR)) == 0


@on_one_driver_of_each_style
def test_V_6_a_search_that_finds_little_stops_and_goes_on_where_it_stopped(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newest_first, "LEAST_SCAN", 4)  # a page has 3
    monkeypatch.setattr(message_list, "SCAN", 4)
    monkeypatch.setattr("postroom.store.admin.dead_letters.SCAN", 4)
    [wanted] = bury(room, [("REJECTED", "the one")])
    bury(room, [("REJECTED", "another")] * 6, key=None)
    room.add(5, key=key_of_lane(2))
    room.settle(*(Dead(one, "REJECTED", "another") for one in room.read_lanes(room.take_lanes()).messages))
    admin = room.admin()
    for listed in (
        lambda before: admin.messages(error="the one", limit=3, before=before),
        lambda before: admin.dead_letters(Filter(error="the one"), limit=3, before=before),
    ):
        page, pages = listed(None), 1
        assert (len(page), page.looked_at) == (0, 8)
        found = [one.position for one in page]
        while page.next is not None:
            page, pages = listed(page.next), pages + 1
            found += [one.position for one in page]
        assert found == [wanted]
        assert pages == 3
        assert page.looked_at is None


def test_V_6_dead_letters_are_grouped_by_what_their_errors_have_in_common(room: Room) -> None:
    bury(room, [("REJECTED", f"no account {n} in '{n}'") for n in range(4)])
    room.advance(5 * 3600)
    *_, newest = bury(room, [("REJECTED", "no account 99 in 'x'"), ("REJECTED", "no account at 7 in all")])
    bury(room, [("REJECTED", "no account 3 in 'y'")], topic="mails")
    admin = room.admin()
    told = admin.dead_letter_groups()
    [accounts, *others] = told
    assert (accounts.queue, accounts.topic, accounts.code) == ("default", "orders", "REJECTED")
    assert (accounts.fingerprint, accounts.count) == ("no account … in …", 5)
    assert accounts.example == "no account 99 in 'x'"
    assert accounts.newest_id == str(room.ids([newest - 1])[0])
    assert accounts.first_failed is not None
    assert accounts.last_failed is not None
    assert timedelta(hours=4) < accounts.last_failed - accounts.first_failed < timedelta(hours=6)
    assert (accounts.histogram[0], sum(accounts.histogram), len(accounts.histogram)) == (4, 5, 24)
    assert sorted((one.topic, one.count) for one in others) == [("mails", 1), ("orders", 1)]
    assert (len(told), told.looked_at, told.more, told.left_out) == (3, 7, False, 0)
    assert told.histogram_since is not None
    assert as_json(told)["groups"][0]["count"] == 5
    few = admin.dead_letter_groups(Filter(topic="orders"), most=3)
    assert (few.looked_at, few.more, sum(one.count for one in few)) == (3, True, 2)
    assert len(admin.dead_letter_groups(Filter(ids=[]))) == 0


def test_V_6_a_group_is_selected_exactly_and_as_it_was_shown(room: Room) -> None:
    bury(room, [("REJECTED", f"no account {n} in '{n}'") for n in range(4)])
    bury(room, [("REJECTED", "no account of them in it")])
    admin = room.admin()
    told = admin.dead_letter_groups()
    accounts = next(one for one in told if one.count == 4)
    room.advance(10)
    bury(room, [("REJECTED", "no account 5 in 'z'")])
    shown = accounts.filter(told.as_of)
    assert (admin.count_dead_letters(shown).total, admin.count_dead_letters(accounts.filter()).total) == (4, 5)
    assert len(admin.dead_letters(accounts.filter())) == 5
    assert [one.count for one in admin.dead_letter_groups(accounts.filter())] == [5]
    assert admin.requeue(shown, actor="ada").count == 4
    assert admin.discard(accounts.filter(), actor="ada").count == 1
    assert admin.count_dead_letters(ALL).total == 1
    bury(room, [("REJECTED", f"bad word {word}") for word in ("0x12345678", "5x12345678", "7x12345678")])
    words = [one for one in admin.dead_letter_groups() if one.fingerprint.startswith("bad")]
    assert [(one.fingerprint, one.count) for one in words] == [("bad word …x…", 2), ("bad word …", 1)]
    assert [admin.count_dead_letters(one.filter()).total for one in words] == [2, 1]


@only_on("sqlite3")
def test_what_cannot_be_searched_for_is_refused(room: Room) -> None:
    admin = room.admin()
    naive = datetime(2030, 1, 1)  # noqa: DTZ001 - that is the point
    for wrong in (
        lambda: admin.messages(since=naive),
        lambda: admin.messages(limit=0),
        lambda: Filter(until=naive),
        lambda: admin.dead_letter_groups(most=0),
        lambda: admin.count_unsent(Filter(fingerprint="x")),
        lambda: admin.cancel(Filter(fingerprint="x"), actor="ada"),
    ):
        with pytest.raises(InvalidSetting):
            wrong()
