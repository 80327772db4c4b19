"""Protobuf with a schema registry: each payload names the schema, and the message type in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.protobuf import json_format
from google.protobuf.message import Message

from postroom.decoding import convert, decode
from postroom.encoding import plain
from postroom.errors import InvalidSetting, PayloadNotDecodable, PayloadNotEncodable
from postroom.events import declared_event
from postroom.formats.protobuf_schemas import comparable, indexes_of, proto_text, register
from postroom.formats.protobuf_values import fill, to_plain
from postroom.rules.wire_format import Subject, framed, indexes_to_bytes, subject_of, unframed, without_indexes
from postroom.serializing import PayloadSchema, Serializer

if TYPE_CHECKING:
    from postroom.formats.registry import SchemaRegistry

SCHEMA_FORMATS = {
    "proto3": "application/vnd.google.protobuf;version=3",
    "proto2": "application/vnd.google.protobuf;version=2",
}


class ProtobufSerializer(Serializer):
    """Encodes events as Protobuf, and registers their files.

    ``message`` is the class that protoc generated. Without it, the event's class must be one itself. Otherwise the
    event's fields have the names of the message's; one that may be absent needs a default. ``subject`` says under which
    name the registry has the file. Reading needs no registry: fields have numbers.
    """

    content_type = "application/vnd.confluent.protobuf"

    def __init__(
        self, registry: SchemaRegistry, message: type[Message] | None = None, *, subject: Subject = Subject.TOPIC
    ) -> None:
        if message is not None and not _is_generated(message):
            raise InvalidSetting(f"{message!r} is no class that protoc generated: give one, as orders_pb2.OrderCreated")
        self._registry = registry
        self._message = message
        self._strategy = Subject(subject)
        self._heads: dict[type[Any], tuple[int, bytes]] = {}
        """The schema's id, and the place of the message type in it."""

    def encode(self, value: Any, kind: type[Any]) -> bytes:
        """The event in Protobuf's binary form, behind its schema's id and its place. Raises `PayloadNotEncodable`."""
        data = self._filled(value, kind).SerializeToString(deterministic=True)
        if kind not in self._heads:
            self.prepare(kind)
        schema_id, place = self._heads[kind]
        return framed(schema_id, place + data)

    def decode(self, payload: bytes | None, kind: type[Any]) -> Any:
        """The event that the payload holds."""
        return self._parsed(payload, kind) if _is_generated(kind) else convert(self.decode_plain(payload, kind), kind)

    def decode_plain(self, payload: bytes | None, kind: type[Any]) -> Any:
        """What the payload holds, by the fields that the generated class has now."""
        message = self._parsed(payload, kind)
        try:
            return to_plain(message)
        except Exception as error:  # noqa: BLE001 - as for a time in the year 10,000; its text may quote the payload
            name = message.DESCRIPTOR.full_name
            raise PayloadNotDecodable(
                f"the {name} has values that Python cannot hold ({type(error).__name__})"
            ) from None

    def decode_json(self, payload: bytes | None, kind: type[Any]) -> Any:
        """The event that a JSON payload holds."""
        if not _is_generated(kind):
            return decode(payload, kind)
        try:
            return json_format.Parse(payload or b"null", kind(), ignore_unknown_fields=True)
        except (json_format.ParseError, UnicodeDecodeError, RecursionError):
            raise PayloadNotDecodable(f"the payload is not {kind.__name__} in JSON") from None

    def from_plain(self, data: Any, kind: type[Any]) -> Any:
        """The event that upcasters made."""
        if not _is_generated(kind):
            return convert(data, kind)
        message = kind()
        try:
            fill(message, data)
        except (TypeError, ValueError, AttributeError, json_format.ParseError) as error:
            raise PayloadNotDecodable(f"upcasters made what is no {kind.__name__} ({type(error).__name__})") from None
        return message

    def is_prepared(self, kind: type[Any]) -> bool:
        """Whether the schema's id is known."""
        return kind in self._heads

    def prepare(self, kind: type[Any]) -> None:
        """Register the file of the class's message type, unless its id is known."""
        declared = declared_event(kind)
        if declared is None:
            raise InvalidSetting(f"{kind.__name__} is no event: decorate it with @event(topic)")
        descriptor = self._class(kind).DESCRIPTOR
        subject = subject_of(self._strategy, declared.topic, descriptor.full_name)
        schema_id = register(self._registry, subject, descriptor.file)
        self._heads[kind] = (schema_id, indexes_to_bytes(indexes_of(descriptor)))

    def schema(self, kind: type[Any]) -> PayloadSchema:
        """The file of the class's message type."""
        descriptor = self._class(kind).DESCRIPTOR
        text = proto_text(descriptor.file)
        version = "proto2" if text.startswith('syntax = "proto2"') else "proto3"
        return PayloadSchema(SCHEMA_FORMATS[version], text, comparable(descriptor))

    def _class(self, kind: type[Any]) -> type[Message]:
        if self._message is not None:
            return self._message
        if _is_generated(kind):
            return kind
        raise InvalidSetting(
            f"{kind.__name__} has no Protobuf message: write serializer=ProtobufSerializer(registry, message=…) in its "
            "@event, with the class that protoc generated"
        )

    def _filled(self, value: Any, kind: type[Any]) -> Message:
        message_class = self._class(kind)
        if isinstance(value, message_class):
            return value
        message = message_class()
        try:
            fill(message, plain(value))
        except (TypeError, ValueError, AttributeError, json_format.ParseError) as error:
            if isinstance(error, PayloadNotEncodable):
                raise
            raise PayloadNotEncodable(
                f"the {kind.__name__} does not fit the Protobuf message {message_class.DESCRIPTOR.full_name} "
                f"({type(error).__name__}): compare the names and types of their fields"
            ) from None
        return message

    def _parsed(self, payload: bytes | None, kind: type[Any]) -> Message:
        schema_id, data = unframed(payload)
        indexes, data = without_indexes(data)
        message_class = self._class(kind)
        message = message_class()
        try:
            message.ParseFromString(data)
        except Exception as error:  # noqa: BLE001 - whatever it is
            raise PayloadNotDecodable(
                f"the payload is not what schema {schema_id}, message {indexes}, says ({type(error).__name__})"
            ) from None
        return message


def _is_generated(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Message)
