"""Events as an AsyncAPI 3 document, with the schema of each payload: JSON Schema, Avro or Protobuf."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from postroom.decoding import is_pydantics
from postroom.errors import InvalidSetting
from postroom.events import VERSION, declared_event

if TYPE_CHECKING:
    from collections.abc import Iterable

    from postroom.serializing import Serializer

SCHEMAS = "#/components/schemas"


def asyncapi(kinds: Iterable[type[Any]], *, title: str, version: str) -> dict[str, Any]:
    """The document of event classes: a channel for each topic, a message for each class.

    Of several classes with the same topic and type, the newest version counts. Raises `InvalidSetting` if two are of
    the same version, or if a class has no JSON Schema.
    """
    channels: dict[str, Any] = {}
    operations: dict[str, Any] = {}
    messages: dict[str, Any] = {}
    schemas: dict[str, Any] = {}
    for kind in _newest(kinds):
        declared = declared_event(kind)
        assert declared is not None  # noqa: S101 - `_newest` leaves out others
        name = _identifier(f"{declared.topic}.{declared.type}")
        payload, parts = _schema(kind, name, declared.serializer)
        schemas |= parts
        channel = _identifier(declared.topic)
        channels.setdefault(channel, {"address": declared.topic, "messages": {}})
        channels[channel]["messages"][name] = {"$ref": f"#/components/messages/{name}"}
        operations.setdefault(
            f"send.{channel}", {"action": "send", "channel": {"$ref": f"#/channels/{channel}"}, "messages": []}
        )["messages"].append({"$ref": f"#/channels/{channel}/messages/{name}"})
        messages[name] = {
            "name": declared.type,
            "title": kind.__name__,
            "contentType": "application/json" if declared.serializer is None else declared.serializer.content_type,
            "headers": {
                "type": "object",
                "properties": {VERSION: {"type": "string", "const": str(declared.version)}},
            },
            "payload": payload,
            "x-postroom": {
                "topic": declared.topic,
                "version": declared.version,
                "key": declared.key if isinstance(declared.key, str) else None,
                "upcasts": sorted(declared.upcasters),
                **_comparable(kind, declared.serializer),
            },
        }
    return {
        "asyncapi": "3.0.0",
        "info": {"title": title, "version": version},
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": operations,
        "components": {"messages": messages, "schemas": schemas},
    }


def _newest(kinds: Iterable[type[Any]]) -> list[type[Any]]:
    found: dict[tuple[str, str], type[Any]] = {}
    for kind in kinds:
        declared = declared_event(kind)
        if declared is None:
            continue
        place = (declared.topic, declared.type)
        other = found.get(place)
        known = declared_event(other)
        if other is not None and known is not None:
            if known.version == declared.version:
                raise InvalidSetting(
                    f"{_place(other)} and {_place(kind)} are both version {declared.version} of {declared.type} in "
                    f"{declared.topic}: raise one, or give one another type"
                )
            if known.version > declared.version:
                continue
        found[place] = kind
    return [found[place] for place in sorted(found)]


def _comparable(kind: type[Any], serializer: Serializer | None) -> dict[str, Any]:
    """The schema for comparisons, where the payload's is a text."""
    own = serializer.schema(kind) if serializer is not None else None
    return {} if own is None or own.comparable is None else {"schema": own.comparable}


def _schema(kind: type[Any], name: str, serializer: Serializer | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The schema of a class, and those of the classes in it; their names begin with the message's."""
    own = serializer.schema(kind) if serializer is not None else None
    if own is not None:
        return {"schemaFormat": own.format, "schema": own.schema}, {}
    if is_pydantics(kind):
        from pydantic import TypeAdapter  # installed, because one of its classes is in use

        schema = TypeAdapter(kind).json_schema(ref_template=f"{SCHEMAS}/{name}.{{model}}")
        return schema, {f"{name}.{part}": value for part, value in schema.pop("$defs", {}).items()}
    try:
        [schema], parts = msgspec.json.schema_components([kind], ref_template=f"{SCHEMAS}/{name}.{{name}}")
    except TypeError as error:
        raise InvalidSetting(
            f"{_place(kind)} has no JSON Schema ({error}): events are dataclasses, msgspec "
            "Structs or pydantic models, with @event as the outermost decorator"
        ) from None
    return schema, {f"{name}.{part}": value for part, value in parts.items()}


def _place(kind: type[Any]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _identifier(text: str) -> str:
    """A text as AsyncAPI's keys may be: letters, digits, dots, hyphens and underscores."""
    return "".join(one if one.isascii() and (one.isalnum() or one in ".-_") else "_" for one in text)
