"""Series on connections of PostgreSQL's drivers: mark and check cost no round trips beside begin and commit."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from postroom.consumer.handler_transaction import ENDED, explaining, explaining_aborted
from postroom.consumer.tracing import continued
from postroom.runtime.calls import CallFailed
from postroom.store.connections import marked
from postroom.store.inbox import is_not_marked

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.trace import Tracer

    from postroom.compose.transactions import Transactions
    from postroom.consumer.handler_series import HandlerSeries
    from postroom.inbox import Inbox
    from postroom.incoming import Incoming

ENDED_ITSELF = "the handler has committed or rolled back its transaction itself: leave its end to the consumer"


class MarkedSeries:
    """Calls handlers with one message after another, on one connection, each in a transaction of its own.

    It does what `HandlerTransaction` does: `run_each` and `arun_each` mark a message, call the handler if it is new,
    and commit; they raise `TimeoutError` if the call is late by then, otherwise what the handler or the commit raised.
    Then nothing of that message was written.
    """

    def __init__(self, inbox: Inbox, transactions: Transactions, tracer: Tracer | None = None) -> None:
        self._inbox = inbox
        self._transactions = transactions
        self._tracer = tracer

    def run_each(self, series: HandlerSeries) -> None:
        """Call a sync handler."""
        with self._transactions.kept() as (connection, given):
            driver = connection.connection.driver_connection
            for message in series.each():
                with explaining(series), connection.begin():
                    series.is_first = marked.begin(driver, self._inbox.begin_marked(series.ids[0]))
                    series.check_time()
                    if series.is_first:
                        with continued([message], self._inbox.consumer, self._tracer), series.in_function():
                            series.handler.call(given, [message])
                        _require_open(is_open=not connection.closed)
                    series.check_time()
                    with _explaining_end():
                        marked.commit(driver)

    async def arun_each(self, series: HandlerSeries) -> None:
        """Call an async handler."""
        async with self._transactions.akept() as driver:
            for message in series.each():
                with explaining(series):
                    try:
                        await self._arun(driver, series, message)
                    except BaseException:
                        with suppress(Exception):  # a connection that cannot even roll back is closed
                            await marked.aroll_back(driver)
                        raise

    async def _arun(self, driver: Any, series: HandlerSeries, message: Incoming) -> None:
        series.is_first = await marked.abegin(driver, self._inbox.begin_marked(series.ids[0]))
        series.check_time()
        if series.is_first:
            with continued([message], self._inbox.consumer, self._tracer), series.in_function():
                await series.handler.call(driver, [message])
        series.check_time()
        with _explaining_end():
            await marked.acommit(driver)


def _require_open(*, is_open: bool) -> None:
    """A connection that the handler has closed may be in use elsewhere."""
    if not is_open:
        raise CallFailed(ENDED)


@contextmanager
def _explaining_end() -> Iterator[None]:
    try:
        with explaining_aborted():
            yield
    except Exception as error:
        if is_not_marked(error):  # it may have begun another one since, so even after a commit all is not well
            raise CallFailed(ENDED_ITSELF) from error
        raise
