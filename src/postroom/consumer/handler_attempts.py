"""One attempt to handle messages: the same for what was just received and for what was parked."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from postroom.consumer.handler_series import HandlerSeries
from postroom.consumer.handler_transaction import HandlerCall
from postroom.consumer.handlers import handler_for
from postroom.consumer.outcomes import Fate
from postroom.consumer.settlement import LeaseNotHeld, NotSettledHere
from postroom.errors import RegistryUnavailable
from postroom.rules import failures
from postroom.rules.failures import Reason
from postroom.runtime.calls import CallFailed, StillRunning
from postroom.store.connections.reconnecting import Outage
from postroom.store.sql.db_errors import reason
from postroom.telemetry.events import Handled, Raised
from postroom.telemetry.tracebacks import raised_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from uuid import UUID

    from postroom.consumer.handlers import Handler
    from postroom.consumer.runner import HandlerRunner
    from postroom.consumer.settlement import DeliverySettlement
    from postroom.incoming import Incoming
    from postroom.rules.failures import Classifier
    from postroom.telemetry.events import Hook

REGISTRY_DELAY = 5.0
"""Seconds until a message is tried again that needs a schema registry which is away; up to twice as many."""
SAY_AWAY_EVERY = 60.0
"""Seconds between two reports that a schema registry is away."""
REPORT_EVERY = 0.02
"""Seconds between two reports of what is finished of a series."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The handler's transaction is committed."""

    is_first: Sequence[bool]
    """Of each message, whether the handler was called with it; otherwise it had been handled before."""


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """The handler failed, and its transaction was rolled back."""

    code: str
    text: str
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class NotCalled:
    """An earlier call of the handler with one of the messages has not ended, or nobody knows whether it failed."""


Attempted = Committed | AttemptFailed | NotCalled


