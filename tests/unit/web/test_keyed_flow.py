"""The way of a keyed request through the ledger, without a database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from postroom.errors import DatabaseUnreachable, SchemaMissing
from postroom.idempotency import (
    Conflict,
    Entry,
    InProgress,
    Ledger,
    Replay,
    Response,
    Run,
)
from postroom.web.idempotency.keyed_flow import LARGE, RETRIES, Do, Flow, KeyedFlow
from postroom.web.idempotency.keyed_request import KeyedRequest
from postroom.web.idempotency.options import Options
from postroom.web.idempotency.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Iterator

ENTRY = Entry("s", "k", "0" * 64, 1)
ANSWER = Response(201, (("a", "b"),), b"body")
OTHER = Response(200, (), b"other")
DONE, LOST, HELD = True, False, True
"""What the entries say of a write, and of who has the entry."""


class SQLSTATE(Exception):
    """A driver's error with a code of PostgreSQL's."""

    def __init__(self, code: str) -> None:
        super().__init__("a secret")
        self.sqlstate = code


class Entries:
    """Answers what it was told to, and remembers what was asked. Errors are raised."""

    def __init__(self, *answers: Any) -> None:
        self._answers: Iterator[Any] = iter(answers)
        self.asked: list[str] = []
        self.last: tuple[Any, ...] = ()

    def __getattr__(self, name: str) -> Any:
        def operation(*given: Any) -> Any:
            self.asked.append(name)
            self.last = given
            return next(self._answers)

        return operation


def drive(running: Flow[Any]) -> tuple[Any, list[float]]:
    """Run it; what Do has for steps is the answer."""
    pauses: list[float] = []
    try:
        action = next(running)
        while True:
            if not isinstance(action, Do):
                pauses.append(action.seconds)
                action = running.send(None)
                continue
            answer: Any = action.steps
            action = running.throw(answer) if isinstance(answer, Exception) else running.send(answer)
    except StopIteration as end:
        return end.value, pauses


def flow(entries: Entries, **options: Any) -> KeyedFlow:
    return KeyedFlow(Policy(Options(**options)), entries)  # type: ignore[arg-type]  # as good as


def keyed(recorded: Response | None = None) -> KeyedRequest:
    request = KeyedRequest(Run(ENTRY), Policy(Options()), Ledger())
    request.recorded = recorded
    return request


def test_who_is_admitted_runs() -> None:
    assert drive(flow(Entries(Run(ENTRY))).admit(ENTRY)) == (Run(ENTRY), [])


@pytest.mark.parametrize(("decision", "status"), [(Replay(ANSWER), 201), (Conflict(), 422), (InProgress(9), 409)])
def test_others_get_an_answer(decision: Any, status: int) -> None:
    answer, pauses = drive(flow(Entries(decision)).admit(ENTRY))
    assert (answer.status, pauses) == (status, [])


def test_who_waits_looks_again_after_growing_pauses() -> None:
    entries = Entries(*[InProgress(9)] * 5, Replay(ANSWER))
    answer, pauses = drive(flow(entries, wait_seconds=5).admit(ENTRY))
    assert answer.body == ANSWER.body
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.5]


def test_who_waits_does_so_no_longer_than_told() -> None:
    answer, pauses = drive(flow(Entries(*[InProgress(9)] * 9), wait_seconds=0.6).admit(ENTRY))
    assert answer.status == 409
    assert sum(pauses) == pytest.approx(0.6)


def test_a_ledger_that_does_not_answer_admits_nobody_and_a_mistake_is_raised() -> None:
    assert drive(flow(Entries(OSError())).admit(ENTRY))[0].status == 503
    with pytest.raises(SchemaMissing):
        drive(flow(Entries(SchemaMissing())).admit(ENTRY))


def test_what_is_recorded_is_sent() -> None:
    entries = Entries(DONE)
    assert drive(flow(entries).record(keyed(), ANSWER)) == (None, [])
    assert entries.asked == ["finish"]


def test_recording_is_tried_again_and_then_given_up() -> None:
    assert drive(flow(Entries(OSError(), OSError(), DONE)).record(keyed(), ANSWER)) == (None, [*RETRIES[:2]])
    assert drive(flow(Entries(*[OSError()] * 6)).record(keyed(), ANSWER)) == (None, [*RETRIES])
    with pytest.raises(SchemaMissing):
        drive(flow(Entries(SchemaMissing())).record(keyed(), ANSWER))


def test_who_has_lost_the_entry_gets_what_the_other_one_recorded() -> None:
    answer, _ = drive(flow(Entries(LOST, Replay(OTHER))).record(keyed(), ANSWER))
    assert (answer.body, answer.headers) == (b"other", (("idempotent-replayed", "true"),))
    answer, _ = drive(flow(Entries(LOST, InProgress(3))).record(keyed(), ANSWER))
    assert answer.status == 409


def test_who_has_lost_the_entry_to_one_that_failed_records_after_all() -> None:
    entries = Entries(LOST, Run(ENTRY), DONE)
    assert drive(flow(entries).record(keyed(), ANSWER)) == (None, [])
    assert entries.asked == ["finish", "begin", "finish"]


def test_an_entry_that_is_anothers_by_now_is_left_alone() -> None:
    assert drive(flow(Entries(LOST, Conflict())).record(keyed(), ANSWER)) == (None, [])


def test_what_the_handler_recorded_itself_is_not_recorded_again() -> None:
    entries = Entries()
    assert drive(flow(entries).record(keyed(ANSWER), ANSWER)) == (None, [])
    assert entries.asked == []


def test_what_the_handler_recorded_counts_though_it_answers_otherwise() -> None:
    entries = Entries(LOST, Replay(OTHER))
    assert drive(flow(entries).record(keyed(OTHER), ANSWER)) == (OTHER, [])
    assert entries.asked == ["is_held", "begin"]


def test_what_the_handler_recorded_and_rolled_back_does_not() -> None:
    entries = Entries(HELD, DONE)
    assert drive(flow(entries).record(keyed(OTHER), ANSWER)) == (None, [])
    assert entries.asked == ["is_held", "finish"]


def test_a_response_that_cannot_be_recorded_is_owed_until_it_is() -> None:
    request = keyed()
    drive(flow(Entries(*[OSError()] * 6)).record(request, ANSWER))
    assert request.owed == ANSWER
    drive(flow(Entries(DONE)).record(request, ANSWER))
    assert request.owed is None


def test_a_status_that_is_not_to_be_recorded_lets_the_request_run_again() -> None:
    entries = Entries(DONE)
    assert drive(flow(entries, unrecorded={201}).record(keyed(), ANSWER)) == (None, [])
    assert entries.asked == ["release"]


class Refused(Exception):
    """As MySQL's for a packet that is larger than it takes."""

    def __init__(self) -> None:
        super().__init__(1153, "secret")


