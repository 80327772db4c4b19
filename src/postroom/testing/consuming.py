"""InMemoryConsumer: calls a consumer's own handlers in the thread and the transaction of the test."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, Unpack

from postroom.brokers.cloudevents import KAFKA, Envelope, incoming
from postroom.compose.transactions import Transactions
from postroom.consumer.handler_attempts import failure_of, retry_delay
from postroom.consumer.handler_transaction import HandlerCall, HandlerTransaction
from postroom.consumer.handlers import handler_for
from postroom.consumer.outcomes import Fate
from postroom.incoming import Incoming
from postroom.message import Fields, Message
from postroom.rules.failures import Reason
from postroom.testing.savepoints import savepoints

if TYPE_CHECKING:
    from postroom.consumer import Consumer
    from postroom.consumer.handlers import Handler

_ENVELOPE = Envelope(KAFKA)
_NO_JITTER = 0.5
T = TypeVar("T")

Call = tuple["Handler", Sequence[Incoming]]
Work = Generator[Call, list[bool] | Exception, T]
"""Calls of handlers to make; each is sent its result or its error. One loop drives it for sync tests, one for async."""


@dataclass(frozen=True, slots=True)
class Undone:
    """A message that is parked or dead."""

    message: Incoming
    attempts: int = 0
    """Calls of its handler so far: none, if it only waits behind another of its key."""
    code: str = ""
    """The reason code."""
    said: str = ""
    """The text of its dead letter: the error, and where in your code it was raised."""
    error: Exception | None = None
    """What the handler raised."""
    delay: float | None = None
    """Seconds after which a consumer would retry it; None if it is dead, or waits behind another."""


class InMemoryConsumer:
    """Handles messages as a running `Consumer` does, with inbox and handler in one transaction.

    It needs no broker, thread or process. Given a ``connection`` of any kind that the outbox takes, each call is a
    savepoint in its open transaction, which the test ends as it likes; that database has Postroom's tables. By default,
    each call is a transaction of the consumer's own, and commits.

    What a handler raises reaches the test. With ``catch=True`` the message is parked or dead instead, as in a consumer;
    `retry` retries what is parked at once. Timeouts apply to async handlers only.
    """

    def __init__(self, consumer: Consumer, connection: object = None, *, catch: bool = False) -> None:
        # It shares the parts of the consumer, of which it is a variant.
        self._handlers = consumer._handlers  # noqa: SLF001
        self._batch = consumer._batch  # noqa: SLF001
        self._classifier = consumer._classifier  # noqa: SLF001
        self._holds = consumer._settings.order == "hold"  # noqa: SLF001
        own = consumer._transactions  # noqa: SLF001
        self._transactions = own if connection is None else Transactions(savepoints(connection), None)
        self._transaction = HandlerTransaction(consumer._inbox, self._transactions)  # noqa: SLF001
        self._catch = catch
        self.handled: list[Incoming] = []
        """What has been handled so far, in order."""
        self.parked: list[Undone] = []
        """What is to be retried, in order."""
        self.dead: list[Undone] = []
        """What was given up, in order."""

    def receive(self, topic: str, payload: object = None, **fields: Unpack[Fields]) -> Fate:
        """Handle a message with these fields, which are those of `Outbox.add`; returns what became of it."""
        return self.handle(Message.new(topic, payload, **fields))[0]

    async def areceive(self, topic: str, payload: object = None, **fields: Unpack[Fields]) -> Fate:
        """`receive` for async tests."""
        return (await self.ahandle(Message.new(topic, payload, **fields)))[0]

    def handle(self, *messages: Message | Incoming) -> list[Fate]:
        """Handle messages that were published, or that you made; returns what became of each.

        Neighbours go together to a handler that takes several.
        """
        return self._done(self._handle([_received(one) for one in messages]))

    async def ahandle(self, *messages: Message | Incoming) -> list[Fate]:
        """`handle` for async tests. Handlers may be sync."""
        return await self._adone(self._handle([_received(one) for one in messages]))

    def retry(self) -> list[Fate]:
        """Retry what is parked, without waiting for its time; returns what became of each."""
        return self._done(self._retry())

    async def aretry(self) -> list[Fate]:
        """`retry` for async tests."""
        return await self._adone(self._retry())

    def _done(self, work: Work[T]) -> T:
        try:
            return self._drive(work)
        finally:
            self._transactions.close_blocking()  # the connections were opened for this call

    async def _adone(self, work: Work[T]) -> T:
        try:
            return await self._adrive(work)
        finally:
            await self._transactions.close()

    def _drive(self, work: Work[T]) -> T:
        answer: list[bool] | Exception | None = None
        while True:
            try:
                handler, messages = next(work) if answer is None else work.send(answer)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]  # StopIteration is not generic
            if handler.is_async:
                raise RuntimeError(
                    f"the handler {handler.name} is async: use `await` with ahandle, areceive and aretry"
                )
            answer = self._block(handler, messages)

    async def _adrive(self, work: Work[T]) -> T:
        answer: list[bool] | Exception | None = None
        while True:
            try:
                handler, messages = next(work) if answer is None else work.send(answer)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]  # as in _drive
            answer = await self._wait(handler, messages) if handler.is_async else self._block(handler, messages)

    def _block(self, handler: Handler, messages: Sequence[Incoming]) -> list[bool] | Exception:
        try:
            return self._transaction.run(HandlerCall(handler, messages))
        except Exception as error:  # noqa: BLE001 - raised where the test looks, or kept
            return error

    async def _wait(self, handler: Handler, messages: Sequence[Incoming]) -> list[bool] | Exception:
        try:
            async with asyncio.timeout(handler.timeout):
                return await self._transaction.arun(HandlerCall(handler, messages))
        except Exception as error:  # noqa: BLE001 - as in _block
            return error

    def _handle(self, messages: list[Incoming]) -> Work[list[Fate]]:
        fates: list[Fate] = []
        while len(fates) < len(messages):
            group = self._next(messages[len(fates) :])
            done = yield from self._attempt(group)
            if not done:  # one of them failed: attempt each by itself
                for one in group:
                    done += yield from self._attempt([one])
            fates += done
        return fates

    def _next(self, waiting: Sequence[Incoming]) -> list[Incoming]:
        """The first, and those behind it that its handler takes together with it."""
        first, *others = waiting
        handler = handler_for(first, self._handlers)
        group = [first]
        if handler is not None and handler.takes_batch and not self._goes_alone(first):
            for other in others[: self._batch - 1]:
                if handler_for(other, self._handlers) is not handler or self._goes_alone(other):
                    break
                group.append(other)
        return group

    def _goes_alone(self, message: Incoming) -> bool:
        return message.problem is not None or self._is_blocked(message)

    def _attempt(self, group: Sequence[Incoming], before: int = 0) -> Work[list[Fate]]:
        """What became of each; nothing, if a call with several failed."""
        message = group[0]
        handler = handler_for(message, self._handlers)
        if message.problem is not None:
            self.dead.append(Undone(message, before, Reason.UNDECODABLE, message.problem))
            return [Fate.DEAD]
        if handler is None:
            return [Fate.SKIPPED]
        if self._is_blocked(message):
            self.parked.append(Undone(message))
            return [Fate.PARKED]
        answer = yield handler, group
        if not isinstance(answer, Exception):
            self.handled += [one for one, is_first in zip(group, answer, strict=True) if is_first]
            return [Fate.HANDLED if is_first else Fate.DUPLICATE for is_first in answer]
        if not self._catch:
            raise answer
        return [] if len(group) > 1 else [self._failed(handler, message, before + 1, answer)]

    def _failed(self, handler: Handler, message: Incoming, attempts: int, error: Exception) -> Fate:
        code, text = failure_of(error, handler, self._classifier)
        delay = retry_delay(attempts, code, handler, self._classifier, _NO_JITTER)
        undone = Undone(message, attempts, code, text, error, delay)
        (self.dead if delay is None else self.parked).append(undone)
        return Fate.DEAD if delay is None else Fate.PARKED

    def _retry(self) -> Work[list[Fate]]:
        waiting, self.parked = self.parked, []
        fates: list[Fate] = []
        while waiting:
            one = waiting[0]
            try:
                fates += yield from self._attempt([one.message], one.attempts)
            except BaseException:
                self.parked += waiting  # what raised is still to be retried
                raise
            waiting.pop(0)
        return fates

    def _is_blocked(self, message: Incoming) -> bool:
        blockers = [*self.parked, *(self.dead if self._holds else ())]
        return message.key is not None and any(one.message.key == message.key for one in blockers)


def _received(message: Message | Incoming) -> Incoming:
    """The message as a broker would deliver it."""
    if isinstance(message, Incoming):
        return message
    headers, body = _ENVELOPE.seal(message)
    return incoming(KAFKA, headers, body, id=str(message.id), topic=message.topic)
