"""L-12: outcomes of keyed requests, reported by who does their work later, on every store."""

from __future__ import annotations

import pytest

from postroom.idempotency import Response
from postroom.rules.replay import Entry, Recorded, Run, Status, Verdict
from postroom.store.ledger.confirmations import Confirmation, Confirmations
from postroom.store.ledger.entries import LEDGER_ENTRIES, Terms
from postroom.store.outbox.leases import new_token
from postroom.store.sql.operations import Operations
from tests.contract.store_drivers import Room, only_with_row_locks, single

DAY = 86_400.0
A, B = "a" * 64, "b" * 64
SENT = Response(200, (("content-type", "application/json"),), b'{"offset": 7}')
DEAD = Response(502, (), b"the broker said no")


class Ledger:
    """The ledger's rows, each operation in a transaction of its own."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self.entries = LEDGER_ENTRIES[room.names.dialect](room.names)
        self.confirming = Confirmations(room.names)
        self.operations = Operations(room.names)

    def begin(self, key: str, digest: str = A, scope: str = "shop", lease: float = 30) -> Entry:
        entry = Entry(scope, key, digest, new_token())
        begun = self.room.run(
            self.operations.transaction(lambda: self.entries.begin(entry, Terms(lease, DAY), replay_failures=False))
        )
        assert isinstance(begun, Run)
        return entry

    def end(self, entry: Entry, status: Status = Status.SUCCEEDED, response: Response | None = SENT) -> bool:
        return self.room.run(self.operations.transaction(self.entries.end, entry, status, response, DAY))

    def confirm(self, *outcomes: Confirmation) -> list[Verdict]:
        foreseen = self.room.run(self.confirming.foresee(outcomes))
        verdicts = self.room.run(self.operations.transaction(self.confirming.confirm, outcomes, DAY))
        assert foreseen == verdicts
        return verdicts

    def recorded(self, key: str, scope: str = "shop") -> Recorded | None:
        found = self.room.run(self.entries.select(scope, [key])).get(key)
        return found.recorded if found else None


@pytest.fixture
def ledger(room: Room) -> Ledger:
    return Ledger(room)


def sent(key: str, digest: str = A, scope: str = "shop", response: Response = SENT) -> Confirmation:
    return Confirmation(scope, key, digest, succeeded=True, response=response)


def dead(key: str, digest: str = A, scope: str = "shop") -> Confirmation:
    return Confirmation(scope, key, digest, succeeded=False, response=DEAD)


def test_L_12_what_is_in_progress_takes_the_outcome_and_its_run_no_longer_can(ledger: Ledger) -> None:
    first, second = ledger.begin("1"), ledger.begin("2")
    assert ledger.confirm(sent("1"), dead("2")) == [Verdict.CONFIRMED] * 2
    assert ledger.recorded("1") == Recorded(A, Status.SUCCEEDED, SENT)
    assert ledger.recorded("2") == Recorded(A, Status.FAILED, DEAD)
    assert not ledger.end(first)
    assert not ledger.end(second)


def test_L_12_nothing_is_written_over_a_success(ledger: Ledger) -> None:
    assert ledger.end(ledger.begin("1"))
    assert ledger.confirm(dead("1")) == [Verdict.ALREADY_SUCCEEDED]
    assert ledger.confirm(sent("1", response=Response(201))) == [Verdict.ALREADY_SUCCEEDED]
    assert ledger.recorded("1") == Recorded(A, Status.SUCCEEDED, SENT)


def test_L_12_a_failure_becomes_a_success_when_it_was_sent_after_all(ledger: Ledger) -> None:
    ledger.begin("1")
    assert ledger.confirm(dead("1")) == [Verdict.CONFIRMED]
    assert ledger.confirm(sent("1")) == [Verdict.CONFIRMED]
    assert ledger.recorded("1") == Recorded(A, Status.SUCCEEDED, SENT)


def test_L_12_a_key_of_another_digest_is_left_alone(ledger: Ledger) -> None:
    entry = ledger.begin("1", digest=B)
    ledger.begin("2", digest=B)
    assert ledger.confirm(sent("1"), dead("2")) == [Verdict.OTHER_DIGEST] * 2
    assert ledger.end(entry)
    assert ledger.confirm(sent("1")) == [Verdict.OTHER_DIGEST]
    assert ledger.recorded("1") == Recorded(B, Status.SUCCEEDED, SENT)


def test_L_12_where_there_is_no_entry_one_is_made(ledger: Ledger) -> None:
    assert ledger.confirm(sent("1"), dead("2"), sent("1", scope="other")) == [Verdict.ABSENT] * 3
    assert ledger.recorded("1") == Recorded(A, Status.SUCCEEDED, SENT)
    assert ledger.recorded("2") == Recorded(A, Status.FAILED, DEAD)
    assert ledger.confirm(sent("1"), sent("2")) == [Verdict.ALREADY_SUCCEEDED, Verdict.CONFIRMED]


def test_L_12_what_has_expired_makes_room_for_another_request(ledger: Ledger, room: Room) -> None:
    ledger.end(ledger.begin("1", digest=B))
    ledger.begin("2", digest=B, lease=3 * DAY)
    ledger.end(ledger.begin("3"))
    room.advance(DAY + 1)
    verdicts = ledger.confirm(dead("1"), dead("2"), dead("3"))
    assert verdicts == [Verdict.ABSENT, Verdict.OTHER_DIGEST, Verdict.ALREADY_SUCCEEDED]
    assert ledger.recorded("1") == Recorded(A, Status.FAILED, DEAD)


def test_L_12_many_at_once_are_answered_in_their_places(ledger: Ledger) -> None:
    for n in range(0, 30, 3):
        ledger.begin(f"{n}")
    ledger.end(ledger.begin("1", scope="other"))
    outcomes = [sent(f"{n}", response=Response(200 + n % 2)) for n in range(30)]
    outcomes += [sent(f"new {n}") for n in range(600)] + [sent("1", scope="other"), dead("2", scope="other")]
    known = [Verdict.ABSENT if n % 3 else Verdict.CONFIRMED for n in range(30)]
    expected = known + [Verdict.ABSENT] * 600 + [Verdict.ALREADY_SUCCEEDED, Verdict.ABSENT]
    assert ledger.confirm(*outcomes) == expected
    for n in range(30):
        assert ledger.recorded(f"{n}") == Recorded(A, Status.SUCCEEDED, Response(200 + n % 2))
    assert ledger.confirm(*outcomes[:630]) == [Verdict.ALREADY_SUCCEEDED] * 630


def test_L_12_a_key_that_is_there_twice_is_confirmed_one_after_the_other(ledger: Ledger, room: Room) -> None:
    outcomes = [sent("1"), dead("1"), sent("1", digest=B)]
    confirm = ledger.operations.transaction(ledger.confirming.confirm, outcomes, DAY)
    assert room.run(confirm) == [Verdict.ABSENT, Verdict.ALREADY_SUCCEEDED, Verdict.OTHER_DIGEST]
    assert ledger.confirm() == []


@only_with_row_locks
def test_L_12_the_entry_is_locked_before_it_is_judged(ledger: Ledger, room: Room) -> None:
    ledger.begin("1")
    steps = ledger.operations.transaction(ledger.confirming.confirm, [dead("1")], DAY)
    with room.producer.session() as execute:
        query = next(steps)
        for _ in range(2):  # begin, select for update
            query = steps.send(execute(query))
        assert query.text.startswith("UPDATE")
        with pytest.raises(Exception, match=r"(?i)lock|timeout"):
            room.run(single(f"SELECT 1 FROM {room.tables['idempotency']} FOR UPDATE NOWAIT"))
        query = steps.send(execute(query))
        assert query.text == "COMMIT"
        execute(query)
    assert ledger.recorded("1") == Recorded(A, Status.FAILED, DEAD)
