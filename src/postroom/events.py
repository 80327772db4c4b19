"""Events: classes that say what the messages of a topic hold, version by version.

::

    @event("orders.created", key="order_id", version=2)
    @dataclass
    class OrderCreated:
        order_id: int
        cents: int

    @upcaster(OrderCreated, since=1)
    def in_cents(data):
        return {"order_id": data["order_id"], "cents": round(data["price"] * 100)}

    outbox.publish(session, OrderCreated(7, 1990))
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from postroom.decoding import decode
from postroom.encoding import encode_json
from postroom.errors import InvalidMessage, InvalidSetting, PayloadNotDecodable, PayloadNotEncodable, UnknownVersion
from postroom.rules.wire_format import is_json
from postroom.serializing import Serializer

if TYPE_CHECKING:
    from postroom.incoming import Incoming

T = TypeVar("T")
Class: TypeAlias = type[T]
Upcaster: TypeAlias = Callable[[Any], Any]
F = TypeVar("F", bound=Upcaster)

VERSION = "event-version"
"""The header that says which version of its class a message holds. Without it, a message holds version 1."""
_DECLARED = "__postroom_event__"
_CLASSES: list[Class[Any]] = []
_NUMBER = re.compile("[1-9][0-9]{0,8}")


@dataclass(frozen=True, slots=True)
class Event:
    """What `event` declares of a class."""

    topic: str
    type: str
    version: int
    key: str | Callable[[Any], Any] | None = None
    upcasters: dict[int, Upcaster] = field(default_factory=dict)
    """By the version that each begins with."""
    serializer: Serializer | None = None

    def key_of(self, value: object) -> Any:
        """The key of a message that holds this value."""
        if self.key is None:
            return None
        return self.key(value) if callable(self.key) else getattr(value, self.key)


def event(
    topic: str,
    *,
    key: str | Callable[[Any], Any] | None = None,
    type: str | None = None,
    version: int = 1,
    serializer: Serializer | None = None,
) -> Callable[[Class[T]], Class[T]]:
    """Declare that messages of this topic hold objects of the class: a dataclass, msgspec Struct or pydantic model.

    ``key`` is the name of the attribute by which messages keep their order, or a function of the object. ``type`` is
    the type of the messages; the default is the class's name. Raise ``version`` with every change that older code
    cannot read, and add an `upcaster` for messages that are still on their way. ``serializer`` encodes the payloads, as
    `postroom.formats.AvroSerializer` does; the default is that of the outbox or consumer, and JSON if it has none.
    Raises `InvalidSetting`.
    """
    if not _is_text(topic):
        raise InvalidSetting(f"the event's topic is {topic!r}: write @event(topic) with a text such as orders.created")
    if not _is_version(version):
        raise InvalidSetting(f"the version of the event of {topic!r} is {version!r}: give 1 or a higher number")

    check_serializer(serializer)

    def declare(kind: Class[T]) -> Class[T]:
        if not inspect.isclass(kind):
            raise InvalidSetting(f"@event({topic!r}) is for classes, and {kind!r} is none")
        if isinstance(key, str) and not _has(kind, key):
            raise InvalidSetting(f"the key of {kind.__name__} is {key!r}, and it has no such attribute")
        setattr(kind, _DECLARED, Event(topic, type or kind.__name__, version, key, serializer=serializer))
        _CLASSES.append(kind)
        return kind

    return declare


def upcaster(kind: Class[Any], *, since: int) -> Callable[[F], F]:
    """Make a function the way from version ``since`` of an event to the next one.

    It takes the decoded JSON of a message of that version, and returns what a message of the next one would hold. Older
    messages go through one after another. Raises `InvalidSetting`.
    """
    declared = declared_event(kind)
    if declared is None:
        raise InvalidSetting(f"{_named(kind)} is no event: decorate it with @event(topic)")
    if not _is_version(since) or since >= declared.version:
        raise InvalidSetting(
            f"an upcaster of {_named(kind)} begins with version {since!r}: the event is at version {declared.version}, "
            "so that it must be a lower one"
        )
    if since in declared.upcasters:
        raise InvalidSetting(f"{_named(kind)} has an upcaster from version {since} already")

    def register(function: F) -> F:
        declared.upcasters[since] = function
        return function

    return register


def declared_event(kind: object) -> Event | None:
    """What `event` declared of this class; None if it did not, even if the class inherits from one."""
    found = vars(kind).get(_DECLARED) if inspect.isclass(kind) else None
    return found if isinstance(found, Event) else None


def declared_classes() -> list[Class[Any]]:
    """All classes that were declared so far, in the modules that were imported."""
    return list(_CLASSES)


def event_of(value: object) -> Event:
    """What the object's class declares. Raises `InvalidMessage`."""
    declared = declared_event(value.__class__)
    if declared is None:
        hint = ", not the class itself" if declared_event(value) else ": decorate its class with @event(topic)"
        raise InvalidMessage(f"publish takes objects of event classes, and {_named(value)} is none{hint}")
    return declared


