"""Taskiq: tasks that `Outbox.task` has recorded are kicked through a Taskiq broker."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from postroom.brokers.connecting import CLOSE_TIMEOUT, check_time_left
from postroom.brokers.port import NOT_SENT, Accepted, Capabilities, Outcome, Refused, Unreached
from postroom.brokers.refusals import invalid_target, timed_out
from postroom.brokers.urls import client_missing
from postroom.errors import BrokerUnavailable, InvalidSetting, PayloadNotDecodable
from postroom.rules.failures import Failure, Reason
from postroom.tasks.calls import stored_options

try:
    from taskiq import AsyncBroker
    from taskiq.kicker import AsyncKicker

    from postroom.tasks.taskiq import LABELS, LIBRARY, TASK_ID
except ImportError as error:
    raise client_missing("taskiq", "taskiq", error) from error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.message import Message

_UNREACHED = frozenset({"ConnectionError", "AMQPConnectionError", "TimeoutError", "NoServersError"})
"""Names of the clients' errors, and of their bases, that say that the server is not there."""


class TaskiqBroker:
    """Kicks tasks through a Taskiq broker, and so with its middlewares and its formatter.

    The task's id is that of its message, so that a task that is sent twice has the same id both times. The broker is
    started here, and `close` shuts it down. Other messages become dead letters.
    """

    capabilities = Capabilities(ordered=True)

    def __init__(self, broker: AsyncBroker) -> None:
        if not isinstance(broker, AsyncBroker):
            raise InvalidSetting(f"TaskiqBroker takes a Taskiq broker, not a {type(broker).__name__}")
        self.name = f"taskiq:{type(broker).__name__}"
        self._broker = broker
        self._is_started = False
        self._starting = asyncio.Lock()

    async def publish(self, messages: Sequence[Message], timeout: float) -> Sequence[Outcome]:  # noqa: ASYNC109 - the port's
        """Kick the tasks one after another, as many as there is time for. Raises `BrokerUnavailable`."""
        deadline = asyncio.get_running_loop().time() + timeout
        await self._start(deadline, timeout)
        outcomes: list[Outcome] = []
        for message in messages:
            if asyncio.get_running_loop().time() >= deadline:
                break
            outcomes.append(await self._kick(message, deadline, timeout))
            if isinstance(outcomes[-1], Unreached):
                return outcomes + [outcomes[-1]] * (len(messages) - len(outcomes))
        return outcomes + [NOT_SENT] * (len(messages) - len(outcomes))

    async def close(self) -> None:
        """Shut down the broker."""
        if self._is_started:
            self._is_started = False
            with suppress(Exception):  # nobody needs it any more
                async with asyncio.timeout(CLOSE_TIMEOUT):
                    await self._broker.shutdown()

    async def _start(self, deadline: float, timeout: float) -> None:  # noqa: ASYNC109 - for the error
        if self._is_started:
            return
        try:
            async with asyncio.timeout_at(deadline), self._starting:
                if not self._is_started:
                    await self._broker.startup()
                    self._is_started = True
        except Exception as error:
            reason = f"no connection within {timeout:g} s" if isinstance(error, TimeoutError) else _why(error)
            raise BrokerUnavailable(f"{self.name}: {reason}") from error
        check_time_left(self.name, deadline, timeout)

    async def _kick(self, message: Message, deadline: float, timeout: float) -> Outcome:  # noqa: ASYNC109 - as above
        options = stored_options(message, LIBRARY)
        if options is None or message.type is None:
            return invalid_target(message.topic, "is not a task's: record tasks with outbox.task(…)")
        task_id = options.get(TASK_ID) or str(message.id)
        try:
            arguments: Any = message.json()
            kicker: Any = AsyncKicker(message.type, self._broker, options[LABELS]).with_task_id(task_id)
            args, kwargs = arguments["args"], arguments["kwargs"]
        except (PayloadNotDecodable, AttributeError, KeyError, TypeError) as error:
            return Refused(Reason.UNDECODABLE_PAYLOAD, type(error).__name__, Failure.PERMANENT)
        try:
            async with asyncio.timeout_at(deadline):
                await kicker.kiq(*args, **kwargs)
        except TimeoutError:
            return timed_out(timeout)
        except Exception as error:  # noqa: BLE001 - of the client, or of a middleware
            return _outcome(error.__cause__ or error)
        return Accepted(task_id)


def _outcome(error: BaseException) -> Outcome:
    names = {kind.__name__ for kind in type(error).__mro__}
    if isinstance(error, OSError) or names & _UNREACHED:
        return Unreached(_why(error))
    return Refused(Reason.INTERNAL_ERROR, f"{type(error).__name__}: {error}".removesuffix(": "))


def _why(error: BaseException) -> str:
    return str(error) or type(error).__name__
