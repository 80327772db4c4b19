"""What waits for a connection to the ledger, and what a free one does next."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from postroom.idempotency import Entry, Response
from postroom.store.ledger.batches import Asked, Begin, Finish
from postroom.web.idempotency import ledger_jobs
from postroom.web.idempotency.keyed_flow import Do
from postroom.web.idempotency.ledger_jobs import AT_ONCE, MOST, SLOW, Job, Jobs


def job(asked: Asked | None = None) -> Job:
    return Job(Do(iter(()), 1.0, asked), Future())  # type: ignore[arg-type]  # nobody runs the steps


def begin(key: str) -> Job:
    return job(Begin(Entry("s", key, "0" * 64, hash(key))))


def finish(key: str) -> Job:
    return job(Finish(Entry("s", key, "0" * 64, hash(key)), Response(204)))


def waiting(*jobs: Job, has_batches: bool = True) -> Jobs:
    found = Jobs(has_batches=has_batches)
    for one in jobs:
        found.put(one)
    return found


def taken(jobs: Jobs) -> list[Job]:
    batch = jobs.take()
    return [] if batch is None else list(batch.jobs)


def test_those_that_ask_the_same_are_taken_together_and_others_alone() -> None:
    alone, first, second = job(), begin("a"), begin("b")
    ends = finish("c")
    jobs = waiting(first, alone, ends, second)
    assert [taken(jobs) for _ in range(4)] == [[alone], [first, second], [ends], []]


def test_of_those_that_finish_the_same_entry_one_is_taken_and_the_others_wait_for_the_next_batch() -> None:
    first, twin, other = finish("a"), finish("a"), finish("b")
    jobs = waiting(first, twin, other)
    batch = jobs.take()
    assert batch
    assert batch.jobs == [first, other]
    jobs.end(batch)
    assert taken(jobs) == [twin]


def test_requests_with_the_same_key_begin_together() -> None:
    first, twin = begin("a"), begin("a")
    assert taken(waiting(first, twin)) == [first, twin]


def test_a_second_batch_begins_only_if_the_first_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(ledger_jobs, "monotonic", lambda: now)
    first, second, third = begin("a"), begin("b"), begin("c")
    jobs = waiting(first)
    slow = jobs.take()
    jobs.put(second)
    assert not jobs.is_any_ready()
    now += SLOW * 2
    quick = jobs.take()
    assert slow
    assert quick
    assert (slow.jobs, quick.jobs) == ([first], [second])
    jobs.put(third)
    assert taken(jobs) == []
    jobs.end(quick)
    assert taken(jobs) == [third]


def test_there_is_a_limit_to_a_batch_and_to_batches_under_way() -> None:
    jobs = waiting(*(begin(str(n)) for n in range(MOST * (AT_ONCE + 1))))
    batches = [jobs.take() for _ in range(AT_ONCE)]
    assert {len(batch.jobs) for batch in batches if batch} == {MOST}
    assert not jobs.is_any_ready()
    assert jobs.take() is None
    assert batches[0]
    jobs.end(batches[0])
    assert len(taken(jobs)) == MOST


def test_all_are_alone_where_there_are_no_batches_and_after_a_batch_that_failed() -> None:
    first, second = begin("a"), begin("b")
    jobs = waiting(first, second, has_batches=False)
    assert [taken(jobs), taken(jobs)] == [[first], [second]]
    jobs.put_alone([first, second])
    assert [taken(jobs), taken(jobs)] == [[first], [second]]


def test_each_of_a_batch_gets_its_own_answer_unless_there_is_none_or_nobody_waits() -> None:
    first, second, gone = begin("a"), begin("b"), begin("c")
    gone.fail(OSError())
    batch = waiting(first, second, gone).take()
    assert batch
    assert batch.answer([True, None, True]) == [second]
    batch.fail(ValueError())
    answers: list[Any] = [one.answer for one in batch.jobs]
    assert answers[0].result() is True
    for answer, error in zip(answers[1:], (ValueError, OSError), strict=True):
        with pytest.raises(error):
            answer.result()


def test_nobody_waits_any_longer_after_all_have_failed() -> None:
    jobs_of = [job(), begin("a")]
    jobs = waiting(*jobs_of)
    jobs.fail_all(OSError())
    assert jobs.take() is None
    assert all(one.answer.done() for one in jobs_of)
