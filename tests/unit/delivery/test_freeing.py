"""Topics that take messages again: found, tried and freed, also where there are more of them than one look tells."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from postroom.delivery import freeing
from postroom.delivery.freeing import GLANCE, Freeing
from postroom.delivery.signals import Signals
from postroom.delivery.targets import Targets
from postroom.store.outbox.held_targets import MOST_TARGETS, FreedBatch, HeldTarget

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest


class Waiting:
    """A database with one message for each topic, and the connection to it."""

    def __init__(self, topics: Sequence[str]) -> None:
        self.topics = dict.fromkeys(topics)
        self.tried: list[str] = []
        self.walks = 0

    def targets_of_queue(self) -> list[HeldTarget]:
        return [HeldTarget("default", topic, 1, None, "no queue") for topic in list(self.topics)[:MOST_TARGETS]]

    def free_one_of_each(self, topics: Sequence[str]) -> int:
        self.tried += topics
        return len(topics)

    def free(self, topics: Sequence[str], begin: object) -> FreedBatch:
        del begin
        self.walks += 1
        for topic in topics:
            del self.topics[topic]
        return FreedBatch(len(topics), None)

    async def attempt(self, answer: object) -> object:
        return answer


def test_more_topics_than_a_look_tells_are_freed_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(freeing, "time", SimpleNamespace(monotonic=lambda: clock.now))
    waiting = Waiting([f"t{n}" for n in range(3500)])
    targets = Targets(lambda *_: None, 5.0, lambda: clock.now)
    part = Freeing(cast("Any", waiting), cast("Any", waiting), targets, Signals())

    async def until_all_are_free() -> None:
        while waiting.topics:
            await part.look()
            targets.worked(waiting.tried)  # all take messages again
            waiting.tried.clear()
            await part.free()
            clock.now += GLANCE

    asyncio.run(until_all_are_free())
    assert clock.now - 1000 < 10
    assert waiting.walks < 20
    assert targets.freed == 3500
