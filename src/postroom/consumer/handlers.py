"""Handlers: the user's functions, which messages each is for, and how it is retried."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

from postroom.errors import InvalidSetting
from postroom.events import declared_event, read, serializer_of
from postroom.rules.routing import matches
from postroom.rules.wire_format import is_json
from postroom.runtime.functions import is_async

if TYPE_CHECKING:
    from postroom.incoming import Incoming
    from postroom.rules.backoff import RetryPolicy
    from postroom.serializing import Serializer

Function = Callable[..., Any]
T = TypeVar("T")
Class: TypeAlias = type[T]
"""A class, where `type` is the name of a field."""

PARAMETERS = (
    "(connection, message), (connection, messages), (message) or (messages); or (connection, event: Event), or "
    "(connection, events: list[Event]), with a class that is decorated with @event"
)


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
    event: Class[Any] | None = None
    """What it takes in place of messages."""
    takes_message: bool = True
    """Whether it takes the messages, beside the events or without them."""
    serializer: Serializer | None = None
    """What decodes its events; None for JSON."""

    @property
    def name(self) -> str:
        """The function's name."""
        return getattr(self.function, "__qualname__", repr(self.function))

    def fits(self, message: Incoming) -> bool:
        """Whether the message is for this handler.

        Producers with a schema registry that are not Postroom's name no type: their schema is what tells.
        """
        is_its_type = self.type is None or self.type == message.type
        untyped = message.type is None and self.serializer is not None and not is_json(message.content_type)
        return (is_its_type or untyped) and matches(self.topic, message.topic)

    async def fetch(self, messages: Sequence[Incoming]) -> None:
        """Get what decoding the messages needs of the network: outside of transactions, and of the event loop."""
        serializer = self.serializer
        if serializer is None:
            return
        lacking = [one.payload for one in messages if not is_json(one.content_type) and serializer.lacks(one.payload)]
        if lacking:
            await asyncio.to_thread(serializer.fetch, lacking)

    def call(self, connection: object, messages: Sequence[Incoming]) -> Any:
        """Call the function with one message, or, if it takes a batch, with all. Raises `PayloadNotDecodable`."""
        given: list[Any] = [connection] if self.takes_connection else []
        if self.event is not None:
            events = [read(message, self.event, self.serializer) for message in messages]
            given.append(events if self.takes_batch else events[0])
        if self.takes_message:
            given.append(list(messages) if self.takes_batch else messages[0])
        return self.function(*given)


def handler_for(message: Incoming, handlers: Sequence[Handler]) -> Handler | None:
    """The handler of the message: the first that it fits."""
    return next((handler for handler in handlers if handler.fits(message)), None)


def handler_of(
    function: Function,
    topic: str | None,
    type: str | None,
    policy: RetryPolicy,
    timeout: float,
    serializer: Serializer | None = None,
) -> Handler:
    """Make a function a handler; topic and type are those of its event, if they are None.

    Raises `InvalidSetting` if it cannot be called as one.
    """
    name = getattr(function, "__qualname__", repr(function))
    if not callable(function):
        raise InvalidSetting(f"{name} is not a function: a handler takes {PARAMETERS}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidSetting(f"{name} is a generator: a call would not run it; use no yield")
    if not 0 < timeout < float("inf"):
        raise InvalidSetting(f"the timeout of {name} is {timeout!r}: give seconds above 0")
    takes = _takes(function, name)
    declared = declared_event(takes.event)
    if topic is None and declared is None:
        raise InvalidSetting(
            f"no topic is given for {name}: write @consumer.handler(topic), or annotate a parameter with a class that "
            "is decorated with @event(topic)"
        )
    return Handler(
        function=function,
        topic=topic or (declared.topic if declared else ""),
        type=type or (declared.type if declared else None),
        policy=policy,
        timeout=timeout,
        takes_connection=takes.connection,
        takes_batch=takes.batch,
        is_async=is_async(function),
        event=takes.event,
        takes_message=takes.message,
        serializer=None if declared is None else serializer_of(takes.event, serializer),
    )


class _Takes(NamedTuple):
    """What a function takes, in this order."""

    connection: bool
    event: Class[Any] | None
    message: bool
    batch: bool


def _takes(function: Function, name: str) -> _Takes:
    """What a function takes, by the names of the parameters that must be given, and by their annotations."""
    signature = inspect.signature(function)
    needed = [
        one
        for one in signature.parameters.values()
        if one.default is one.empty and one.kind in {one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD}
    ]
    by_name = [
        one for one in signature.parameters.values() if one.default is one.empty and one.kind is one.KEYWORD_ONLY
    ]
    hints = _hints(function)
    events = [_event_in(hints.get(one.name, one.annotation)) for one in needed]
    refusal = InvalidSetting(f"{name}{signature} cannot be a handler: it must take {PARAMETERS}")
    if by_name:
        raise refusal
    found = [(place, event, batch) for place, (event, batch) in enumerate(events) if event is not None]
    if not found:
        if len(needed) not in {1, 2}:
            raise refusal
        return _Takes(len(needed) > 1, None, message=True, batch=needed[-1].name == "messages")
    [(place, event, batch), *others] = found
    behind = [one.name for one in needed[place + 1 :]]
    if others or place > 1 or behind not in ([], ["messages" if batch else "message"]):
        raise refusal
    return _Takes(place == 1, event, bool(behind), batch)


def _hints(function: Function) -> Mapping[str, Any]:
    """The annotations of a function; none if they cannot be resolved, as where a class is imported for types alone."""
    plain = function.func if isinstance(function, partial) else function
    plain = plain if inspect.isroutine(plain) else getattr(plain, "__call__", plain)  # noqa: B004 - of an object
    try:
        return get_type_hints(plain)
    except (NameError, TypeError):
        return {}


def _event_in(annotation: Any) -> tuple[Class[Any] | None, bool]:
    """The event class of an annotation, and whether it is for several."""
    if declared_event(annotation) is not None:
        return annotation, False
    if get_origin(annotation) in {list, Sequence} and declared_event(*get_args(annotation)) is not None:
        return get_args(annotation)[0], True
    return None, False
