"""The ledger on our own connections: each operation commits by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, ParamSpec, TypeVar

from postroom.rules.replay import Decision, Entry, InProgress, Response, Run, Start, Status
from postroom.store.ledger import handing
from postroom.store.ledger.entries import KEEPERS, Found, Terms
from postroom.store.sql.db_errors import explained, retrying
from postroom.store.sql.operations import Operations

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.store.sql.names import Names
    from postroom.store.sql.steps import Steps

P = ParamSpec("P")
T = TypeVar("T")


class Bookkeeping:
    """Begins and ends keyed requests, for who has no transaction of the caller's to do it in.

    With ``in_transaction``, whoever runs an operation gives it a transaction, or commits each of its statements.
    """

    def __init__(self, names: Names, terms: Terms, *, replay_failures: bool, in_transaction: bool = False) -> None:
        self._keeper = KEEPERS[names.dialect](names)
        self._operations = Operations(names)
        self._terms = terms
        self._replay_failures = replay_failures
        self._is_one_statement = names.dialect != "mysql"
        self._in_transaction = in_transaction

    def begin(self, entry: Entry) -> Steps[Decision]:
        """Take the entry, or tell why not. A transaction that holds it is not waited for: it may last."""
        failures = self._replay_failures
        return self._alone(self._keeper.begin, entry, self._terms, replay_failures=failures, waits=False)

    def begin_again(self, entry: Entry) -> Steps[Decision]:
        """`begin` after an attempt of which one does not know how it ended: what is in progress may be this very run's.

        Why the run was to begin is not known then, so it is told the worst.
        """
        decision = yield from self.begin(entry)
        if isinstance(decision, InProgress) and (yield from self.is_held(entry)):
            return Run(entry, Start.ABANDONED)
        return decision

    def is_held(self, entry: Entry) -> Steps[bool]:
        """Whether the run has the entry and has not ended it, as far as was committed. Waits for nobody's lock."""
        found: Found | None = (yield from self._keeper.select(entry.scope, [entry.key])).get(entry.key)
        return found is not None and (found.token, found.recorded.status) == (entry.token, Status.IN_PROGRESS)

    def finish(self, entry: Entry, response: Response) -> Steps[bool]:
        """Record the response. False, and nothing is written, where the entry is no longer this run's.

        Of an entry that was left to a message it is what whoever asks is told until the message is sent.
        """
        return self._alone(self._finish, entry, response)

    def _finish(self, entry: Entry, response: Response) -> Steps[bool]:
        if (yield from self._keeper.end(entry, Status.SUCCEEDED, response, self._terms.keep)):
            return True
        return (yield from handing.answer(self._keeper, entry, response))

    def fail(self, entry: Entry) -> Steps[bool]:
        """Let the request run again at once. False, and nothing is written, where it is no longer this run's."""
        return self._alone(self._keeper.end, entry, Status.FAILED, None, self._terms.keep)

    def release(self, entry: Entry) -> Steps[bool]:
        """Let the request run again at once, also where failures are replayed: as one whose lease has ended."""
        if not self._replay_failures:
            return self.fail(entry)
        return self._alone(self._keeper.renew, entry, 0.0)

    def renew(self, entry: Entry) -> Steps[bool]:
        """Hold the entry for another lease. False where it is no longer this run's, or the run's transaction has it.

        That one may last, and whoever waited for it would not renew the leases of others meanwhile.
        """
        return self._alone(self._keeper.renew_unless_locked, entry, self._terms.lease)

    def _alone(self, operation: Callable[P, Steps[T]], *args: P.args, **kwargs: P.kwargs) -> Steps[T]:
        """Run an operation of the keeper's. Where each of its writes is one guarded statement, that one commits."""
        if self._in_transaction:
            return (yield from explained(operation(*args, **kwargs)))
        if self._is_one_statement:
            return (yield from retrying(lambda: operation(*args, **kwargs)))
        return (yield from self._operations.transaction(operation, *args, **kwargs))
