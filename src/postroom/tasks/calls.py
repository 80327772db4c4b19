"""A call of a task: what the outbox stores of it, and what a relay reads back."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

from postroom.errors import InvalidMessage

if TYPE_CHECKING:
    from datetime import datetime

    from postroom.message import Message

OPTIONS = "task-options"
"""The header with a call's options, as JSON. It is no part of what tells messages apart, as the payload is."""
_LIBRARIES = {name: f"postroom.tasks.{name}" for name in ("celery", "dramatiq", "taskiq")}
_WHAT = "a Celery task or signature, a Dramatiq actor or a Taskiq task"

Mask = Callable[[str, Any], Any]


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a task is called with."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def masked(self, mask: Mask | None, topic: str) -> Arguments:
        """What the outbox's mask leaves of them. It gets and returns ``{"args": […], "kwargs": {…}}``."""
        if mask is None:
            return self
        left = mask(topic, {"args": [*self.args], "kwargs": self.kwargs})
        if not isinstance(left, Mapping) or not {"args", "kwargs"} <= left.keys():
            raise InvalidMessage(
                f"mask returned a {type(left).__name__} for the task {topic!r}: return what it was given, a dict with "
                "the keys args and kwargs"
            )
        return arguments(left["args"], left["kwargs"], topic)


@dataclass(frozen=True, slots=True)
class TaskCall:
    """One call of a task, ready to be stored."""

    library: str
    name: str
    """The task's name, by which workers find it."""
    payload: bytes
    """Its arguments, as the library's own serializer writes them."""
    content_type: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of JSON values only."""
    deliver_at: datetime | None = None

    @property
    def topic(self) -> str:
        """Where it goes: brokers are chosen by topic, as in ``celery.*``."""
        return topic_of(self.library, self.name)


class TaskLibrary(Protocol):
    """A module of this package."""

    def call_of(
        self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any], options: dict[str, Any], mask: Mask | None
    ) -> TaskCall:
        """The call of a task of this library. Raises `InvalidMessage`."""
        ...


def call_of(task: object, args: object, kwargs: object, options: dict[str, Any], mask: Mask | None = None) -> TaskCall:
    """The call of a task of any library. Raises `InvalidMessage` or `DriverMissing`."""
    packages = {kind.__module__.partition(".")[0] for kind in type(task).__mro__}
    library = next((name for name in _LIBRARIES if name in packages), None)
    if library is None:
        raise InvalidMessage(f"task is {_kind(task)}: give {_WHAT}, as its decorator returns it")
    module = cast("TaskLibrary", importlib.import_module(_LIBRARIES[library]))
    given = arguments(args, kwargs, library)
    return module.call_of(task, given.args, given.kwargs, options, mask)


def topic_of(library: str, name: str) -> str:
    """The topic of a task's messages."""
    return f"{library}.{name}"


def arguments(args: object, kwargs: object, name: str) -> Arguments:
    """Check what a task is called with. Raises `InvalidMessage`."""
    if isinstance(args, str | bytes | Mapping) or not isinstance(args, Sequence):
        raise InvalidMessage(f"the args of {name} are {_kind(args)}: give a list or tuple, as in [7]")
    given = {} if kwargs is None else kwargs
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise InvalidMessage(f"the kwargs of {name} are {_kind(kwargs)}: give a dict with names as keys")
    return Arguments(tuple(args), dict(given))


def options_text(options: Mapping[str, Any], name: str) -> str:
    """The options as JSON. Raises `InvalidMessage`, which names the one that has no such form."""
    for option, value in options.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            raise InvalidMessage(
                f"option {option!r} of the task {name!r} is {_kind(value)}, which cannot be stored: give text, numbers "
                "or a list or dict of them"
            ) from None
    return json.dumps(options, sort_keys=True)


def stored_options(message: Message, library: str) -> dict[str, Any] | None:
    """The options of a message that `Outbox.task` has made for this library; None if it is another message."""
    if message.type is None or message.topic != topic_of(library, message.type):
        return None
    try:
        options = json.loads(message.headers[OPTIONS])
    except (KeyError, ValueError, RecursionError):
        return None
    return options if isinstance(options, dict) else None


def _kind(value: object) -> str:
    kind = type(value).__name__
    return f"{'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}"
