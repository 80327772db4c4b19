"""Runs handlers: sync ones in threads, all within their time, and again if a pooled connection proves to be stale."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from postroom.consumer.handler_transaction import HandlerCall, HandlerFailed, HandlerTransaction
from postroom.errors import DatabaseUnreachable, PostroomError
from postroom.runtime.threads import NoFreeThread, Threads
from postroom.store.connections.kinds import async_kind, sync_kind
from postroom.store.connections.reconnecting import Outage
from postroom.store.sql.db_errors import is_lost_connection, reason

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from opentelemetry.trace import Tracer

    from postroom.consumer.handlers import Handler
    from postroom.consumer.transactions import Transactions
    from postroom.inbox import Inbox


THREADS = "postroom-handler"
STALE = 3
"""How many lost connections in a row are put down to a pool that keeps some from before a server's restart."""
STUCK = (
    "{} calls of sync handlers have not ended in time, and no thread is free: no message is tried until one ends; give "
    "what the handlers wait for a time limit"
)
STUCK_TASKS = (
    "{} calls of async handlers have not ended in time, and were cancelled in vain: no message is tried until one "
    "ends; let asyncio.CancelledError out of the handlers"
)
GRACE = 1.0
"""Seconds for a cancelled call to roll back."""


class StillRunning(Exception):
    """An earlier call with the same message has not ended. Another one would only wait for its mark."""


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
        self._database_answers = database_answers
        self._report = report
        self._stuck: dict[bool, str] = {}
        """Why no handler can be called, by whether they are async."""
        self._late: set[HandlerCall] = set()
        """Calls that have not ended in time."""
        self._late_tasks: set[asyncio.Task[list[bool]]] = set()
        """Calls of async handlers that were cancelled and go on."""
        self.hung = asyncio.Event()
        """Set when a call was refused because calls that do not end in time occupy everything."""
        self._transactions = transactions
        self._transaction = HandlerTransaction(inbox, transactions, tracer)
        self._threads = Threads(threads, THREADS)

    async def run(self, call: HandlerCall) -> list[bool]:
        """Mark the messages, call the handler with those that are new, settle, and commit; returns which were new.

        Raises what `HandlerTransaction` raises, and `TimeoutError` when the time is up. Then nothing was written,
        unless the answer to a commit got lost: the marks tell when the message comes again. A thread cannot be stopped,
        but one that takes too long writes nothing either when it ends at last.

        If a pooled connection proves to be stale before the handler is called or after it has returned, it runs again
        at once. If the database is away or no thread is free, raises `Outage`: the handler is not at fault. A
        connection that the handler itself loses may be to another database: that is a failed attempt, unless ours is
        away too. If an earlier call with one of the messages goes on beyond its time, raises `StillRunning`.
        """
        if any(call.dedup_ids & late.dedup_ids for late in self._late):
            raise StillRunning
        lost: Exception | None = None
        for _ in range(STALE):
            call = call if lost is None else call.again()
            try:
                return await self._run(call)
            except Exception as error:
                if not is_lost_connection(error):
                    raise
                lost = error
                if call.is_in_handler:
                    break
        if not await self._database_answers():
            raise Outage("the database of the handlers cannot be reached") from lost
        if lost is not None and call.is_in_handler:
            raise lost
        return await self._run(call.again())  # the database may have been away until now

    @property
    def stuck(self) -> str | None:
        """Why no handler, or none of a kind, can be called."""
        return next(iter(self._stuck.values()), None)

    @property
    def all_hung(self) -> bool:
        """Whether calls that do not end in time occupy everything that handlers could run in."""
        return max(len(self._late_tasks), self._threads.abandoned) >= self._threads.number

    async def _run(self, call: HandlerCall) -> list[bool]:
        run = self._in_task if call.handler.is_async else self._in_thread
        try:
            first = await run(call)
        except Outage:
            raise
        except BaseException as error:
            self._note(call, None)
            if not call.has_ended:
                call.is_late = True
                self._late.add(call)
            task = asyncio.current_task()
            if isinstance(error, Exception | KeyboardInterrupt) or (task is not None and task.cancelling()):
                raise
            raise _failed(error) from error
        self._note(call, None)
        return first

    async def _in_task(self, call: HandlerCall) -> list[bool]:
        """Run in a task of its own: a handler may ignore its cancellation, and nobody must wait for it then."""
        if len(self._late_tasks) >= self._threads.number:
            raise self._outage(call, STUCK_TASKS.format(len(self._late_tasks)))
        task = asyncio.create_task(self._in_transaction(call), name=THREADS)
        task.add_done_callback(lambda _: self._ended(call))
        is_late = False
        try:
            is_late = not (await asyncio.wait({task}, timeout=call.handler.timeout))[0]
        finally:
            if not task.done():
                await self._cancel(task)
        if not task.done():
            raise TimeoutError
        try:
            return task.result()
        except asyncio.CancelledError as error:
            if is_late:
                raise TimeoutError from error
            raise _failed(error) from error

    async def _in_transaction(self, call: HandlerCall) -> list[bool]:
        try:
            return await self._transaction.arun(call)
        except (Exception, asyncio.CancelledError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise _failed(error) from error  # an exit would end the event loop

    async def _cancel(self, task: asyncio.Task[list[bool]]) -> None:
        task.cancel()
        try:
            await asyncio.wait({task}, timeout=GRACE)
        finally:
            if not task.done():
                self._late_tasks.add(task)
                task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[list[bool]]) -> None:
        self._late_tasks.discard(task)
        if not task.cancelled():
            task.exception()  # nobody else asks for it

    def _ended(self, call: HandlerCall) -> None:
        call.has_ended = True
        self._late.discard(call)

    async def check(self, handlers: Sequence[Handler]) -> None:
        """Open a transaction of each kind that the handlers need, and leave it.

        Raises `InvalidSetting`, `UnusableConnection` or `DatabaseUnreachable`.
        """
        try:
            if any(handler.is_async for handler in handlers):
                async with self._transactions.waiting() as connection:
                    await async_kind(connection, "inbox.afirst_time")
            if not all(handler.is_async for handler in handlers):
                await self._threads.call(self._check)
        except PostroomError:
            raise
        except Exception as error:
            raise DatabaseUnreachable(f"no transaction can be opened for handlers: {reason(error)}") from error

    def _check(self) -> None:
        with self._transactions.blocking() as connection:
            sync_kind(connection, "inbox.first_time")

    def close(self) -> None:
        """End the threads that are idle."""
        self._threads.close()

    async def _in_thread(self, call: HandlerCall) -> list[bool]:
        try:
            async with asyncio.timeout(call.handler.timeout):
                first: list[bool] = await self._threads.call(self._blocking, call, ended=lambda: self._ended(call))
        except NoFreeThread:
            raise self._outage(call, STUCK.format(self._threads.abandoned)) from None
        except TimeoutError:
            if call.has_ended:
                raise
        else:
            return first
        raise TimeoutError  # a new one: asyncio raised the other, and no line of the handler

    def _blocking(self, call: HandlerCall) -> list[bool]:
        call.check_time()  # the machine may be so slow that its time is up before it begins
        return self._transaction.run(call)

    def _outage(self, call: HandlerCall, reason: str) -> Outage:
        self._note(call, reason)
        if self.all_hung:
            self.hung.set()
        return Outage(reason)

    def _note(self, call: HandlerCall, stuck: str | None) -> None:
        was = self.stuck
        if stuck is None:
            self._stuck.pop(call.handler.is_async, None)
        else:
            self._stuck[call.handler.is_async] = stuck
        if (was is None) != (self.stuck is None):
            self._report(self.stuck)


def _failed(error: BaseException) -> HandlerFailed:
    return HandlerFailed(f"{type(error).__name__}: {error}".removesuffix(": "))
