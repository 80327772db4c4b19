"""Protobuf messages as dicts, lists and values, and back: for events that are dataclasses, Structs or models."""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from google.protobuf import duration_pb2, json_format, struct_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor import FieldDescriptor

if TYPE_CHECKING:
    from google.protobuf.message import Message

_WRAPPERS = frozenset(one.full_name for one in wrappers_pb2.DESCRIPTOR.message_types_by_name.values())
_TIMESTAMP = timestamp_pb2.Timestamp.DESCRIPTOR.full_name
_DURATION = duration_pb2.Duration.DESCRIPTOR.full_name
_FREE = frozenset(one.full_name for one in struct_pb2.DESCRIPTOR.message_types_by_name.values())
_TEXT = (uuid.UUID, decimal.Decimal)
# Descriptors are `Any`: the stubs tell those of the two implementations apart, and theirs are the same.


def to_plain(message: Message) -> Any:
    """A message as a dict: times as datetimes, enums as their names, and without the fields that are absent."""
    kind = message.DESCRIPTOR.full_name
    if kind == _TIMESTAMP:
        return message.ToDatetime(tzinfo=dt.UTC)  # type: ignore[attr-defined]  # of this class
    if kind == _DURATION:
        return message.ToTimedelta()  # type: ignore[attr-defined]  # as above
    if kind in _WRAPPERS:
        return message.value  # type: ignore[attr-defined]  # as above
    if kind in _FREE:
        return json_format.MessageToDict(message)
    return {
        field.name: _read(field, getattr(message, field.name))
        for field in message.DESCRIPTOR.fields
        if not field.has_presence or message.HasField(field.name)
    }


def fill(message: Message, data: Any) -> None:
    """Set a message's fields. Raises `TypeError`, `ValueError` or `AttributeError` for what does not fit."""
    kind = message.DESCRIPTOR.full_name
    message.SetInParent()
    if kind == _TIMESTAMP:
        message.FromDatetime(data)  # type: ignore[attr-defined]  # of this class
    elif kind == _DURATION:
        message.FromTimedelta(data)  # type: ignore[attr-defined]  # as above
    elif kind in _WRAPPERS:
        message.value = data  # type: ignore[attr-defined]  # as above
    elif kind in _FREE:
        json_format.ParseDict(data, message)
    elif isinstance(data, Mapping):
        for name, value in data.items():
            if name not in message.DESCRIPTOR.fields_by_name:
                raise AttributeError(name)
            if value is not None:
                _write(message, message.DESCRIPTOR.fields_by_name[name], value)
    else:
        raise TypeError(kind)


def _read(field: Any, value: Any) -> Any:
    if _is_map(field):
        inner = field.message_type.fields_by_name["value"]
        return {key: _one(inner, value[key]) for key in value}
    return [_one(field, one) for one in value] if field.is_repeated else _one(field, value)


def _one(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return to_plain(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    return value


def _write(message: Message, field: Any, value: Any) -> None:
    if _is_map(field):
        place, inner = getattr(message, field.name), field.message_type.fields_by_name["value"]
        for key, one in value.items():
            if inner.message_type is not None:
                fill(place[key], one)
            else:
                place[key] = _scalar(inner, one)
    elif field.is_repeated:
        place = getattr(message, field.name)
        for one in value:
            if field.message_type is not None:
                fill(place.add(), one)
            else:
                place.append(_scalar(field, one))
    elif field.message_type is not None:
        fill(getattr(message, field.name), value)
    else:
        setattr(message, field.name, _scalar(field, value))


def _scalar(field: Any, value: Any) -> Any:
    if field.enum_type is not None and isinstance(value, str):
        if value not in field.enum_type.values_by_name:
            raise ValueError(field.name)
        return field.enum_type.values_by_name[value].number
    if field.type == FieldDescriptor.TYPE_STRING and not isinstance(value, str):
        if isinstance(value, _TEXT):
            return str(value)
        if isinstance(value, dt.date | dt.time):
            return value.isoformat()
    return value


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.is_repeated and field.message_type.GetOptions().map_entry