@pytest.mark.parametrize(
    ("errors", "body", "kept"),
    [
        ([Refused()], b"x", False),
        ([OSError()] * 5, b"x" * (LARGE + 1), False),
        ([OSError()] * 4, b"x" * (LARGE + 1), True),
        ([OSError()] * 5, b"x", True),
        ([SQLSTATE("55P03")], b"x", True),
    ],
)
def test_of_a_response_that_the_database_will_not_have_it_is_recorded_that_there_was_one(
    errors: list[Exception], body: bytes, *, kept: bool, caplog: pytest.LogCaptureFixture
) -> None:
    entries = Entries(*errors, DONE)
    assert drive(flow(entries).record(keyed(), Response(201, (), body)))[0] is None
    assert (entries.last[1] == Response(201, (), body)) is kept
    assert ("cannot be kept" in caplog.text) is not kept
    assert "secret" not in caplog.text


def test_what_was_recorded_when_the_connection_was_lost_is_no_replay() -> None:
    lost = DatabaseUnreachable("gone")
    assert drive(flow(Entries(lost, LOST, Replay(ANSWER))).record(keyed(), ANSWER))[0] is None


def test_who_is_not_told_that_it_was_admitted_asks_again() -> None:
    entries = Entries(DatabaseUnreachable("gone"), Run(ENTRY))
    assert drive(flow(entries).admit(ENTRY)) == (Run(ENTRY), [RETRIES[0]])
    assert entries.asked == ["begin", "begin_again"]
    twice = Entries(DatabaseUnreachable("gone"), DatabaseUnreachable("gone"))
    assert drive(flow(twice).admit(ENTRY))[0].status == 503


def test_a_lock_that_is_in_the_way_of_beginning_is_tried_again() -> None:
    entries = Entries(*[SQLSTATE("55P03")] * 3, Run(ENTRY))
    assert drive(flow(entries).admit(ENTRY)) == (Run(ENTRY), [*RETRIES[:3]])


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (DatabaseUnreachable("the database x cannot be reached: refused"), "cannot be reached: refused"),
        (ConnectionRefusedError(111, "Connection refused"), "ConnectionRefusedError: Connection refused"),
        (SQLSTATE("22021"), "SQLSTATE 22021"),
        (SQLSTATE("55P03"), "SQLSTATE: a secret"),
        (ValueError("a secret"), "ValueError"),
    ],
)
def test_the_log_tells_why_the_ledger_does_not_answer(
    error: Exception, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    drive(flow(Entries(*[error] * 9)).admit(ENTRY))
    assert told in caplog.messages[0]
    assert ("secret" in caplog.text) == ("secret" in told)


def test_what_the_handler_recorded_is_the_clients_own_though_another_form_of_it_was_answered() -> None:
    compressed = Response(ANSWER.status, ANSWER.headers, b"compressed")
    assert drive(flow(Entries(LOST, Replay(ANSWER))).record(keyed(ANSWER), compressed)) == (None, [])


def test_releasing_and_renewing_raise_nothing() -> None:
    assert drive(flow(Entries(OSError())).release(ENTRY)) == (None, [])
    assert drive(flow(Entries(OSError())).renew(ENTRY)) == (None, [])
