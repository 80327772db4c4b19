"""A handler's transaction: inbox marks, the handler's own writes and the settlement commit together, or not at all."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from postroom.consumer.settlement import LeaseNotHeld
from postroom.consumer.tracing import continued
from postroom.runtime.call import Call
from postroom.runtime.calls import CallFailed
from postroom.store.sql.db_errors import is_aborted
from postroom.telemetry.tracebacks import AFTERWARDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opentelemetry.trace import Tracer

    from postroom.compose.transactions import Transactions
    from postroom.consumer.handler_series import HandlerSeries
    from postroom.consumer.handlers import Handler
    from postroom.consumer.settlement import DeliverySettlement
    from postroom.inbox import Inbox
    from postroom.incoming import Incoming

ABORTED = (
    "the handler went on after a statement had failed, and PostgreSQL undoes such a transaction: let the error out, or "
    "have a savepoint around the statement"
)
ENDED = "the handler has rolled back its transaction, and the mark with it: leave its end to the consumer"


class HandlerCall(Call):
    """One call of a handler, and how far it has come."""

    def __init__(
        self, handler: Handler, messages: Sequence[Incoming], settlement: DeliverySettlement | None = None
    ) -> None:
        """`settlement`: of the delivery that the only message was parked as."""
        self.ids = [one.dedup_id for one in messages]
        super().__init__(is_async=handler.is_async, timeout=handler.timeout, subjects=frozenset(self.ids))
        self.handler = handler
        self.messages = messages
        self.settlement = settlement
        self.may_be_committed = False
        """Whether an earlier call may have committed all of this, and its answer got lost."""

    def again(self) -> Self:
        """The same call once more, after this one has failed."""
        call = type(self)(self.handler, self.messages, self.settlement)
        call.may_be_committed = self.has_returned or self.may_be_committed
        return call

    def check_lease(self, fresh: Sequence[Incoming], *, is_held: bool) -> None:
        """Raise `LeaseNotHeld` if somebody else has the delivery, unless an earlier call has handled and settled it."""
        if not is_held and (fresh or not self.may_be_committed):
            raise LeaseNotHeld


class HandlerTransaction:
    """Calls handlers in the caller's own thread or task, without a time limit.

    `run` and `arun` mark the messages, call the handler with those that are new, settle, and commit; they return which
    were new. If the call is late by then, they raise `TimeoutError`; if a delivery cannot be settled, `LeaseNotHeld` or
    `NotSettledHere`; otherwise what the handler, the inbox or the commit raised. Then nothing was written.
    """

    def __init__(self, inbox: Inbox, transactions: Transactions, tracer: Tracer | None = None) -> None:
        self._inbox = inbox
        self._transactions = transactions
        self._tracer = tracer

    def run(self, call: HandlerCall) -> list[bool]:
        """Call a sync handler."""
        with explaining(call), self._transactions.blocking() as connection:
            first = self._inbox.first_times(connection, call.ids)  # may wait for another transaction's end
            call.check_time()
            fresh = _those(call.messages, first)
            if fresh:
                with continued(fresh, self._inbox.consumer, self._tracer), call.in_function():
                    call.handler.call(connection, fresh)
                if call.handler.takes_connection:
                    with explaining_aborted():
                        _require_mark(is_there=self._inbox.is_marked(connection, fresh[0].dedup_id))
            if call.settlement is not None:
                call.check_lease(fresh, is_held=call.settlement.run(connection))
            call.check_time()
        return first

    async def arun(self, call: HandlerCall) -> list[bool]:
        """Call an async handler."""
        with explaining(call):
            async with self._transactions.waiting() as connection:
                first = await self._inbox.afirst_times(connection, call.ids)
                call.check_time()
                fresh = _those(call.messages, first)
                if fresh:
                    with continued(fresh, self._inbox.consumer, self._tracer), call.in_function():
                        await call.handler.call(connection, fresh)
                    if call.handler.takes_connection:
                        with explaining_aborted():
                            _require_mark(is_there=await self._inbox.ais_marked(connection, fresh[0].dedup_id))
                if call.settlement is not None:
                    call.check_lease(fresh, is_held=await call.settlement.arun(connection))
                call.check_time()
        return first

    def run_each(self, series: HandlerSeries) -> None:
        """Call a sync handler with one message after another, each in a transaction of its own."""
        for _ in series.each():
            [series.is_first] = self.run(series)

    async def arun_each(self, series: HandlerSeries) -> None:
        """Call an async handler with one message after another, each in a transaction of its own."""
        for _ in series.each():
            [series.is_first] = await self.arun(series)


@contextmanager
def explaining(call: HandlerCall) -> Iterator[None]:
    """Note on an error that it was raised after the handler had returned, by none of its lines: an ORM writes late."""
    try:
        yield
    except Exception as error:
        if call.has_returned and not isinstance(error, CallFailed | TimeoutError):
            error.add_note(AFTERWARDS)
        raise


@contextmanager
def explaining_aborted() -> Iterator[None]:
    """Find out if the handler swallowed a database error: PostgreSQL would silently roll back at the commit."""
    try:
        yield
    except Exception as error:
        if is_aborted(error):
            raise CallFailed(ABORTED) from error
        raise


def _require_mark(*, is_there: bool) -> None:
    """A mark that the handler's transaction no longer sees was rolled back, and so was what the handler wrote."""
    if not is_there:
        raise CallFailed(ENDED)


def _those(messages: Sequence[Incoming], first: Sequence[bool]) -> list[Incoming]:
    return [one for one, is_first in zip(messages, first, strict=True) if is_first]
