"""Series on connections of PostgreSQL's drivers: mark and check cost no round trips beside begin and commit."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from postroom.consumer.handler_transaction import ENDED, explaining, explaining_aborted
from postroom.consumer.tracing import continued
from postroom.runtime.calls import CallFailed
from postroom.store.connections import marked
from postroom.store.inbox import is_not_marked
from postroom.store.sql.db_errors import is_aborted

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
    Then nothing of that message was written. The round trip that commits also begins and marks the message behind it.
    """

    def __init__(self, inbox: Inbox, transactions: Transactions, tracer: Tracer | None = None) -> None:
        self._inbox = inbox
        self._transactions = transactions
        self._tracer = tracer

    def run_each(self, series: HandlerSeries) -> None:
        """Call a sync handler."""
        # To SQLAlchemy, all is one transaction: those of PostgreSQL begin and end within it.
        with self._transactions.kept() as (connection, given), connection.begin() as transaction:
            driver = connection.connection.driver_connection
            message = series.start()
            if message is not None:
                series.is_first = marked.begin(driver, self._inbox.begin_marked(series.ids[0]))
            while message is not None:
                series.check_time()
                if series.is_first:
                    with continued([message], self._inbox.consumer, self._tracer), series.in_function():
                        series.handler.call(given, [message])
                    _require_open(is_open=not connection.closed)
                    series.check_time()
                # One that the handler leaves in a savepoint ends the series, and SQLAlchemy's transaction with it.
                is_nested = connection.in_nested_transaction() or marked.is_nested(driver)
                message = None if is_nested else series.following()
                self._finish(driver, series, message)
            if marked.is_nested(driver):  # all is committed, but psycopg lets nobody else end the connection's use
                connection.invalidate()
                transaction.rollback()

    def _finish(self, driver: Any, series: HandlerSeries, following: Incoming | None) -> None:
        """Commit, and begin the following transaction."""
        is_first = False
        try:
            if following is None:
                marked.commit(driver)
            else:
                is_first = marked.commit_and_begin(driver, self._inbox.begin_marked(series.following_id))
        except Exception as error:
            if _is_before_commit(error) or not marked.has_row(driver, self._inbox.find_mark(series.ids[0])):
                with explaining(series), _explaining_end():
                    raise
            series.finish(following)
            if following is not None:
                raise
            return
        series.finish(following, is_first=is_first)

    async def arun_each(self, series: HandlerSeries) -> None:
        """Call an async handler."""
        async with self._transactions.akept() as driver:
            try:
                await self._arun_each(driver, series)
            except BaseException:
                with suppress(Exception):
                    await marked.aroll_back(driver)
                raise

    async def _arun_each(self, driver: Any, series: HandlerSeries) -> None:
        message = series.start()
        if message is not None:
            marked.nest(driver)
            series.is_first = await marked.abegin(driver, self._inbox.begin_marked(series.ids[0]))
        while message is not None:
            series.check_time()
            if series.is_first:
                with continued([message], self._inbox.consumer, self._tracer), series.in_function():
                    await series.handler.call(driver, [message])
                series.check_time()
            message = series.following()
            await self._afinish(driver, series, message)

    async def _afinish(self, driver: Any, series: HandlerSeries, following: Incoming | None) -> None:
        """Commit, and begin the following transaction."""
        is_first = False
        try:
            if following is None:
                await marked.acommit(driver)
            else:
                is_first = await marked.acommit_and_begin(driver, self._inbox.begin_marked(series.following_id))
        except Exception as error:
            if _is_before_commit(error) or not await marked.ahas_row(driver, self._inbox.find_mark(series.ids[0])):
                with explaining(series), _explaining_end():
                    raise
            series.finish(following)
            if following is not None:
                raise
            return
        series.finish(following, is_first=is_first)


def _is_before_commit(error: Exception) -> bool:
    """Whether the transaction could not be committed; otherwise, this or the beginning of the next one may have failed.

    Only the mark tells which: a connection is in the same state after either.
    """
    return is_aborted(error) or is_not_marked(error)


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
