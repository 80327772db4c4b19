"""Protobuf schemas: as `.proto` text for people, as fields by number for comparisons, and as registries take them."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FieldDescriptorProto

from postroom.formats.registry import Reference

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postroom.formats.registry import SchemaRegistry

PROTOBUF = "PROTOBUF"
# Descriptors are `Any`: the stubs tell those of the two implementations apart, and theirs are the same.
_KNOWN = "google/protobuf/"
"""Files that every registry has."""


def register(registry: SchemaRegistry, subject: str, file: Any) -> int:
    """Register a file after those that it imports, each of which is a subject of its own. Returns the id."""
    return registry.id_of(subject, PROTOBUF, _serialized(file), _references(registry, file))


def _references(registry: SchemaRegistry, file: Any) -> list[Reference]:
    found = []
    for other in file.dependencies:
        if not other.name.startswith(_KNOWN):
            schema, inner = _serialized(other), _references(registry, other)
            registry.id_of(other.name, PROTOBUF, schema, inner)
            version = registry.version_of(other.name, PROTOBUF, schema, inner)
            found.append(Reference(other.name, other.name, version))
    return found


def _serialized(file: Any) -> str:
    return base64.b64encode(file.serialized_pb).decode()


def indexes_of(kind: Any) -> list[int]:
    """The place of a message type in its file."""
    found: list[int] = []
    at = kind
    while at is not None:
        around = at.containing_type
        among = at.file.message_types_by_name.values() if around is None else around.nested_types
        found.insert(0, [one.full_name for one in among].index(at.full_name))
        at = around
    return found


def comparable(kind: Any) -> dict[str, Any]:
    """The fields of a message type and of those in it, by their numbers."""
    messages: dict[str, Any] = {}
    enums: dict[str, Any] = {}

    def add(one: Any) -> None:
        if one.full_name in messages:
            return
        messages[one.full_name] = fields = {}
        for field in one.fields:
            label = "repeated " if field.is_repeated else "required " if field.is_required else ""
            of = field.message_type or field.enum_type
            name = of.full_name if of is not None else FieldDescriptorProto.Type.Name(field.type)
            fields[str(field.number)] = {"name": field.name, "type": label + name.removeprefix("TYPE_").lower()}
            if field.message_type is not None:
                add(field.message_type)
            elif field.enum_type is not None:
                enums[of.full_name] = {value.name: value.number for value in field.enum_type.values}

    add(kind)
    return {"message": kind.full_name, "messages": messages, "enums": enums}


def proto_text(file: Any) -> str:
    """The file as `.proto` text, without comments and options."""
    proto = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(proto)
    lines = [f'syntax = "{proto.syntax or "proto2"}";']
    if proto.package:
        lines.append(f"package {proto.package};")
    lines += [f'import "{name}";' for name in proto.dependency]
    for message in proto.message_type:
        lines += _message(message, proto.syntax)
    for enum in proto.enum_type:
        lines += _enum(enum)
    return "\n".join(lines) + "\n"


def _message(message: DescriptorProto, syntax: str) -> Iterator[str]:
    entries = {one.name: one for one in message.nested_type if one.options.map_entry}
    yield f"message {message.name} {{"
    for inner in message.nested_type:
        if inner.name not in entries:
            yield from (f"  {line}" for line in _message(inner, syntax))
    for enum in message.enum_type:
        yield from (f"  {line}" for line in _enum(enum))
    for field in message.field:
        if not field.HasField("oneof_index") or field.proto3_optional:
            yield f"  {_field(field, entries, syntax)}"
    for index, oneof in enumerate(message.oneof_decl):
        chosen = [one for one in message.field if one.HasField("oneof_index") and one.oneof_index == index]
        if not any(one.proto3_optional for one in chosen):
            yield f"  oneof {oneof.name} {{"
            yield from (f"    {_type(one)} {one.name} = {one.number};" for one in chosen)
            yield "  }"
    yield "}"


def _field(field: FieldDescriptorProto, entries: dict[str, DescriptorProto], syntax: str) -> str:
    name = f"{field.name} = {field.number};"
    repeated = field.label == FieldDescriptorProto.LABEL_REPEATED
    entry = entries.get(field.type_name.rpartition(".")[2]) if repeated else None
    if entry is not None:
        key, value = entry.field
        return f"map<{_type(key)}, {_type(value)}> {name}"
    if repeated:
        return f"repeated {_type(field)} {name}"
    if syntax == "proto3" and not field.proto3_optional:
        return f"{_type(field)} {name}"
    required = field.label == FieldDescriptorProto.LABEL_REQUIRED
    return f"{'required' if required else 'optional'} {_type(field)} {name}"


def _enum(enum: EnumDescriptorProto) -> Iterator[str]:
    yield f"enum {enum.name} {{"
    yield from (f"  {value.name} = {value.number};" for value in enum.value)
    yield "}"


def _type(field: FieldDescriptorProto) -> str:
    return field.type_name or FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