def read(message: Incoming, kind: Class[T], serializer: Serializer | None = None) -> T:
    """The event that a message holds, brought to the version of its class.

    ``serializer`` is for events that declare none. Raises `PayloadNotDecodable` if the payload does not fit,
    `UnknownVersion` if there is no way from its version, and what the serializer raises.
    """
    declared = declared_event(kind)
    version = _version_of(message)
    chosen = serializer_of(kind, serializer)
    its = None if is_json(message.content_type) else chosen
    if declared is None or version == declared.version:
        found: T
        if its is not None:
            found = its.decode(message.payload, kind)
        else:
            found = message.decode(kind) if chosen is None else chosen.decode_json(message.payload, kind)
        return found
    if version > declared.version:
        raise UnknownVersion(
            f"the message holds version {version} of {kind.__name__}, and this program knows versions up to "
            f"{declared.version}: upgrade it, then requeue the message"
        )
    data = message.json() if its is None else its.decode_plain(message.payload, kind)
    for step in range(version, declared.version):
        data = _upcast(declared, kind, step, data)
    upcasted: T = _json_of(data, kind) if chosen is None else chosen.from_plain(data, kind)
    return upcasted


def serializer_of(kind: object, default: Serializer | None = None) -> Serializer | None:
    """The serializer that a class declares, or the default; None for JSON."""
    declared = declared_event(kind)
    return default if declared is None or declared.serializer is None else declared.serializer


def check_serializer(serializer: object) -> None:
    """Raise `InvalidSetting` if it is none."""
    if serializer is not None and not isinstance(serializer, Serializer):
        raise InvalidSetting(
            f"the serializer is {serializer!r}: give an object of a class derived from postroom.formats.Serializer"
        )


def _json_of(data: Any, kind: Class[Any]) -> Any:
    try:
        encoded = encode_json(data)
    except PayloadNotEncodable as error:
        raise PayloadNotDecodable(f"an upcaster of {kind.__name__} returned what is no JSON: {error}") from None
    return decode(encoded, kind)


def _upcast(declared: Event, kind: Class[Any], step: int, data: Any) -> Any:
    if step not in declared.upcasters:
        raise UnknownVersion(
            f"the message holds an older version of {kind.__name__}, and nothing leads from version {step} to "
            f"{step + 1}: add an @upcaster({kind.__name__}, since={step}), then requeue the message"
        )
    try:
        return declared.upcasters[step](data)
    except Exception as error:  # noqa: BLE001 - whatever it is; its text may quote the payload
        raise PayloadNotDecodable(
            f"the upcaster of {kind.__name__} from version {step} raised {type(error).__name__}"
        ) from None


def _version_of(message: Incoming) -> int:
    given = message.headers.get(VERSION, "1")
    if not _NUMBER.fullmatch(given):
        raise UnknownVersion(f"the header {VERSION} is no version: it must be a number from 1 on")
    return int(given)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _is_version(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _has(kind: Class[Any], name: str) -> bool:
    protobufs = getattr(getattr(kind, "DESCRIPTOR", None), "fields_by_name", ())
    fields = (*getattr(kind, "__struct_fields__", ()), *getattr(kind, "model_fields", ()), *protobufs)
    return (
        name in fields or hasattr(kind, name) or any(name in vars(one).get("__annotations__", ()) for one in kind.mro())
    )


def _named(value: object) -> str:
    return value.__name__ if inspect.isclass(value) else f"a {type(value).__name__}"
