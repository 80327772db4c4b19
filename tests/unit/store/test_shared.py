"""A connection that several queues share: a queue whose statements wait for locks steps aside."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import pytest

from postroom.store.connections.reconnecting import ConnectionReplaced, Outage, StatementTimedOut
from postroom.store.connections.shared import ASIDE, Aside, SharedConnection, SteppedAside

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.store.sql.steps import Steps

T = TypeVar("T")


def nothing() -> Steps[None]:
    yield from ()


class Line:
    """A connection that notes what it is asked, and fails if it is told to."""

    def __init__(self) -> None:
        self.connections = 1
        self.asked: list[int | None] = []
        self.failure: Exception | None = None

    async def attempt(self, steps: Steps[T], on: int | None = None) -> T:
        self.asked.append(on)
        if self.failure is not None:
            self.connections += 1
            raise self.failure
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        pytest.fail("nothing was to be done")

    async def run(self, operation: Callable[[], Steps[T]]) -> T:
        return await self.attempt(operation())

    async def answers(self) -> bool:
        return self.failure is None


class Shared:
    def __init__(self) -> None:
        self.now = 0.0
        self.shared, self.spare = Line(), Line()
        self.connection = SharedConnection(self.shared, self.spare, Aside(lambda: self.now))
        self.other_queue = SharedConnection(self.shared, self.spare, Aside(lambda: self.now))

    async def time_out(self) -> None:
        self.shared.failure = StatementTimedOut("it waits for a lock")
        with pytest.raises(SteppedAside):
            await self.connection.attempt(nothing())
        self.shared.failure = None


@pytest.fixture
def queue() -> Shared:
    return Shared()


async def test_a_queue_uses_the_shared_connection(queue: Shared) -> None:
    await queue.connection.attempt(nothing(), queue.connection.connections)
    assert (queue.shared.asked, queue.spare.asked) == ([1], [])


async def test_a_queue_that_waited_for_a_lock_steps_aside_and_no_other_does(queue: Shared) -> None:
    await queue.time_out()
    await queue.connection.attempt(nothing())
    await queue.connection.run(nothing)
    await queue.other_queue.attempt(nothing())
    assert (queue.shared.asked, queue.spare.asked) == ([None, None], [None, None])


async def test_it_comes_back_when_nothing_has_taken_long_for_a_while(queue: Shared) -> None:
    await queue.time_out()
    queue.now = ASIDE - 1
    queue.spare.failure = StatementTimedOut("it still waits")
    with pytest.raises(StatementTimedOut) as raised:
        await queue.connection.attempt(nothing())
    assert not isinstance(raised.value, SteppedAside)
    queue.now = ASIDE
    assert not await queue.connection.answers()
    queue.now = 2 * ASIDE - 1
    assert await queue.connection.answers()
    await queue.connection.attempt(nothing())
    assert len(queue.spare.asked) == 1


async def test_another_outage_moves_nothing(queue: Shared) -> None:
    queue.shared.failure = Outage("the server is gone")
    for _ in range(2):
        with pytest.raises(Outage):
            await queue.connection.attempt(nothing())
    assert queue.spare.asked == []


async def test_what_is_true_on_one_connection_only_is_not_asked_on_the_other(queue: Shared) -> None:
    before = queue.connection.connections
    await queue.time_out()
    aside = queue.connection.connections
    assert aside not in {before, queue.shared.connections}
    with pytest.raises(ConnectionReplaced):
        await queue.connection.attempt(nothing(), before)
    await queue.connection.attempt(nothing(), aside)
    assert queue.spare.asked == [1]
    queue.now = ASIDE
    with pytest.raises(ConnectionReplaced):
        await queue.connection.attempt(nothing(), aside)


async def test_all_connections_of_a_queue_step_aside_together_for_as_long_as_one_waits(queue: Shared) -> None:
    aside = Aside(lambda: queue.now)
    settlements = SharedConnection(queue.shared, queue.spare, aside)
    reads = SharedConnection(Line(), queue.spare, aside)
    queue.shared.failure = StatementTimedOut("it waits for a lock")
    with pytest.raises(SteppedAside):
        await settlements.attempt(nothing())
    assert reads.connections == -queue.spare.connections
    with aside.waiting():
        queue.now = 3 * ASIDE
        assert reads.connections < 0
    assert reads.connections > 0
