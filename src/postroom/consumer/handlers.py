"""Handlers: the user's functions, which messages each is for, and how it is retried."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from postroom.errors import InvalidSetting
from postroom.rules.routing import matches
from postroom.runtime.functions import is_async

if TYPE_CHECKING:
    from postroom.incoming import Incoming
    from postroom.rules.backoff import RetryPolicy

Function = Callable[..., Any]

PARAMETERS = "(connection, message), (connection, messages), (message) or (messages)"


@dataclass(frozen=True, slots=True, eq=False)
class Handler:
    """One function, for the messages of a topic or of all topics that fit a pattern."""

    function: Function
    topic: str
    type: str | None
    policy: RetryPolicy
    timeout: float
    takes_connection: bool
    takes_batch: bool
    is_async: bool

    @property
    def name(self) -> str:
        """The function's name."""
        return getattr(self.function, "__qualname__", repr(self.function))

    def fits(self, message: Incoming) -> bool:
        """Whether the message is for this handler."""
        return (self.type is None or self.type == message.type) and matches(self.topic, message.topic)

    def call(self, connection: object, messages: Sequence[Incoming]) -> Any:
        """Call the function with one message, or, if it takes a batch, with all."""
        argument = list(messages) if self.takes_batch else messages[0]
        return self.function(connection, argument) if self.takes_connection else self.function(argument)


def handler_for(message: Incoming, handlers: Sequence[Handler]) -> Handler | None:
    """The handler of the message: the first that it fits."""
    return next((handler for handler in handlers if handler.fits(message)), None)


def handler_of(function: Function, topic: str, type: str | None, policy: RetryPolicy, timeout: float) -> Handler:
    """Make a function a handler. Raises `InvalidSetting` if it cannot be called as one."""
    name = getattr(function, "__qualname__", repr(function))
    if not callable(function):
        raise InvalidSetting(f"{name} is not a function: a handler takes {PARAMETERS}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidSetting(f"{name} is a generator: a call would not run it; use no yield")
    if not 0 < timeout < float("inf"):
        raise InvalidSetting(f"the timeout of {name} is {timeout!r}: give seconds above 0")
    parameters = _parameters(function, name)
    return Handler(
        function=function,
        topic=topic,
        type=type,
        policy=policy,
        timeout=timeout,
        takes_connection=len(parameters) > 1,
        takes_batch=parameters[-1] == "messages",
        is_async=is_async(function),
    )


def _parameters(function: Function, name: str) -> list[str]:
    """The names of the parameters that must be given: two, or one."""
    signature = inspect.signature(function)
    needed = [
        one.name
        for one in signature.parameters.values()
        if one.default is one.empty and one.kind in {one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD}
    ]
    by_name = [
        one.name for one in signature.parameters.values() if one.default is one.empty and one.kind is one.KEYWORD_ONLY
    ]
    if len(needed) not in {1, 2} or by_name:
        raise InvalidSetting(f"{name}{signature} cannot be a handler: it must take {PARAMETERS}")
    return needed
