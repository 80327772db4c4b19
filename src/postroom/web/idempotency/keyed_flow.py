"""The way of a keyed request through the ledger, written once: who drives it does the waiting, sync or async."""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, assert_never

from postroom.errors import DatabaseUnreachable, PostroomError
from postroom.rules.replay import Conflict, InProgress, Replay, Run
from postroom.store.sql.db_errors import (
    code_of,
    is_lock_timeout,
    is_lost_connection,
    is_refused_value,
    is_undone,
    reason,
)
from postroom.telemetry.events import Keyed
from postroom.web.idempotency import problems
from postroom.web.idempotency.recorded_responses import given_again
from postroom.web.idempotency.retry_budget import Patience

if TYPE_CHECKING:
    from postroom.rules.replay import Decision, Entry, Response
    from postroom.store.ledger.bookkeeping import Bookkeeping
    from postroom.store.sql.steps import Steps
    from postroom.telemetry.events import Hook
    from postroom.web.idempotency.keyed_request import KeyedRequest
    from postroom.web.idempotency.policy import Policy

T = TypeVar("T")

FIRST_LOOK = 0.05
LONGEST_PAUSE = 0.5
BEGINNING = 5.0
"""Seconds in which the ledger has to admit a request."""
RECORDING = 3.0
"""Seconds in which it has to take a response, before which the client does not get it."""
LARGE = 65_536
"""Bytes of a body from which on it may itself be why a connection is lost: servers drop who sends too much."""
RETRIES = (0.1, 0.2, 0.4, 0.8, 1.4)
"""Seconds between attempts, while there is time."""
_log = logging.getLogger("postroom.web")


class Do(NamedTuple):
    """Run these statements on a connection, and send me what they gave, or throw what they raised.

    Where they have not come to their end after so many seconds, throw `DatabaseUnreachable`.
    """

    steps: Steps[Any]
    seconds: float = RECORDING


class Pause(NamedTuple):
    """Wait for so many seconds."""

    seconds: float


Flow = Generator[Do | Pause, Any, T]


