"""Running a handler: in a thread if it is sync, within its time, and again where a connection proves to be stale."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from postroom.consumer.calling import Attempt, Calls, HandlerFailed
from postroom.errors import DatabaseUnreachable, PostroomError
from postroom.rules.failures import with_place
from postroom.runtime.threads import NoFreeThread, Threads
from postroom.store.connections.kinds import async_kind, sync_kind
from postroom.store.connections.reconnecting import Outage
from postroom.store.sql.db_errors import is_lost_connection, reason
from postroom.telemetry.tracebacks import raised_at

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from opentelemetry.trace import Tracer

    from postroom.consumer.handlers import Handler
    from postroom.consumer.transactions import Transactions
    from postroom.inbox import Inbox
    from postroom.incoming import Incoming


THREADS = "postroom-handler"
STALE = 3
"""Connections that may prove to be lost one after another: a pool keeps some from before a server's restart."""


STUCK = (
    "{} calls of sync handlers have not ended in time, and no thread is free: no message is tried until one ends; give "
    "what the handlers wait for a time limit"
)
STUCK_TASKS = (
    "{} calls of async handlers have not ended in time, and were cancelled in vain: no message is tried until one "
    "ends; let asyncio.CancelledError out of the handlers"
)
GRACE = 1.0
"""Seconds in which a call that is cancelled ends: it rolls back."""


class StillRunning(Exception):
    """An earlier call for the same message has not ended: another one would wait for its mark, and is not made."""


