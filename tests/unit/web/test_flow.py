"""The way of a keyed request through the ledger, without a database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from postroom.errors import SchemaMissing
from postroom.idempotency import (
    Conflict,
    Entry,
    InProgress,
    Ledger,
    Replay,
    Response,
    Run,
)
from postroom.web.flow import RETRIES, Clerk, Do, Flow
from postroom.web.joining import KeyedRequest
from postroom.web.options import Options
from postroom.web.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Iterator

ENTRY = Entry("s", "k", "0" * 64, 1)
ANSWER = Response(201, (("a", "b"),), b"body")
OTHER = Response(200, (), b"other")
DONE, LOST, HELD = True, False, True
"""What the books say of a write, and of who has the entry."""


class Books:
    """Answers what it was told to, and remembers what was asked. Errors are raised."""

    def __init__(self, *answers: Any) -> None:
        self._answers: Iterator[Any] = iter(answers)
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def operation(*_: Any) -> Any:
            self.asked.append(name)
            return next(self._answers)

        return operation


def drive(flow: Flow[Any]) -> tuple[Any, list[float]]:
    """Run it; what Do has for steps is the answer."""
    pauses: list[float] = []
    try:
        action = next(flow)
        while True:
            if not isinstance(action, Do):
                pauses.append(action.seconds)
                action = flow.send(None)
                continue
            answer: Any = action.steps
            action = flow.throw(answer) if isinstance(answer, Exception) else flow.send(answer)
    except StopIteration as end:
        return end.value, pauses


def clerk(books: Books, **options: Any) -> Clerk:
    return Clerk(Policy(Options(**options)), books)  # type: ignore[arg-type]  # as good as


def keyed(recorded: Response | None = None) -> KeyedRequest:
    request = KeyedRequest(Run(ENTRY), Policy(Options()), Ledger())
    request.recorded = recorded
    return request


def test_who_is_admitted_runs() -> None:
    assert drive(clerk(Books(Run(ENTRY))).admit(ENTRY)) == (Run(ENTRY), [])


@pytest.mark.parametrize(("decision", "status"), [(Replay(ANSWER), 201), (Conflict(), 422), (InProgress(9), 409)])
def test_others_get_an_answer(decision: Any, status: int) -> None:
    answer, pauses = drive(clerk(Books(decision)).admit(ENTRY))
    assert (answer.status, pauses) == (status, [])


def test_who_waits_looks_again_after_growing_pauses() -> None:
    books = Books(*[InProgress(9)] * 5, Replay(ANSWER))
    answer, pauses = drive(clerk(books, wait_seconds=5).admit(ENTRY))
    assert answer.body == ANSWER.body
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.5]


def test_who_waits_does_so_no_longer_than_told() -> None:
    answer, pauses = drive(clerk(Books(*[InProgress(9)] * 9), wait_seconds=0.6).admit(ENTRY))
    assert answer.status == 409
    assert sum(pauses) == pytest.approx(0.6)


def test_a_ledger_that_does_not_answer_admits_nobody_and_a_mistake_is_raised() -> None:
    assert drive(clerk(Books(OSError())).admit(ENTRY))[0].status == 503
    with pytest.raises(SchemaMissing):
        drive(clerk(Books(SchemaMissing())).admit(ENTRY))


def test_what_is_recorded_is_sent() -> None:
    books = Books(DONE)
    assert drive(clerk(books).conclude(keyed(), ANSWER)) == (None, [])
    assert books.asked == ["finish"]


def test_recording_is_tried_again_and_then_given_up() -> None:
    assert drive(clerk(Books(OSError(), OSError(), DONE)).conclude(keyed(), ANSWER)) == (None, [*RETRIES[:2]])
    assert drive(clerk(Books(*[OSError()] * 6)).conclude(keyed(), ANSWER)) == (None, [*RETRIES])
    with pytest.raises(SchemaMissing):
        drive(clerk(Books(SchemaMissing())).conclude(keyed(), ANSWER))


def test_who_has_lost_the_entry_gets_what_the_other_one_recorded() -> None:
    answer, _ = drive(clerk(Books(LOST, Replay(OTHER))).conclude(keyed(), ANSWER))
    assert (answer.body, answer.headers) == (b"other", (("idempotent-replayed", "true"),))
    answer, _ = drive(clerk(Books(LOST, InProgress(3))).conclude(keyed(), ANSWER))
    assert answer.status == 409


def test_who_has_lost_the_entry_to_one_that_failed_records_after_all() -> None:
    books = Books(LOST, Run(ENTRY), DONE)
    assert drive(clerk(books).conclude(keyed(), ANSWER)) == (None, [])
    assert books.asked == ["finish", "begin", "finish"]


def test_an_entry_that_is_anothers_by_now_is_left_alone() -> None:
    assert drive(clerk(Books(LOST, Conflict())).conclude(keyed(), ANSWER)) == (None, [])


def test_what_the_handler_recorded_itself_is_not_recorded_again() -> None:
    books = Books()
    assert drive(clerk(books).conclude(keyed(ANSWER), ANSWER)) == (None, [])
    assert books.asked == []


def test_what_the_handler_recorded_counts_though_it_answers_otherwise() -> None:
    books = Books(LOST, Replay(OTHER))
    assert drive(clerk(books).conclude(keyed(OTHER), ANSWER)) == (OTHER, [])
    assert books.asked == ["is_held", "begin"]


def test_what_the_handler_recorded_and_rolled_back_does_not() -> None:
    books = Books(HELD, DONE)
    assert drive(clerk(books).conclude(keyed(OTHER), ANSWER)) == (None, [])
    assert books.asked == ["is_held", "finish"]


def test_a_response_that_cannot_be_recorded_is_owed_until_it_is() -> None:
    request = keyed()
    drive(clerk(Books(*[OSError()] * 6)).conclude(request, ANSWER))
    assert request.owed == ANSWER
    drive(clerk(Books(DONE)).conclude(request, ANSWER))
    assert request.owed is None


def test_a_status_that_is_not_to_be_recorded_lets_the_request_run_again() -> None:
    books = Books(DONE)
    assert drive(clerk(books, unrecorded={201}).conclude(keyed(), ANSWER)) == (None, [])
    assert books.asked == ["fail"]


def test_giving_up_and_renewing_raise_nothing() -> None:
    assert drive(clerk(Books(OSError())).give_up(ENTRY)) == (None, [])
    assert drive(clerk(Books(OSError())).renew(ENTRY)) == (None, [])