class Clerk:
    """Admits requests, and enters how they ended."""

    def __init__(self, policy: Policy, books: Bookkeeping, hook: Hook | None = None) -> None:
        self._policy = policy
        self._books = books
        self._hook = hook

    def admit(self, entry: Entry) -> Flow[Run | Response]:
        """Take the request's entry; else the response that it gets, after having waited for its twin if so wished.

        While the ledger does not answer, no request runs.
        """
        waited, pause = 0.0, FIRST_LOOK
        while True:
            try:
                decision = yield from self._begin(entry)
            except Exception as error:  # noqa: BLE001 - drivers raise anything
                _raise_if_setup(error)
                _log.warning("a keyed request was refused, because the ledger does not answer: %s", _named(error))
                self._tell("unavailable")
                return problems.unavailable()
            left = self._policy.wait_seconds - waited
            if isinstance(decision, Run):
                self._tell("taken_over" if decision.taken_over else "run")
                return decision
            if not isinstance(decision, InProgress) or left <= 0:
                return self._refusal(decision)
            yield Pause(min(pause, left))
            waited, pause = waited + min(pause, left), min(pause * 2, LONGEST_PAUSE)

    def conclude(self, keyed: KeyedRequest, response: Response) -> Flow[Response | None]:
        """Record what the request is answered; returns what it is to be answered instead, or None.

        Instead, where the run has lost its entry to another: the other one's answer is the one that counts. Where the
        response cannot be recorded, it is given all the same: the work was done. It is then `owed`.
        """
        keyed.owed = None
        try:
            if keyed.recorded is not None:
                return (yield from self._conclude_joined(keyed, response))
            return (yield from self._conclude(keyed, response))
        except Exception as error:  # noqa: BLE001 - drivers raise anything
            _raise_if_setup(error)
            _log.error("a response could not be recorded: %s", _named(error))
            self._tell("unrecorded")
            keyed.owed = response
            return None

    def give_up(self, entry: Entry) -> Flow[None]:
        """The work failed: let it run again at once, unless failures are replayed."""
        yield from self._let_go(self._books.fail(entry))

    def renew(self, entry: Entry) -> Flow[None]:
        """Hold the entry for another lease. Where that fails, the next attempt comes in time, or recording tells."""
        try:
            yield Do(self._books.renew(entry))
        except Exception as error:  # noqa: BLE001 - whatever it is, the work goes on
            _log.warning("the lease of a running request could not be renewed: %s", _named(error))

    def _conclude(self, keyed: KeyedRequest, response: Response) -> Flow[Response | None]:
        if not self._policy.is_recorded(response.status):
            yield from self._release(keyed.entry)
            return None
        if (yield from self._finish(keyed.entry, response)):
            return None
        return (yield from self._what_counts(keyed, response))

    def _release(self, entry: Entry) -> Flow[None]:
        """Let the request run again at once, also where failures are replayed."""
        yield from self._let_go(self._books.release(entry))

    def _let_go(self, steps: Steps[bool]) -> Flow[None]:
        """Do this; where the ledger does not answer, the lease's end does it."""
        try:
            yield Do(steps)
        except Exception as error:  # noqa: BLE001 - the handler's own exception is the one to be seen
            _log.warning("a request that failed holds its key until its lease ends: %s", _named(error))

    def _conclude_joined(self, keyed: KeyedRequest, response: Response) -> Flow[Response | None]:
        """The handler has recorded a response itself. It has committed, rolled back, or is still to do either.

        Its transaction may be waiting for us to send the response, so we do not wait for its end.
        """
        if keyed.is_recorded_as(response):
            return None
        if (yield Do(self._books.is_held(keyed.entry))):
            return (yield from self._conclude(keyed, response))
        return (yield from self._what_counts(keyed, response))

    def _what_counts(self, keyed: KeyedRequest, response: Response) -> Flow[Response | None]:
        """What is to be answered where the entry is no longer this run's to finish."""
        decision = yield from self._begin(keyed.entry)
        match decision:
            case Run():  # another run had it, and failed
                yield from self._finish(keyed.entry, response)
                return None
            case Replay(recorded) if recorded in {response, self._policy.not_kept(response)}:
                return None  # it had been recorded when the connection was lost
            case Replay(recorded) if recorded == keyed.recorded:  # in the handler's own transaction
                return None if recorded.status == response.status else recorded
            case Replay() | InProgress():
                return self._refusal(decision)
            case Conflict():
                return None
            case _:
                assert_never(decision)

    def _begin(self, entry: Entry) -> Flow[Decision]:
        """Begin. Once more where the connection was lost, as it may have begun; and while a lock is in the way."""
        patience = Patience(BEGINNING, RETRIES)
        begin, lost = self._books.begin, False
        while True:
            try:
                decision: Decision = yield Do(begin(entry), patience.attempt)
                return decision
            except Exception as error:
                is_lost = is_lost_connection(error)
                is_in_the_way = is_lock_timeout(error) or is_undone(error)
                if patience.is_over() or not (is_in_the_way or (is_lost and not lost)):
                    raise
                begin, lost = self._books.begin_again, lost or is_lost
            yield Pause(patience.pause())

    def _finish(self, entry: Entry, response: Response) -> Flow[bool]:
        """Record the response; that there was one, where the database will not have it."""
        patience, record = Patience(RECORDING, RETRIES), response
        while True:
            try:
                finished: bool = yield Do(self._books.finish(entry, record), patience.attempt)
                return finished
            except Exception as error:
                _raise_if_setup(error)
                if patience.is_over():
                    raise
                pause = patience.pause()
                is_last = patience.is_over() and len(response.body) > LARGE
                if record is response and (is_last or is_refused_value(error)):
                    record = self._policy.not_kept(response)
                    _log.warning("a response of %d bytes cannot be kept: %s", len(response.body), _named(error))
            yield Pause(pause)

    def _refusal(self, decision: Replay | Conflict | InProgress) -> Response:
        match decision:
            case Replay():
                self._tell("replayed")
                return given_again(decision)
            case Conflict():
                self._tell("conflict")
                return problems.other_request(self._policy.conflict_status)
            case InProgress(retry_after):
                self._tell("in_progress")
                return problems.in_progress(retry_after)
            case _:
                assert_never(decision)

    def _tell(self, outcome: str) -> None:
        """Tell the hook, which must not be able to stop a request."""
        if self._hook is None:
            return
        try:
            self._hook(Keyed(outcome))
        except Exception:  # noqa: BLE001 - it is a user's, and a request has nothing to do with it
            _log.exception("the hook of the idempotency middleware failed")


def _raise_if_setup(error: Exception) -> None:
    """Raise what no waiting will mend: missing tables, a missing driver."""
    if isinstance(error, PostroomError) and not isinstance(error, DatabaseUnreachable):
        raise error


def _named(error: Exception) -> str:
    """What it is, and why, without values: a database repeats those that it does not like."""
    if isinstance(error, PostroomError):
        return f"{type(error).__name__}: {error}"
    if isinstance(error, OSError) or is_lost_connection(error) or is_lock_timeout(error):
        return f"{type(error).__name__}: {reason(error)}"
    code = code_of(error)
    return type(error).__name__ if code is None else f"{type(error).__name__} {code}"
