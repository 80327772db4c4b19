"""Running a handler: in a thread if it is sync, within its time, and again where a connection proves to be stale."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from postroom.consumer.calling import Calls, HandlerFailed
from postroom.errors import DatabaseUnreachable, PostroomError
from postroom.relay.lines import Outage
from postroom.rules.failures import with_place
from postroom.store.connections import async_kind, sync_kind
from postroom.store.db_errors import is_lost_connection, reason
from postroom.tracebacks import raised_at

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


class Runner:
    """Runs handlers, sync ones in threads. Each call is one transaction."""

    def __init__(
        self,
        inbox: Inbox,
        transactions: Transactions,
        threads: int,
        database_answers: Callable[[], Awaitable[bool]],
        tracer: Tracer | None = None,
    ) -> None:
        self._database_answers = database_answers
        self._transactions = transactions
        self._calls = Calls(inbox, transactions, tracer)
        self._threads = ThreadPoolExecutor(threads, THREADS)

    async def run(self, handler: Handler, messages: Sequence[Incoming]) -> list[bool]:
        """Mark the messages, call the handler with those that are new, commit; returns which were new.

        Raises what the handler, the inbox or the commit raised, and `TimeoutError`; then nothing was written, unless
        the answer to a commit got lost: the marks tell, when the message comes again. A thread cannot be stopped: one
        that takes too long writes nothing either, when it ends at last. Where a connection of a pool proves to be
        stale, it is tried again at once; where the database is away, raises `Outage`: the handler is not at fault.
        """
        lost: Exception | None = None
        for _ in range(STALE):
            try:
                return await self._run(handler, messages)
            except Exception as error:
                if not is_lost_connection(error):
                    raise
                lost = error
        if not await self._database_answers():
            raise Outage("the database of the handlers cannot be reached") from lost
        return await self._run(handler, messages)  # it may have been away until now

    async def _run(self, handler: Handler, messages: Sequence[Incoming]) -> list[bool]:
        try:
            if handler.is_async:
                async with asyncio.timeout(handler.timeout):
                    return await self._calls.wait(handler, messages)
            return await self._in_thread(handler, messages)
        except Exception:
            raise
        except BaseException as error:
            task = asyncio.current_task()
            if isinstance(error, KeyboardInterrupt) or (task is not None and task.cancelling()):
                raise
            raise HandlerFailed(f"{type(error).__name__}: {error}".removesuffix(": ")) from error

    async def check(self, handlers: Sequence[Handler]) -> None:
        """Open a transaction of each kind that the handlers need, and leave it.

        Raises `InvalidSetting`, `UnusableConnection` or `DatabaseUnreachable`.
        """
        try:
            if any(handler.is_async for handler in handlers):
                async with self._transactions.waiting() as connection:
                    await async_kind(connection, "inbox.afirst_time")
            if not all(handler.is_async for handler in handlers):
                await asyncio.get_running_loop().run_in_executor(self._threads, self._check)
        except PostroomError:
            raise
        except Exception as error:
            raise DatabaseUnreachable(f"no transaction can be opened for handlers: {reason(error)}") from error

    def _check(self) -> None:
        with self._transactions.blocking() as connection:
            sync_kind(connection, "inbox.first_time")

    def close(self) -> None:
        """End the threads that are idle."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, handler: Handler, messages: Sequence[Incoming]) -> list[bool]:
        too_late = threading.Event()
        work = asyncio.get_running_loop().run_in_executor(self._threads, self._block, handler, messages, too_late)
        try:
            async with asyncio.timeout(handler.timeout):
                first, error = await asyncio.shield(work)
        except BaseException:
            too_late.set()
            raise
        if error is not None:
            raise error
        return first

    def _block(
        self, handler: Handler, messages: Sequence[Incoming], too_late: threading.Event
    ) -> tuple[list[bool], BaseException | None]:
        """Result and error as a pair: some errors, as StopIteration, cannot travel through a future."""
        try:
            if too_late.is_set():
                raise TimeoutError  # noqa: TRY301 - it waited for a thread until its time was up
            return self._calls.block(handler, messages, too_late.is_set), None
        except BaseException as error:  # noqa: BLE001 - raised again where it is awaited
            return [], error


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