class Runner:
    """Runs handlers, sync ones in threads. Each call is one transaction."""

    def __init__(
        self,
        inbox: Inbox,
        transactions: Transactions,
        threads: int,
        database_answers: Callable[[], Awaitable[bool]],
        tell: Callable[[str | None], None],
        tracer: Tracer | None = None,
    ) -> None:
        """`tell` is told why no sync handler can be called, and, with None, that they can be again."""
        self._database_answers = database_answers
        self._tell = tell
        self._stuck: dict[bool, str] = {}
        """Why no handler can be called; by whether they are async."""
        self._hung: dict[Attempt, frozenset[str]] = {}
        """Calls that nobody waits for any more, and what their messages are known by."""
        self._tasks: set[asyncio.Task[list[bool]]] = set()
        """Those of async handlers that were cancelled and go on."""
        self._transactions = transactions
        self._calls = Calls(inbox, transactions, tracer)
        self._threads = Threads(threads, THREADS)

    async def run(self, handler: Handler, messages: Sequence[Incoming]) -> list[bool]:
        """Mark the messages, call the handler with those that are new, commit; returns which were new.

        Raises what the handler, the inbox or the commit raised, and `TimeoutError`; then nothing was written, unless
        the answer to a commit got lost: the marks tell, when the message comes again. A thread cannot be stopped: one
        that takes too long writes nothing either, when it ends at last. Where a connection of a pool proves to be
        stale, before the handler is called or after it has returned, it is tried again at once; where the database is
        away, or no thread is free, raises `Outage`: the handler is not at fault. A connection that a handler loses may
        be to another database: that is a failed attempt, unless ours is away too. Where an earlier call for one of the
        messages goes on though its time is up, raises `StillRunning`.
        """
        known = frozenset(one.dedup_id for one in messages) if self._hung else frozenset()
        if any(known & theirs for theirs in self._hung.values()):
            raise StillRunning
        lost: Exception | None = None
        attempt = Attempt()
        for _ in range(STALE):
            attempt = Attempt()
            try:
                return await self._run(handler, messages, attempt)
            except Exception as error:
                if not is_lost_connection(error):
                    raise
                lost = error
                if attempt.is_with_handler:
                    break
        if not await self._database_answers():
            raise Outage("the database of the handlers cannot be reached") from lost
        if lost is not None and attempt.is_with_handler:
            raise lost
        return await self._run(handler, messages, Attempt())  # it may have been away until now

    @property
    def stuck(self) -> str | None:
        """Why no handler, or none of a kind, can be called."""
        return next(iter(self._stuck.values()), None)

    @property
    def hangs_for_good(self) -> bool:
        """Whether nothing but calls whose time is up keeps handlers from being called."""
        return max(len(self._tasks), self._threads.abandoned) >= self._threads.number

    async def _run(self, handler: Handler, messages: Sequence[Incoming], attempt: Attempt) -> list[bool]:
        call = self._in_task if handler.is_async else self._in_thread
        try:
            first = await call(handler, messages, attempt)
        except Outage:
            raise
        except BaseException as error:
            self._note(handler, None)
            if not attempt.has_ended:
                attempt.is_late = True
                self._hung[attempt] = frozenset(one.dedup_id for one in messages)
            task = asyncio.current_task()
            if isinstance(error, Exception | KeyboardInterrupt) or (task is not None and task.cancelling()):
                raise
            raise _failed(error) from error
        self._note(handler, None)
        return first

    async def _in_task(self, handler: Handler, messages: Sequence[Incoming], attempt: Attempt) -> list[bool]:
        """In a task of its own: a handler may not heed that it is cancelled, and nobody must wait for it then."""
        if len(self._tasks) >= self._threads.number:
            raise self._outage(handler, STUCK_TASKS.format(len(self._tasks)))
        call = asyncio.create_task(self._wait(handler, messages, attempt), name=THREADS)
        call.add_done_callback(lambda _: self._ended(attempt))
        is_late = False
        try:
            is_late = not (await asyncio.wait({call}, timeout=handler.timeout))[0]
        finally:
            if not call.done():
                await self._cancel(call)
        if not call.done():
            raise TimeoutError
        try:
            return call.result()
        except asyncio.CancelledError as error:
            if is_late:
                raise TimeoutError from error
            raise _failed(error) from error

    async def _wait(self, handler: Handler, messages: Sequence[Incoming], attempt: Attempt) -> list[bool]:
        try:
            return await self._calls.wait(handler, messages, attempt)
        except (Exception, asyncio.CancelledError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise _failed(error) from error  # an exit would end the loop

    async def _cancel(self, call: asyncio.Task[list[bool]]) -> None:
        call.cancel()
        try:
            await asyncio.wait({call}, timeout=GRACE)
        finally:
            if not call.done():
                self._tasks.add(call)
                call.add_done_callback(self._forget)

    def _forget(self, call: asyncio.Task[list[bool]]) -> None:
        self._tasks.discard(call)
        if not call.cancelled():
            call.exception()  # nobody else asks for it

    def _ended(self, attempt: Attempt) -> None:
        attempt.has_ended = True
        self._hung.pop(attempt, None)

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

    async def _in_thread(self, handler: Handler, messages: Sequence[Incoming], attempt: Attempt) -> list[bool]:
        try:
            async with asyncio.timeout(handler.timeout):
                first: list[bool] = await self._threads.call(
                    self._block, handler, messages, attempt, ended=lambda: self._ended(attempt)
                )
        except NoFreeThread:
            raise self._outage(handler, STUCK.format(self._threads.abandoned)) from None
        except TimeoutError:
            if attempt.has_ended:
                raise
        else:
            return first
        raise TimeoutError  # a new one: asyncio has raised the other, and no line of the handler's

    def _block(self, handler: Handler, messages: Sequence[Incoming], attempt: Attempt) -> list[bool]:
        attempt.see_time()  # the machine may be so slow that its time is up before it begins
        return self._calls.block(handler, messages, attempt)

    def _outage(self, handler: Handler, reason: str) -> Outage:
        self._note(handler, reason)
        return Outage(reason)

    def _note(self, handler: Handler, stuck: str | None) -> None:
        was = self.stuck
        if stuck is None:
            self._stuck.pop(handler.is_async, None)
        else:
            self._stuck[handler.is_async] = stuck
        if (was is None) != (self.stuck is None):
            self._tell(self.stuck)


def _failed(error: BaseException) -> HandlerFailed:
    return HandlerFailed(f"{type(error).__name__}: {error}".removesuffix(": "))


def said(error: BaseException, handler: Handler) -> str:
    """What an error says, and where in the user's code it was raised."""
    return with_place(_said(error, handler), raised_at(error))


def _said(error: BaseException, handler: Handler) -> str:
    """What an error says, after its class: many, as KeyError, say little without."""
    if isinstance(error, HandlerFailed):
        return str(error)
    if isinstance(error, TimeoutError) and not str(error):
        return f"the handler did not end within {handler.timeout:g} s"
    # SQLAlchemy's own texts quote a statement's parameters, which are the user's data.
    text = reason(error) if getattr(error, "orig", None) else str(error)
    return f"{type(error).__name__}: {text}".removesuffix(": ")
