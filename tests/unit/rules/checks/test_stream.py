from __future__ import annotations

from dataclasses import replace

import pytest

from postroom.rules.checks import stream
from postroom.rules.checks.findings import Verdict
from postroom.rules.checks.stream import MUCH, SlotFacts, StreamFacts
from postroom.rules.stream.modes import Mode

OK, WARN, FAIL, SKIP = Verdict.OK, Verdict.WARN, Verdict.FAIL, Verdict.SKIP
OFF = StreamFacts(wanted=False)
READ = SlotFacts("s", is_active=True, wal_status="reserved", held_bytes=5)
LEFT = SlotFacts("s", is_active=False, wal_status="reserved", held_bytes=5)


def facts(mode: Mode = Mode.STREAM, slot: SlotFacts | None = READ, **others: object) -> StreamFacts:
    return StreamFacts(wanted=True, mode=mode, slot=slot, **{"reader": "r1", "slot_name": "s", **others})  # type: ignore[arg-type]  # given by name


@pytest.mark.parametrize(
    ("found", "verdict", "told"),
    [
        (OFF, SKIP, "cdc is off"),
        (facts(), OK, "wal_level is logical"),
        (facts(version=14), FAIL, "PostgreSQL 14"),
        (facts(wal_level="replica"), FAIL, "wal_level is replica"),
        (facts(pooled=True), FAIL, "a pooler"),
        (facts(takes_any_standby=True), FAIL, "counts as a standby"),
        (facts(may_replicate=False), WARN, "no REPLICATION"),
    ],
)
def test_the_server(found: StreamFacts, verdict: Verdict, told: str) -> None:
    finding = stream.server(found)
    assert (finding.verdict, told in finding.evidence) == (verdict, True)


@pytest.mark.parametrize(
    ("found", "verdict", "told"),
    [
        (OFF, SKIP, "cdc is off"),
        (facts(is_published=True, publication="p"), OK, "p shows"),
        (facts(Mode.TABLE, publication="p"), WARN, "there is no publication p"),
        (facts(publication="p", has_publication=True), FAIL, "p is of another table"),
    ],
)
def test_the_publication(found: StreamFacts, verdict: Verdict, told: str) -> None:
    finding = stream.publication(found)
    assert (finding.verdict, told in finding.evidence) == (verdict, True)


@pytest.mark.parametrize(
    ("found", "verdict", "told"),
    [
        (OFF, SKIP, "cdc is off"),
        (facts(Mode.TABLE, None), OK, "none is needed"),
        (facts(slot=None), FAIL, "the slot s is gone"),
        (facts(Mode.TABLE, LEFT), FAIL, "the outbox is in the table"),
        (facts(slot=SlotFacts("s", is_active=False, wal_status="lost", held_bytes=0)), FAIL, "is lost"),
        (facts(slot=LEFT, reader=""), FAIL, "nobody reads the slot s, which keeps 5 bytes"),
        (facts(slot=LEFT), OK, "read by r1"),
        (facts(reader=""), OK, "read by a relay"),
    ],
)
def test_the_slot(found: StreamFacts, verdict: Verdict, told: str) -> None:
    finding = stream.slot(found)
    assert (finding.verdict, told in finding.evidence) == (verdict, True)


@pytest.mark.parametrize(
    ("held", "status", "most", "verdict"),
    [
        (5, "reserved", None, OK),
        (MUCH, "reserved", None, WARN),
        (60, "extended", 100, WARN),
        (40, "extended", 100, OK),
        (5, "unreserved", None, FAIL),
        (5, "lost", 100, FAIL),
    ],
)
def test_the_log_that_is_held_back(held: int, status: str, most: int | None, verdict: Verdict) -> None:
    slot = SlotFacts("s", is_active=True, wal_status=status, held_bytes=held)
    assert stream.held(facts(slot=slot, most_held_bytes=most)).verdict is verdict
    assert stream.held(OFF).verdict is SKIP


@pytest.mark.parametrize(
    ("found", "reader", "mode"),
    [
        (OFF, SKIP, SKIP),
        (facts(), OK, OK),
        (facts(Mode.TABLE), SKIP, OK),
        (facts(reader="", mode_seconds=5), WARN, OK),
        (facts(reader="", mode_seconds=500), FAIL, OK),
        (facts(Mode.CLOSING, mode_seconds=5), SKIP, OK),
        (facts(Mode.DRAINING, mode_seconds=500), SKIP, FAIL),
    ],
)
def test_the_reader_and_the_mode(found: StreamFacts, reader: Verdict, mode: Verdict) -> None:
    assert (stream.reader(found).verdict, stream.mode(found).verdict) == (reader, mode)


def test_an_outbox_of_debezium() -> None:
    read = facts(Mode.DEBEZIUM, reader="", may_replicate=False, pooled=True, is_of_debezium=True)
    looked_at = (stream.server, stream.slot, stream.held, stream.reader, stream.mode)
    assert [look(read).verdict for look in looked_at] == [OK] * 5
    assert stream.passed_by(read, ["a"], 5, read_past=True).verdict is SKIP
    wrong = replace(read, publication="p", slot=None, unconfirmed_seconds=3600)
    for look in (stream.publication, stream.slot, stream.reader):
        finding = look(wrong)
        assert (finding.verdict, "relay --cdc" in finding.remedy) == (FAIL, False)
    assert stream.slot(replace(read, slot=replace(READ, wal_status="lost"))).verdict is FAIL
    assert stream.slot(replace(read, slot=LEFT)).verdict is WARN, "the connector is started last"
    assert stream.slot(replace(read, slot=LEFT, mode_seconds=500)).verdict is FAIL
    assert "connector" in stream.held(replace(read, slot=replace(READ, held_bytes=MUCH))).remedy
    assert "debezium off" in stream.mode(replace(read, mode=Mode.DRAINING, mode_seconds=500)).remedy


def test_messages_that_were_missed() -> None:
    assert stream.passed_by(facts(), [], 5, read_past=False).verdict is OK
    assert stream.passed_by(facts(), ["a"], 5, read_past=False).verdict is SKIP
    assert stream.passed_by(facts(), ["a"], 5, read_past=True).verdict is FAIL
    left = stream.passed_by(facts(Mode.TABLE), ["a"], 5, read_past=False)
    assert (left.verdict, "postroom cdc sweep" in left.remedy) == (FAIL, True)


def test_producers_that_go_past_the_stream() -> None:
    assert stream.producers(OFF, [], 0).verdict is SKIP
    assert stream.producers(facts(Mode.TABLE), [], 0).verdict is SKIP
    assert stream.producers(facts(), [], 7).verdict is OK
    found = stream.producers(facts(), ["orders", "orders"], 7)
    assert (found.verdict, found.evidence) == (WARN, "2 messages with a key went past the stream, to orders")
