"""Avro schemas of classes: dataclasses, msgspec Structs and pydantic models."""

from __future__ import annotations

import enum
from typing import Any

import msgspec
from msgspec import inspect as types

from postroom.errors import InvalidSetting

_PLAIN: dict[type[types.Type], Any] = {
    types.NoneType: "null",
    types.BoolType: "boolean",
    types.IntType: "long",
    types.FloatType: "double",
    types.StrType: "string",
    types.BytesType: "bytes",
    types.UUIDType: {"type": "string", "logicalType": "uuid"},
    types.DateTimeType: {"type": "long", "logicalType": "timestamp-micros"},
    types.DateType: {"type": "int", "logicalType": "date"},
    types.TimeType: {"type": "long", "logicalType": "time-micros"},
}


def schema_of(kind: type[Any]) -> dict[str, Any]:
    """The Avro schema of a class: a record with its name.

    | in the class | in the schema |
    |---|---|
    | ``int``, ``float``, ``bool``, ``str``, ``bytes`` | ``long``, ``double``, ``boolean``, ``string``, ``bytes`` |
    | ``datetime``, ``date``, ``time``, ``UUID`` | ``timestamp-micros``, ``date``, ``time-micros``, ``uuid`` |
    | ``list[X]``, ``dict[str, X]``, ``X | None`` | ``array``, ``map``, a union with ``null`` |
    | an ``Enum`` of texts, another class | ``enum``, ``record`` |

    A field with a default has it in the schema too. Raises `InvalidSetting` for what Avro has no certain type for, such
    as ``Decimal``, which needs a precision: give the schema yourself then.
    """
    found = _Schemas(kind).of(_info(kind, kind))
    if not isinstance(found, dict) or found.get("type") != "record":
        raise InvalidSetting(f"{kind.__name__} has no fields, so that it is no Avro record")
    return found


class _Schemas:
    """The schemas of a class and of those in it, each of which is written out once."""

    def __init__(self, root: type[Any]) -> None:
        self._root = root
        self._named: dict[str, type[Any]] = {}

    def of(self, info: types.Type, at: str = "") -> Any:  # noqa: PLR0911 - one for each kind of type
        plain = _PLAIN.get(type(info))
        if plain is not None:
            return plain
        match info:
            case types.Metadata():
                return self.of(info.type, at)
            case types.ListType() | types.SetType() | types.FrozenSetType() | types.VarTupleType():
                return {"type": "array", "items": self.of(info.item_type, f"{at}[]")}
            case types.DictType(key_type=types.StrType()):
                return {"type": "map", "values": self.of(info.value_type, f"{at}{{}}")}
            case types.UnionType():
                return self._union(info, at)
            case types.EnumType():
                return self._enum(info.cls, at)
            case types.DataclassType() | types.StructType() | types.TypedDictType():
                fields = [
                    (one.name, one.type, _default(one.default, one.default_factory, required=one.required))
                    for one in info.fields
                ]
                return self._record(info.cls, fields, at)
            case types.CustomType() if hasattr(info.cls, "model_fields"):
                return self._record(info.cls, _pydantics(info.cls, at), at)
            case _:
                raise self._refusal(at, type(info).__name__.removesuffix("Type"))

    def _union(self, info: types.UnionType, at: str) -> Any:
        # The null comes first: a default has to fit the first of a union, and most are None.
        parts = sorted(info.types, key=lambda one: not isinstance(one, types.NoneType))
        return [self.of(one, at) for one in parts]

    def _enum(self, kind: type[Any], at: str) -> Any:
        if self._is_known(kind, at):
            return kind.__name__
        symbols = [one.value for one in kind if isinstance(one, enum.Enum)]
        if not all(isinstance(one, str) and one.isidentifier() and one.isascii() for one in symbols):
            raise self._refusal(at, "Enum whose values are no names")
        return {"type": "enum", "name": kind.__name__, "symbols": symbols}

    def _record(self, kind: type[Any], fields: list[tuple[str, types.Type, Any]], at: str) -> Any:
        if self._is_known(kind, at):
            return kind.__name__
        return {
            "type": "record",
            "name": kind.__name__,
            "fields": [self._field(name, info, default, f"{at}.{name}") for name, info, default in fields],
        }

    def _field(self, name: str, info: types.Type, default: Any, at: str) -> dict[str, Any]:
        found = {"name": name, "type": self.of(info, at)}
        if default is _NONE:
            return found
        union = found["type"]
        if isinstance(union, list) and default is not None and union[0] == "null":
            found["type"] = [*union[1:], "null"]
        return {**found, "default": default}

    def _is_known(self, kind: type[Any], at: str) -> bool:
        """Whether the class is written out already, so that its name is enough."""
        other = self._named.get(kind.__name__)
        if other is None:
            self._named[kind.__name__] = kind
        elif other is not kind:
            raise self._refusal(at, f"{kind.__name__}, as another class in it is named")
        return other is kind

    def _refusal(self, at: str, what: str) -> InvalidSetting:
        return InvalidSetting(
            f"{self._root.__name__}{at} is a {what}, for which Avro has no certain type: give the event's serializer "
            "the schema, AvroSerializer(registry, schema=…)"
        )


_NONE: Any = object()


def _default(value: Any, factory: Any, *, required: bool) -> Any:
    """A field's default, as Avro's JSON has it; `_NONE` if it has none, or one that is not known beforehand."""
    if required:
        return _NONE
    if factory in (list, dict):  # another one may return something else each time
        return factory()
    if isinstance(value, enum.Enum):
        value = value.value
    is_json = value is None or isinstance(value, str | bool | int | float) or value in ([], {})
    return value if is_json else _NONE


def _pydantics(kind: Any, at: str) -> list[tuple[str, types.Type, Any]]:
    from pydantic_core import PydanticUndefined  # installed, because one of its classes is in use

    found = []
    for name, field in kind.model_fields.items():
        default = field.default if field.default is not PydanticUndefined else msgspec.NODEFAULT
        factory = field.default_factory or msgspec.NODEFAULT
        info = _info(field.annotation, kind, f"{at}.{name}")
        found.append((name, info, _default(default, factory, required=field.is_required())))
    return found


def _info(kind: Any, root: type[Any], at: str = "") -> types.Type:
    try:
        return types.type_info(kind)
    except (TypeError, NameError) as error:
        raise InvalidSetting(f"{root.__name__}{at} has no Avro schema: {error}") from None
