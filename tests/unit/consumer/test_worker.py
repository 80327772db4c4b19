"""A worker: messages one after another, in their order, each handled, parked, skipped or undone."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID, uuid4

from postroom import RetryPolicy
from postroom.consumer.handler_attempts import Attempted, AttemptFailed, Committed, HandlerAttempts, NotCalled
from postroom.consumer.handlers import Handler, handler_for, handler_of
from postroom.consumer.outcomes import Fate
from postroom.consumer.worker import SequentialWorker
from postroom.incoming import Incoming
from postroom.sources.port import Received
from postroom.store.connections.reconnecting import Outage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from postroom.consumer.parked import ParkedMessages
    from postroom.store.outbox.parking import Failed


def one_by_one(message: Incoming) -> None: ...


def together(messages: list[Incoming]) -> None: ...


HANDLERS = [
    handler_of(one_by_one, "orders", None, RetryPolicy(), 1),
    handler_of(together, "bills", None, RetryPolicy(), 1),
]
FAILED = AttemptFailed("BROKEN", "it broke")


class Consumption:
    """A worker with attempts that end as they are told to, and messages parked in memory."""

    def __init__(self, *results: Attempted | Exception) -> None:
        self.results = deque(results)
        self.attempted: list[list[str]] = []
        self.parked: list[tuple[str, Failed | None]] = []
        self.done: list[tuple[str, Fate]] = []
        self.reported: list[tuple[str, Fate]] = []
        self.has_begun = asyncio.Event()
        self.is_finished = asyncio.Event()
        self.stopping = asyncio.Event()
        parts: Any = self
        self.worker = SequentialWorker(
            batch=10,
            attempts=cast("HandlerAttempts", parts),
            parked=cast("ParkedMessages", parts),
            stopping=self.stopping,
            done=self._done,
        )

    async def work(self, *messages: Incoming) -> list[tuple[str, Fate]]:
        for one in messages:
            self.worker.assign([Received(one)])
        task = asyncio.create_task(self.worker.run())
        while self.worker.load:
            self.is_finished.clear()
            await asyncio.wait_for(self.is_finished.wait(), 10)
            await asyncio.sleep(0)
        task.cancel()
        return self.done

    def _done(self, received: Sequence[Received], fate: Fate) -> None:
        self.done += [(one.message.id, fate) for one in received]
        self.is_finished.set()

    def handler_for(self, message: Incoming) -> Handler | None:
        return handler_for(message, HANDLERS)

    async def make(self, _: Handler, messages: Sequence[Incoming]) -> Attempted:
        self.attempted.append([one.id for one in messages])
        self.has_begun.set()
        result = self.results.popleft() if self.results else Committed([True] * len(messages))
        if isinstance(result, Exception):
            raise result
        return result

    async def make_each(
        self,
        handler: Handler,
        messages: Sequence[Incoming],
        _: Callable[[], bool],
        committed: Callable[[Sequence[bool]], None],
    ) -> AttemptFailed | NotCalled | None:
        """A series that ends after each message."""
        result = await self.make(handler, messages[:1])
        if not isinstance(result, Committed):
            return result
        committed(result.is_first)
        return None

    def retry_delay(self, code: str, _: Handler) -> float | None:
        return 3.0 if code == "BROKEN" else None

    def report(self, messages: Sequence[Incoming], fate: Fate, *_: object) -> None:
        self.reported += [(one.id, fate) for one in messages]

    def blocks(self, message: Incoming) -> bool:
        return message.key == "blocked"

    async def park(self, message: Incoming, failed: Failed | None) -> tuple[UUID, Failed | None]:
        self.parked.append((message.id, failed))
        return uuid4(), failed


def message(id: str, topic: str = "orders", key: str | None = None, problem: str | None = None) -> Incoming:
    return Incoming(id=id, topic=topic, payload=b"", content_type="text/plain", key=key, problem=problem)


async def test_messages_are_handled_in_their_order() -> None:
    here = Consumption(Committed([True]), Committed([False]))
    assert await here.work(message("1"), message("2")) == [("1", Fate.HANDLED), ("2", Fate.DUPLICATE)]


async def test_what_cannot_be_handled_is_skipped_parked_or_dead_without_an_attempt() -> None:
    here = Consumption()
    done = await here.work(message("1", topic="else"), message("2", key="blocked"), message("3", problem="no JSON"))
    assert done == [("1", Fate.SKIPPED), ("2", Fate.PARKED), ("3", Fate.DEAD)]
    assert (here.attempted, here.reported) == ([], done)
    (_, behind), (_, undecodable) = here.parked
    assert behind is None
    assert undecodable is not None
    assert (undecodable.code, undecodable.delay) == ("UNDECODABLE", None)


async def test_a_failed_message_is_parked_until_its_retry_or_dead() -> None:
    here = Consumption(FAILED, AttemptFailed("FATAL", "no"), NotCalled())
    done = await here.work(message("1"), message("2"), message("3"))
    assert done == [("1", Fate.PARKED), ("2", Fate.DEAD), ("3", Fate.PARKED)]
    assert [failed and failed.delay for _, failed in here.parked] == [3.0, None, None]


async def test_a_batch_that_fails_is_attempted_message_by_message() -> None:
    here = Consumption(FAILED, Committed([True]), FAILED)
    done = await here.work(*(message(n, "bills") for n in "123"), message("4"))
    assert here.attempted == [["1", "2", "3"], ["1"], ["2"], ["3"], ["4"]]
    assert done == [("1", Fate.HANDLED), ("2", Fate.PARKED), ("3", Fate.HANDLED), ("4", Fate.HANDLED)]


async def test_a_batch_ends_before_a_message_that_must_not_go_with_it() -> None:
    here = Consumption()
    await here.work(message("1", "bills"), message("2", "bills", key="blocked"), message("3", "bills"))
    assert (here.attempted, [parked for parked, _ in here.parked]) == ([["1"], ["3"]], ["2"])


async def test_an_outage_is_waited_for() -> None:
    here = Consumption(Outage("away"), Outage("away"))
    assert await here.work(message("1")) == [("1", Fate.HANDLED)]


async def test_what_an_outage_leaves_when_the_consumer_stops_is_undone() -> None:
    here = Consumption(Outage("away"), Outage("away"))
    here.stopping.set()
    assert await here.work(message("1")) == [("1", Fate.UNDONE)]
    here = Consumption(Outage("away"))
    working = asyncio.create_task(here.work(message("1"), message("2")))
    await here.has_begun.wait()
    here.stopping.set()
    assert await working == [("1", Fate.UNDONE), ("2", Fate.UNDONE)]