class HandlerAttempts:
    """Calls a consumer's handlers, and reports what they raised and what became of messages."""

    def __init__(
        self, consumer: str, handlers: Sequence[Handler], runner: HandlerRunner, classifier: Classifier, hook: Hook
    ) -> None:
        self._consumer = consumer
        self._handlers = handlers
        self._runner = runner
        self._classifier = classifier
        self._hook = hook
        self._said_away = float("-inf")
        """When it was last said that a schema registry is away."""

    def handler_for(self, message: Incoming) -> Handler | None:
        """The handler of the message, if there is one."""
        return handler_for(message, self._handlers)

    async def make(
        self, handler: Handler, messages: Sequence[Incoming], settlement: DeliverySettlement | None = None
    ) -> Attempted:
        """Run the handler once, in one transaction for all messages, and settle in there what was parked.

        Raises `Outage`, and with a settlement `LeaseNotHeld` and `NotSettledHere`: then nothing was attempted.
        """
        started = time.monotonic()
        try:
            await handler.fetch(messages)
            is_first = await self._runner.run(HandlerCall(handler, messages, settlement))
        except (Outage, LeaseNotHeld, NotSettledHere):
            raise
        except StillRunning:
            return NotCalled()
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is a failed attempt
            self._report_raised(handler, messages, error)
            seconds = time.monotonic() - started
            return AttemptFailed(*failure_of(error, handler, self._classifier), seconds)
        seconds = time.monotonic() - started
        self.report([one for one, new in zip(messages, is_first, strict=True) if new], Fate.HANDLED, seconds)
        self.report([one for one, new in zip(messages, is_first, strict=True) if not new], Fate.DUPLICATE)
        return Committed(is_first)

    async def make_each(
        self,
        handler: Handler,
        messages: Sequence[Incoming],
        may_go_on: Callable[[], bool],
        committed: Callable[[Sequence[bool]], None],
    ) -> AttemptFailed | NotCalled | None:
        """Run the handler with one message after another, each in a transaction of its own.

        `committed` receives, soon, of each whose transaction is, whether the handler was called with it. Returns why
        the next message was not handled; None if all were, or it `may_go_on` no more, or it has taken a while. Raises
        `Outage`: then nothing was attempted with the next message.
        """
        series = HandlerSeries(handler, messages, may_go_on)
        with self._reporting(series, messages, committed) as last_report:
            try:
                await handler.fetch(messages)
                await self._runner.run_each(series)
            except Outage:
                raise
            except StillRunning:
                return NotCalled()
            except Exception as error:
                finished = last_report()
                if finished and series.is_between and isinstance(error, TimeoutError):
                    return None  # its time was up just when a message was finished: the next is not at fault
                if series.is_reaching and isinstance(error, TimeoutError):
                    return NotCalled()  # most likely it is the next one's mark that took so long, with this committed
                if finished == len(messages):
                    raise
                self._report_raised(handler, [messages[finished]], error)
                seconds = time.monotonic() - series.begun
                return AttemptFailed(*failure_of(error, handler, self._classifier), seconds)
        return None

    @contextmanager
    def _reporting(
        self, series: HandlerSeries, messages: Sequence[Incoming], committed: Callable[[Sequence[bool]], None]
    ) -> Iterator[Callable[[], int]]:
        """Report what is finished, every now and then: what comes behind it may take long.

        The function reports for the last time, and returns how many are finished. A call that is late may finish its
        message even after that; then it counts as failed, and when it is retried, its mark is found.
        """
        loop, reported, timer, is_over = asyncio.get_running_loop(), 0, None, False

        def report() -> None:
            nonlocal reported
            done = series.finished[reported:]
            for one, (is_first, seconds) in zip(messages[reported:], done, strict=False):
                self.report([one], Fate.HANDLED if is_first else Fate.DUPLICATE, seconds if is_first else 0.0)
            reported += len(done)
            if done:
                committed([one.is_first for one in done])

        def report_again() -> None:
            nonlocal timer
            report()
            timer = loop.call_later(REPORT_EVERY, report_again)

        def last_report() -> int:
            nonlocal is_over
            if not is_over:
                is_over = True
                if timer is not None:
                    timer.cancel()
                report()
            return reported

        if len(messages) > 1:
            timer = loop.call_later(REPORT_EVERY, report_again)
        try:
            yield last_report
        finally:
            last_report()

    def _report_raised(self, handler: Handler, messages: Sequence[Incoming], error: Exception) -> None:
        """Tell the hook; that a schema registry is away, which concerns any number of messages, only now and then."""
        if isinstance(error, RegistryUnavailable):
            now = time.monotonic()
            if now < self._said_away + SAY_AWAY_EVERY:
                return
            self._said_away = now
        self._hook(Raised(handler.name, messages, error, self._consumer))

    def retry_delay(self, code: str, handler: Handler) -> float | None:
        """Seconds until a message is retried whose first attempt failed with this code; None if it is dead."""
        if code == Reason.REGISTRY_UNAVAILABLE:
            return self.registry_delay()
        return retry_delay(1, code, handler, self._classifier, random.random())  # noqa: S311 - jitter

    def registry_delay(self) -> float:
        """Seconds until a message is tried again that needs a schema registry which is away: no attempt counts."""
        return REGISTRY_DELAY * (1 + random.random())  # noqa: S311 - jitter

    def report(
        self,
        messages: Sequence[Incoming],
        fate: Fate,
        seconds: float = 0.0,
        code: str = "",
        outbox_ids: Sequence[UUID] = (),
    ) -> None:
        """Tell the hook what became of messages, if there are any."""
        if messages:
            self._hook(Handled(self._consumer, fate.value, messages, code, seconds, outbox_ids=outbox_ids))


def failure_of(error: Exception, handler: Handler, classifier: Classifier) -> tuple[str, str]:
    """The reason code of what a handler raised, and the text for its dead letter: the error and where it was raised."""
    return failures.reason_code(error, classifier), failures.with_place(_text(error, handler), raised_at(error))


def retry_delay(attempts: int, code: str, handler: Handler, classifier: Classifier, random: float) -> float | None:
    """Seconds until a message is retried that has failed so many times, last with this code; None if it is dead."""
    match failures.after_failure(attempts, handler.policy, failures.classify(code, classifier), random):
        case failures.RetryAfter(delay):
            return delay
        case failures.GiveUp():
            return None


def _text(error: Exception, handler: Handler) -> str:
    """What an error says, after its class: many, such as KeyError, say little without it."""
    if isinstance(error, CallFailed):
        return str(error)
    if isinstance(error, TimeoutError) and not str(error):
        return f"the handler did not end within {handler.timeout:g} s"
    # SQLAlchemy's own texts quote a statement's parameters, which are the user's data.
    text = reason(error) if getattr(error, "orig", None) else str(error)
    return f"{type(error).__name__}: {text}".removesuffix(": ")
