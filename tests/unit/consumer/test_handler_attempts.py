"""A series whose time is up: the message at hand has failed, and no other."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from postroom import RetryPolicy
from postroom.consumer.handler_attempts import AttemptFailed, HandlerAttempts, NotCalled
from postroom.consumer.handler_series import Finished
from postroom.consumer.handlers import handler_of
from postroom.incoming import Incoming
from postroom.rules.failures import Classifier
from postroom.telemetry.events import Event, Raised

if TYPE_CHECKING:
    from postroom.consumer.handler_series import HandlerSeries
    from postroom.consumer.runner import HandlerRunner


def bill(message: Incoming) -> None: ...


HANDLER = handler_of(bill, "orders", None, RetryPolicy(), 30)
MESSAGES = [Incoming(id=str(n), topic="orders", payload=b"", content_type="text/plain") for n in range(3)]


class Late:
    """Finishes so many messages, and is then told that its time is up; it may be at the next one."""

    def __init__(self, finished: int, *, at_next: bool) -> None:
        self._finished = finished
        self._at_next = at_next
        self._series: HandlerSeries | None = None
        self.committed: list[bool] = []
        self.accused: list[str] = []

    async def run_each(self, series: HandlerSeries) -> None:
        self._series = series
        for _ in series.each():
            if len(series.finished) == self._finished:
                break
            series.is_first = True
        raise TimeoutError

    def may_go_on(self) -> bool:
        assert self._series is not None
        return self._at_next or len(self._series.finished) < self._finished

    def hook(self, event: Event) -> None:
        """Its thread goes on, and commits, while what it raised is being reported."""
        if isinstance(event, Raised):
            self.accused += [str(one.id) for one in event.messages]
            assert self._series is not None
            self._series.finished.append(Finished(is_first=True, seconds=0.0))

    async def attempted(self) -> AttemptFailed | NotCalled | None:
        attempts = HandlerAttempts("billing", [HANDLER], cast("HandlerRunner", self), Classifier(), self.hook)
        return await attempts.make_each(HANDLER, MESSAGES, self.may_go_on, self.committed.extend)


async def test_what_commits_after_its_time_is_up_counts_as_failed_and_nothing_behind_it_does() -> None:
    late = Late(1, at_next=True)
    assert isinstance(await late.attempted(), AttemptFailed)
    assert (late.accused, late.committed) == (["1"], [True])


async def test_a_message_that_was_not_begun_has_not_failed() -> None:
    for finished in (1, len(MESSAGES)):
        late = Late(finished, at_next=False)
        assert await late.attempted() is None
        assert (late.accused, late.committed) == ([], [True] * finished)


class LateAtTheMark(Late):
    """Has called the handler with the first message, and is late while the second one's mark is held elsewhere."""

    async def run_each(self, series: HandlerSeries) -> None:
        series.start()
        with series.in_function():
            pass
        assert series.following() is not None
        raise TimeoutError

    def may_go_on(self) -> bool:
        return True


async def test_a_message_is_not_to_blame_if_the_mark_behind_it_is_waited_for() -> None:
    """It may be committed: a handler with one attempt would have a dead letter that was handled."""
    late = LateAtTheMark(0, at_next=True)
    assert isinstance(await late.attempted(), NotCalled)
    assert (late.accused, late.committed) == ([], [])
