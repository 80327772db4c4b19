"""Calling a handler: one transaction with the inbox's marks and the handler's own writes, or neither."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from postroom.consumer.tracing import continued
from postroom.store.sql.db_errors import is_aborted
from postroom.telemetry.tracebacks import AFTERWARDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opentelemetry.trace import Tracer

    from postroom.consumer.handlers import Handler
    from postroom.consumer.transactions import Transactions
    from postroom.inbox import Inbox
    from postroom.incoming import Incoming

ABORTED = (
    "the handler went on after a statement had failed, and PostgreSQL undoes such a transaction: let the error out, or "
    "have a savepoint around the statement"
)
ENDED = "the handler has rolled back its transaction, and the mark with it: leave its end to the consumer"


class HandlerFailed(Exception):
    """What a handler raised that is no exception of a program's own: an exit, or a cancellation.

    Or it returned, and had undone its transaction.
    """


class Attempt:
    """One attempt to have messages handled, as it is seen while it goes on and afterwards."""

    def __init__(self) -> None:
        self.is_late = False
        """Whether its time is up: whoever finds that calls nothing any more, and writes nothing."""
        self.has_ended = False
        """Whether nothing of it goes on any more."""
        self.is_with_handler = False
        """Whether the handler has been called, and has not returned: what is raised then, it has raised."""
        self.has_returned = False
        """Whether the handler has been called and has returned."""

    @contextmanager
    def with_handler(self) -> Iterator[None]:
        """While the handler works. Where it raises, it stays so."""
        self.is_with_handler = True
        yield
        self.is_with_handler = False
        self.has_returned = True

    def see_time(self) -> None:
        """Raise `TimeoutError` where it is too late, which makes the transaction roll back."""
        if self.is_late:
            raise TimeoutError


class Calls:
    """Calls handlers where it is itself called: neither threads nor time limits are known here.

    Both methods mark the messages, call the handler with those that are new, and commit; they return which were new.
    They raise what the handler, the inbox or the commit raised; then nothing was written.
    """

    def __init__(self, inbox: Inbox, transactions: Transactions, tracer: Tracer | None = None) -> None:
        self._inbox = inbox
        self._transactions = transactions
        self._tracer = tracer

    async def wait(self, handler: Handler, messages: Sequence[Incoming], attempt: Attempt | None = None) -> list[bool]:
        """Call an async handler. Where it is too late when that returns, raises `TimeoutError`."""
        attempt = attempt or Attempt()
        with _noted(attempt):
            async with self._transactions.waiting() as connection:
                first = await self._inbox.afirst_times(connection, _ids(messages))
                attempt.see_time()
                fresh = _those(messages, first)
                if fresh:
                    with continued(fresh, self._inbox.consumer, self._tracer), attempt.with_handler():
                        await handler.call(connection, fresh)
                    if handler.takes_connection:
                        with _told():
                            _see(is_there=await self._inbox.ais_marked(connection, fresh[0].dedup_id))
                attempt.see_time()
        return first

    def block(self, handler: Handler, messages: Sequence[Incoming], attempt: Attempt | None = None) -> list[bool]:
        """Call a sync handler. Where it is too late when that returns, raises `TimeoutError`."""
        attempt = attempt or Attempt()
        with _noted(attempt), self._transactions.blocking() as connection:
            first = self._inbox.first_times(connection, _ids(messages))  # may wait for another attempt's end
            attempt.see_time()
            fresh = _those(messages, first)
            if fresh:
                with continued(fresh, self._inbox.consumer, self._tracer), attempt.with_handler():
                    handler.call(connection, fresh)
                if handler.takes_connection:
                    with _told():
                        _see(is_there=self._inbox.is_marked(connection, fresh[0].dedup_id))
            attempt.see_time()
        return first


@contextmanager
def _noted(attempt: Attempt) -> Iterator[None]:
    """What is raised when the handler has returned, none of its lines has raised: an ORM writes late."""
    try:
        yield
    except Exception as error:
        if attempt.has_returned and not isinstance(error, HandlerFailed | TimeoutError):
            error.add_note(AFTERWARDS)
        raise


@contextmanager
def _told() -> Iterator[None]:
    """A handler may have swallowed an error, and PostgreSQL would then answer a commit with a rollback, in silence."""
    try:
        yield
    except Exception as error:
        if is_aborted(error):
            raise HandlerFailed(ABORTED) from error
        raise


def _see(*, is_there: bool) -> None:
    """A mark that the handler's transaction no longer sees is undone, and so is what the handler wrote before."""
    if not is_there:
        raise HandlerFailed(ENDED)


def _ids(messages: Sequence[Incoming]) -> list[str]:
    return [one.dedup_id for one in messages]


def _those(messages: Sequence[Incoming], first: Sequence[bool]) -> list[Incoming]:
    return [one for one, is_first in zip(messages, first, strict=True) if is_first]
