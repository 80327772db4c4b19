"""Runs handlers: sync ones in threads, all within their time, and again if a pooled connection proves to be stale."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.consumer.handler_transaction import HandlerCall, HandlerTransaction
from postroom.consumer.marked_series import MarkedSeries
from postroom.runtime.calls import Calls, CannotCall, Words
from postroom.store.connections.reconnecting import Outage
from postroom.store.sql.db_errors import is_lost_connection

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Sequence

    from opentelemetry.trace import Tracer

    from postroom.compose.transactions import Transactions
    from postroom.consumer.handler_series import HandlerSeries
    from postroom.consumer.handlers import Handler
    from postroom.inbox import Inbox

WORDS = Words("handlers", "message")


class HandlerRunner:
    """Runs handlers, each call in one transaction, and keeps account of calls that do not end in time."""

    def __init__(
        self,
        inbox: Inbox,
        transactions: Transactions,
        threads: int,
        database_answers: Callable[[], Awaitable[bool]],
        report: Callable[[str | None], None],
        tracer: Tracer | None = None,
    ) -> None:
        """`report` receives why no handler can be called, and None when they can be called again."""
        self._transactions = transactions
        self._transaction = HandlerTransaction(inbox, transactions, tracer)
        self._marked = MarkedSeries(inbox, transactions, tracer)
        self._calls = Calls(
            WORDS, threads, database_answers=database_answers, is_lost_connection=is_lost_connection, report=report
        )

    async def run(self, call: HandlerCall) -> list[bool]:
        """Mark the messages, call the handler with those that are new, settle, and commit; returns which were new.

        Raises what `HandlerTransaction` raises, and `TimeoutError` when the time is up. Then nothing was written,
        unless the answer to a commit got lost: the marks tell when the message comes again. If the database is away or
        no thread is free, raises `Outage`: the handler is not at fault. If an earlier call with one of the messages
        goes on beyond its time, raises `StillRunning`.
        """
        try:
            return await self._calls.run(call, self._transaction.run, self._transaction.arun)
        except CannotCall as error:
            raise Outage(str(error)) from error.__cause__

    async def run_each(self, series: HandlerSeries) -> None:
        """Run the handler with one message after another, each in a transaction of its own, until one fails.

        Raises what `run` does, for the first message that is not finished. Nothing of those behind it was done.
        """
        can_keep = self._transactions.can_keep(asynchronous=series.is_async)
        transaction = self._marked if can_keep else self._transaction
        try:
            await self._calls.run(series, transaction.run_each, transaction.arun_each)
        except CannotCall as error:
            raise Outage(str(error)) from error.__cause__

    @property
    def stuck(self) -> str | None:
        """Why no handler, or none of a kind, can be called."""
        return self._calls.stuck

    @property
    def hung(self) -> asyncio.Event:
        """Set when a call was refused because calls that do not end in time occupy everything."""
        return self._calls.hung

    @property
    def all_hung(self) -> bool:
        """Whether calls that do not end in time occupy everything that handlers could run in."""
        return self._calls.all_hung

    async def check(self, handlers: Sequence[Handler]) -> None:
        """Open a transaction of each kind that the handlers need, and leave it.

        Raises `InvalidSetting`, `UnusableConnection` or `DatabaseUnreachable`.
        """
        await self._transactions.check({handler.is_async for handler in handlers}, self._calls.in_thread)

    def close(self) -> None:
        """End the threads that are idle."""
        self._calls.close()
