"""Keyed requests on our own connections: begin, record the response, fail, renew; each commits by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, ParamSpec, TypeVar

from postroom.rules.replay import Decision, Entry, InProgress, Response, Run, Start, Status
from postroom.store.ledger import handover
from postroom.store.ledger.batches import BATCHES, Answers, Asked, Begin, Finish, LedgerBatches
from postroom.store.ledger.entries import LEDGER_ENTRIES, LedgerRow, Terms
from postroom.store.sql.db_errors import explained, retrying
from postroom.store.sql.operations import Operations

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from postroom.store.sql.names import Names
    from postroom.store.sql.steps import Steps

P = ParamSpec("P")
T = TypeVar("T")


class KeyedRequests:
    """Begins and ends keyed requests where there is no transaction of the application's to do it in.

    With ``in_transaction`` it begins no transaction: the caller has one open, or commits each statement.
    """

    def __init__(self, names: Names, terms: Terms, *, replay_failures: bool, in_transaction: bool = False) -> None:
        self._entries = LEDGER_ENTRIES[names.dialect](names)
        self._operations = Operations(names)
        self._terms = terms
        self._replay_failures = replay_failures
        self._is_one_statement = names.dialect != "mysql"
        self._in_transaction = in_transaction
        self._batches: LedgerBatches | None = None
        if not in_transaction and names.dialect in BATCHES:
            self._batches = BATCHES[names.dialect](names, terms, replay_failures=replay_failures)

    @property
    def has_batches(self) -> bool:
        """Whether many requests can ask `together`."""
        return self._batches is not None

    def together(self, asked: Sequence[Asked]) -> Steps[Answers]:
        """What `begin` or `finish` would return for each of these, or None: then call that. All ask for the same.

        If it raises, nothing was written for any of them, unless the connection was lost. No two finish the same entry.
        """
        if self._batches is None:
            raise NotImplementedError
        begins = [one.entry for one in asked if isinstance(one, Begin)]
        if begins:
            return (yield from self._batches.begin(begins))
        return (yield from self._batches.finish([one for one in asked if isinstance(one, Finish)]))

    def begin(self, entry: Entry) -> Steps[Decision]:
        """Take the entry, or say why not. Does not wait for a transaction that holds it, which may take long."""
        failures = self._replay_failures
        return self._alone(self._entries.begin, entry, self._terms, replay_failures=failures, waits=False)

    def begin_again(self, entry: Entry) -> Steps[Decision]:
        """`begin`, after an attempt whose outcome is unknown: what is in progress may be this very run.

        The reason for which the run began is lost then, so it is given as the worst one: abandoned.
        """
        decision = yield from self.begin(entry)
        if isinstance(decision, InProgress) and (yield from self.is_held(entry)):
            return Run(entry, Start.ABANDONED)
        return decision

    def is_held(self, entry: Entry) -> Steps[bool]:
        """Whether the run holds the entry and has not ended it, by what is committed. Waits for no lock."""
        found: LedgerRow | None = (yield from self._entries.select(entry.scope, [entry.key])).get(entry.key)
        return found is not None and (found.token, found.recorded.status) == (entry.token, Status.IN_PROGRESS)

    def finish(self, entry: Entry, response: Response) -> Steps[bool]:
        """Record the response. Returns False, and writes nothing, if the run no longer holds the entry.

        If a message has taken over the entry, clients get this response until the message is sent.
        """
        return self._alone(self._finish, entry, response)

    def _finish(self, entry: Entry, response: Response) -> Steps[bool]:
        if (yield from self._entries.end(entry, Status.SUCCEEDED, response, self._terms.keep)):
            return True
        return (yield from handover.answer(self._entries, entry, response))

    def fail(self, entry: Entry) -> Steps[bool]:
        """Let the request run again at once. Returns False, and writes nothing, if the run has lost the entry."""
        return self._alone(self._entries.end, entry, Status.FAILED, None, self._terms.keep)

    def release(self, entry: Entry) -> Steps[bool]:
        """Let the request run again at once, even if failures are replayed: as if its lease had ended."""
        if not self._replay_failures:
            return self.fail(entry)
        return self._alone(self._entries.renew, entry, 0.0)

    def renew(self, entry: Entry) -> Steps[bool]:
        """Hold the entry for another lease. Returns False if the run no longer holds it, or its transaction has it.

        Waiting for that transaction would keep the leases of others from being renewed.
        """
        return self._alone(self._entries.renew_unless_locked, entry, self._terms.lease)

    def _alone(self, operation: Callable[P, Steps[T]], *args: P.args, **kwargs: P.kwargs) -> Steps[T]:
        """Run an operation. Where each of its writes is one guarded statement, that statement commits by itself."""
        if self._in_transaction:
            return (yield from explained(operation(*args, **kwargs)))
        if self._is_one_statement:
            return (yield from retrying(lambda: operation(*args, **kwargs)))
        return (yield from self._operations.transaction(operation, *args, **kwargs))
