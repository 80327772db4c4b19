"""The way of a keyed request through the ledger: admit or replay it, renew its lease, record its response.

It is written once, as generators that yield statements and pauses. `LedgerConnections` and its twins for threads and
Django run them.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, assert_never

from postroom.errors import DatabaseUnreachable, PostroomError
from postroom.rules.replay import Conflict, InProgress, Replay, Run
from postroom.runtime.backoff import Backoff
from postroom.store.ledger.batches import Begin, Finish
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
from postroom.web.idempotency.recorded_responses import replayed
from postroom.web.idempotency.retry_budget import RetryBudget

if TYPE_CHECKING:
    from postroom.rules.replay import Decision, Entry, Response
    from postroom.store.ledger.batches import Asked
    from postroom.store.ledger.keyed_requests import KeyedRequests
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
"""Seconds in which it has to take a response. The client waits for that."""
LARGE = 65_536
"""Bytes of a body that may itself be why a connection is lost: servers disconnect clients that send too much."""
RETRIES = (0.1, 0.2, 0.4, 0.8, 1.4)
"""Seconds between attempts, while there is time."""
_log = logging.getLogger("postroom.web")


class Do(NamedTuple):
    """Run these statements on a connection. Send back their result, or throw what they raised.

    If they take longer than ``seconds``, throw `DatabaseUnreachable`.
    """

    steps: Steps[Any]
    seconds: float = RECORDING
    asked: Asked | None = None
    """The same for many requests at once: where there is this, the steps need not be run."""


class Pause(NamedTuple):
    """Wait."""

    seconds: float


Flow = Generator[Do | Pause, Any, T]


class KeyedFlow:
    """Decides what becomes of keyed requests. While the ledger does not answer, no request runs."""

    def __init__(self, policy: Policy, entries: KeyedRequests, hook: Hook | None = None) -> None:
        self._policy = policy
        self._entries = entries
        self._hook = hook

    def admit(self, entry: Entry) -> Flow[Run | Response]:
        """Take the request's entry, so that it runs. Otherwise returns its response: a replay or a problem.

        While the same request is running elsewhere, waits for that one's response for up to ``wait_seconds``.
        """
        left, backoff = self._policy.wait_seconds, Backoff(FIRST_LOOK, LONGEST_PAUSE)
        while True:
            try:
                decision = yield from self._begin(entry)
            except Exception as error:  # noqa: BLE001 - drivers raise anything
                _raise_if_setup(error)
                _log.warning("a keyed request was refused, because the ledger does not answer: %s", _named(error))
                self._tell("unavailable")
                return problems.unavailable()
            if isinstance(decision, Run):
                self._tell("taken_over" if decision.taken_over else "run")
                return decision
            if not isinstance(decision, InProgress) or left <= 0:
                return self._response_to(decision)
            pause = min(backoff.next(), left)
            yield Pause(pause)
            left -= pause

    def record(self, keyed: KeyedRequest, response: Response) -> Flow[Response | None]:
        """Record the response. Returns the response to send instead, or None.

        If another run has taken over, its response is the one that counts. A response that cannot be recorded is sent
        all the same, since the work was done; it is then `owed`.
        """
        keyed.owed = None
        try:
            if keyed.recorded is not None:
                return (yield from self._record_joined(keyed, response))
            return (yield from self._record(keyed, response))
        except Exception as error:  # noqa: BLE001 - drivers raise anything
            _raise_if_setup(error)
            _log.error("a response could not be recorded: %s", _named(error))
            self._tell("unrecorded")
            keyed.owed = response
            return None

    def release(self, entry: Entry) -> Flow[None]:
        """The work failed: let the request run again at once, unless failures are replayed."""
        yield from self._try_release(self._entries.fail(entry))

    def renew(self, entry: Entry) -> Flow[None]:
        """Hold the entry for another lease. If that fails, the next renewal may work, or recording finds out."""
        try:
            yield Do(self._entries.renew(entry))
        except Exception as error:  # noqa: BLE001 - whatever it is, the work goes on
            _log.warning("the lease of a running request could not be renewed: %s", _named(error))

    def _record(self, keyed: KeyedRequest, response: Response) -> Flow[Response | None]:
        if not self._policy.is_recorded(response.status):
            yield from self._try_release(self._entries.release(keyed.entry))  # runs again even if failures are replayed
            return None
        if (yield from self._finish(keyed.entry, response)):
            return None
        return (yield from self._record_without_entry(keyed, response))

    def _record_joined(self, keyed: KeyedRequest, response: Response) -> Flow[Response | None]:
        """The handler has recorded a response in its transaction, which is committed, rolled back or still open.

        An open one may be waiting for us to send the response, so we do not wait for it.
        """
        if keyed.is_recorded_as(response):
            return None
        if (yield Do(self._entries.is_held(keyed.entry))):
            return (yield from self._record(keyed, response))
        return (yield from self._record_without_entry(keyed, response))

    def _record_without_entry(self, keyed: KeyedRequest, response: Response) -> Flow[Response | None]:
        """The entry is no longer this run's to finish. Returns the response that counts, if it is another one."""
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
                return self._response_to(decision)
            case Conflict():
                return None
            case _:
                assert_never(decision)

    def _try_release(self, steps: Steps[bool]) -> Flow[None]:
        """Let the request run again. If the ledger does not answer, it can when the lease ends."""
        try:
            yield Do(steps)
        except Exception as error:  # noqa: BLE001 - the handler's own exception is the one to be seen
            _log.warning("a request that failed holds its key until its lease ends: %s", _named(error))

    def _begin(self, entry: Entry) -> Flow[Decision]:
        """Begin; once more after a lost connection, since it may have begun; and again while a lock is in the way."""
        budget = RetryBudget(BEGINNING, RETRIES)
        begin, lost = self._entries.begin, False
        asked: Asked | None = Begin(entry)
        while True:
            try:
                decision: Decision = yield Do(begin(entry), budget.attempt_seconds, asked)
                return decision
            except Exception as error:
                is_lost = is_lost_connection(error)
                is_in_the_way = is_lock_timeout(error) or is_undone(error)
                if budget.is_spent() or not (is_in_the_way or (is_lost and not lost)):
                    raise
                begin, asked, lost = self._entries.begin_again, None, lost or is_lost
            yield Pause(budget.pause())

    def _finish(self, entry: Entry, response: Response) -> Flow[bool]:
        """Record the response; if the database will not take it, record that there was one."""
        budget, record = RetryBudget(RECORDING, RETRIES), response
        asked = Finish(entry, response) if len(response.body) <= LARGE else None
        while True:
            try:
                finished: bool = yield Do(self._entries.finish(entry, record), budget.attempt_seconds, asked)
                return finished
            except Exception as error:
                _raise_if_setup(error)
                if budget.is_spent():
                    raise
                pause, asked = budget.pause(), None
                is_last = budget.is_spent() and len(response.body) > LARGE
                if record is response and (is_last or is_refused_value(error)):
                    record = self._policy.not_kept(response)
                    _log.warning("a response of %d bytes cannot be kept: %s", len(response.body), _named(error))
            yield Pause(pause)

    def _response_to(self, decision: Replay | Conflict | InProgress) -> Response:
        match decision:
            case Replay():
                self._tell("replayed")
                return replayed(decision)
            case Conflict():
                self._tell("conflict")
                return problems.other_request(self._policy.conflict_status)
            case InProgress(retry_after):
                self._tell("in_progress")
                return problems.in_progress(retry_after)
            case _:
                assert_never(decision)

    def _tell(self, outcome: str) -> None:
        """Call the hook, which must not be able to stop a request."""
        if self._hook is None:
            return
        try:
            self._hook(Keyed(outcome))
        except Exception:  # noqa: BLE001 - it is the user's code
            _log.exception("the hook of the idempotency middleware failed")


def _raise_if_setup(error: Exception) -> None:
    """Raise errors that no retry will mend: missing tables, a missing driver."""
    if isinstance(error, PostroomError) and not isinstance(error, DatabaseUnreachable):
        raise error


def _named(error: Exception) -> str:
    """The error and its reason, without values: a database repeats those that it refuses."""
    if isinstance(error, PostroomError):
        return f"{type(error).__name__}: {error}"
    if isinstance(error, OSError) or is_lost_connection(error) or is_lock_timeout(error):
        return f"{type(error).__name__}: {reason(error)}"
    code = code_of(error)
    return type(error).__name__ if code is None else f"{type(error).__name__} {code}"
