"""A series: one message after another goes to the same handler, each in a transaction of its own."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Self

from postroom.consumer.handler_transaction import HandlerCall

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from postroom.consumer.handlers import Handler
    from postroom.incoming import Incoming

SECONDS = 0.1
"""In which calls of a series may begin: the last one may take the handler's whole timeout."""
SHARE = 0.1
"""Of the timeout, at most: a call's time may be up so much later."""


class Finished(NamedTuple):
    """What became of one message of a series: its transaction is committed."""

    is_first: bool
    """Whether the handler was called; otherwise it had been handled before."""
    seconds: float


@dataclass(slots=True)
class _Progress:
    """How far a series has come, also if it was repeated."""

    begun: int = 0
    finished: list[Finished] = field(default_factory=list)


class HandlerSeries(HandlerCall):
    """Calls of a handler with one message after another, and how far they have come.

    They share a thread or task, and so its costs. At any time, this is the call with one of the messages; if it fails,
    those behind it are not called. The series also ends if it has taken long, or if it `may_go_on` no more.
    """

    def __init__(
        self,
        handler: Handler,
        messages: Sequence[Incoming],
        may_go_on: Callable[[], bool],
        progress: _Progress | None = None,
    ) -> None:
        super().__init__(handler, messages)
        self._series = messages
        self._ids = self.ids
        """One for each message; `ids` has that of the message at hand."""
        self.is_first = False
        """Whether the message at hand had not been handled before."""
        self.is_reaching = False
        """Whether the message at hand may be committed, and the mark of the one behind it waited for."""
        self._may_go_on = may_go_on
        self._progress = progress or _Progress()
        self.begun = time.monotonic()
        """When the call with the message at hand began."""
        self._seconds = min(SECONDS, SHARE * handler.timeout)
        self._end = self.begun + self._seconds
        self.timeout = handler.timeout + self._seconds

    @property
    def finished(self) -> list[Finished]:
        """One for each message that is done, in their order."""
        return self._progress.finished

    @property
    def is_between(self) -> bool:
        """Whether none is at hand: all that were begun are finished."""
        return self._progress.begun <= len(self.finished)

    def again(self) -> Self:
        """The messages that are not finished once more, after one has failed."""
        call = type(self)(self.handler, self._series, self._may_go_on, self._progress)
        call.may_be_committed = self.has_returned or self.may_be_committed
        return call

    def each(self) -> Iterator[Incoming]:
        """Go on to the next message, and finish those before it, as long as the series may."""
        message = self.start()
        while message is not None:
            yield message
            self.finish()
            message = self._go_on()

    @property
    def following_id(self) -> str:
        """That of the message behind the one at hand, if there is one."""
        return self._ids[self._progress.begun]

    def start(self) -> Incoming | None:
        """Take the first message in hand that is not finished, if there is one."""
        self.begun = time.monotonic()
        self._end = self.begun + self._seconds
        self._progress.begun = len(self.finished)
        return self._go_on()

    def following(self) -> Incoming | None:
        """The message behind the one at hand; None if there is none, or the series ends there.

        From now on, it is one of the subjects: its mark may be waited for even before the one at hand is finished.
        """
        number = self._progress.begun
        if number == len(self._series):
            return None
        if number and (self.is_late or time.monotonic() > self._end or not self._may_go_on()):
            return None
        self.subjects |= {self._ids[number]}
        self.is_reaching = True
        return self._series[number]

    def finish(self, following: Incoming | None = None, *, is_first: bool = False) -> None:
        """The transaction of the message at hand is committed, and that of the following one begun, if one is given."""
        now = time.monotonic()
        self.finished.append(Finished(self.is_first, now - self.begun))
        self.begun = now
        if following is not None:
            self._begin(following)
            self.is_first = is_first

    def _go_on(self) -> Incoming | None:
        following = self.following()
        if following is not None:
            self._begin(following)
        return following

    def _begin(self, message: Incoming) -> None:
        """Take the following message in hand."""
        number = self._progress.begun
        self.messages, self.ids = (message,), [self._ids[number]]
        self.subjects = frozenset(self.ids)
        self.is_in_function = self.has_returned = self.is_first = self.is_reaching = False
        self._progress.begun = number + 1
