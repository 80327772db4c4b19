"""InMemoryRelay: delivers messages to functions of a test, when the test asks for it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Generator
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from postroom.brokers.memory import MemoryBroker
from postroom.relay import Relay

if TYPE_CHECKING:
    from uuid import UUID

    from postroom.message import Message
    from postroom.testing.recording import RecordingOutbox

Handler = Callable[["Message"], Any]
H = TypeVar("H", bound=Handler)

MOST_ROUNDS = 1000
"""Rounds of delivering what handlers add, before that is taken for an endless loop."""


class InMemoryRelay:
    """Delivers what is in the outbox to the subscribers of its topics, when `deliver` is called.

    The source is a `RecordingOutbox`, or the URL of a database with Postroom's tables; there, messages are settled as
    sent before the handlers see them. Handlers are called one after another in the test's thread, and may be async. If
    one
    raises, the test gets the exception; that message and those after it are delivered by the next call.
    """

    def __init__(self, source: RecordingOutbox | str) -> None:
        self._source: RecordedMessages | StoredMessages = (
            StoredMessages(source) if isinstance(source, str) else RecordedMessages(source)
        )
        self._handlers: dict[str, list[Handler]] = {}
        self._waiting: list[Message] = []
        self.delivered: list[Message] = []
        """Everything delivered so far, in order."""

    def on(self, topic: str) -> Callable[[H], H]:
        """Decorator: subscribe a function to a topic."""

        def subscribe(handler: H) -> H:
            self.subscribe(topic, handler)
            return handler

        return subscribe

    def subscribe(self, topic: str, handler: Handler) -> None:
        """Call the function with each message to the topic."""
        self._handlers.setdefault(topic, []).append(handler)

    def deliver(self, handler: Handler | None = None) -> list[Message]:
        """Deliver what is due, and what handlers add meanwhile. Returns what was delivered.

        With a handler, everything goes to that one instead of the subscribers.
        """
        if _in_event_loop():
            raise RuntimeError("deliver was called from async code: use `await relay.adeliver()`")
        return _run(self._deliver(handler))

    async def adeliver(self, handler: Handler | None = None) -> list[Message]:
        """`deliver` for async code."""
        return await _arun(self._deliver(handler))

    def redeliver(self) -> list[Message]:
        """Deliver everything again, as brokers sometimes do: handlers must cope with it."""
        if _in_event_loop():
            raise RuntimeError("redeliver was called from async code: use `await relay.aredeliver()`")
        return _run(self._redeliver())

    async def aredeliver(self) -> list[Message]:
        """`redeliver` for async code."""
        return await _arun(self._redeliver())

    def _deliver(self, handler: Handler | None) -> Work[list[Message]]:
        before = len(self.delivered)
        for _ in range(MOST_ROUNDS):
            self._waiting += yield self._source.due
            if not self._waiting:
                return self.delivered[before:]
            while self._waiting:
                yield from self._hand(self._waiting[0], handler)
                self.delivered.append(self._waiting.pop(0))
        raise RuntimeError(f"handlers still added messages after {MOST_ROUNDS} rounds: do two of them call each other?")

    def _redeliver(self) -> Work[list[Message]]:
        again = list(self.delivered)
        for message in again:
            yield from self._hand(message, None)
        return again

    def _hand(self, message: Message, handler: Handler | None) -> Work[None]:
        for one in [handler] if handler else list(self._handlers.get(message.topic, ())):
            yield partial(one, message)


class RecordedMessages:
    """The messages of a recording outbox."""

    def __init__(self, outbox: RecordingOutbox) -> None:
        self._outbox = outbox
        self._taken: set[UUID] = set()

    def due(self) -> list[Message]:
        """The messages that are due and not expired, as a relay would read them."""
        now = datetime.now(UTC)
        due = []
        for position, message in enumerate(self._outbox.messages, 1):
            if message.id in self._taken or (message.deliver_at and message.deliver_at > now):
                continue
            self._taken.add(message.id)
            if message.expires_at is None or message.expires_at > now:
                due.append(msgspec.structs.replace(message, position=position, created_at=now, deliver_at=None))
        return due


class StoredMessages:
    """The messages of a database."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def due(self) -> list[Message]:
        """The messages that a relay sends."""
        broker = MemoryBroker()
        await Relay(self._url, broker, brokers={}).run_once()
        return broker.messages


T = TypeVar("T")
Work = Generator[Callable[[], Any], Any, T]
"""Calls to make, each of a function that may be async; driven by a sync or an async loop."""


def _run(work: Work[T]) -> T:
    result: Any = None
    with asyncio.Runner() as runner:
        while True:
            try:
                call = work.send(result)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]  # StopIteration is not generic
            result = call()
            if inspect.isawaitable(result):
                result = runner.run(_awaited(result))


async def _arun(work: Work[T]) -> T:
    result: Any = None
    while True:
        try:
            call = work.send(result)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # as in _run
        result = call()
        if inspect.isawaitable(result):
            result = await result


async def _awaited(result: Any) -> Any:
    return await result


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
