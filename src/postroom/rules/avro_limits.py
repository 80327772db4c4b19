"""Limits of Avro payloads: a few bytes can stand for any number of items, or be nested as deep as they are long.

The decoder, which is written in C, takes such payloads at their word: the former keep it busy for years, the latter
end the process. Few schemas allow either; payloads of these are walked through first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from postroom.errors import PayloadNotDecodable

MOST_DEEP = 256
"""Records, arrays and maps inside each other."""
MOST_EMPTY = 65_536
"""Items that take no bytes, in all arrays of a payload."""
_FIXED = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_VARINTS = frozenset({"int", "long", "enum"})
_LENGTHS = frozenset({"bytes", "string"})
_RECORDS = frozenset({"record", "error"})
_PRIMITIVES = frozenset(_FIXED) | _LENGTHS | {"int", "long"}
_KINDS = _PRIMITIVES | _RECORDS | {"enum", "fixed", "array", "map"}
_VARINT_BITS = 64

Names = Mapping[str, Any]
"""The named types of a schema, by their full names."""


def needs_check(schema: Any, names: Names) -> bool:
    """Whether payloads of the schema can be without bounds: it is recursive, or has arrays of what takes no bytes."""
    return _Shapes(names).is_unbounded(schema)


def check_payload(data: bytes, schema: Any, names: Names) -> None:
    """Raise `PayloadNotDecodable` for a payload that is nested too deeply, ends too soon or has too many items."""
    _Walk(data, names).skip(schema, 0)


class _Shapes:
    """What the types of a schema are like. Each is looked at once: types that use others twice are many paths."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._bounded: set[str] = set()
        self._empty: dict[str, bool] = {}

    def is_unbounded(self, schema: Any, around: frozenset[str] = frozenset()) -> bool:
        kind, schema = _resolved(schema, self._names)
        if kind == "union":
            return any(self.is_unbounded(one, around) for one in schema)
        if kind == "array":
            return self.is_empty(schema["items"]) or self.is_unbounded(schema["items"], around)
        if kind == "map":
            return self.is_unbounded(schema["values"], around)
        return kind in _RECORDS and self._is_unbounded_record(schema, around)

    def _is_unbounded_record(self, schema: Any, around: frozenset[str]) -> bool:
        name = schema["name"]
        if name in around:
            return True
        if name not in self._bounded:
            if any(self.is_unbounded(one["type"], around | {name}) for one in schema["fields"]):
                return True
            self._bounded.add(name)
        return False

    def is_empty(self, schema: Any) -> bool:
        """Whether values of the schema take no bytes."""
        kind, schema = _resolved(schema, self._names)
        if kind not in _RECORDS:
            return kind == "null" or (kind == "fixed" and schema["size"] == 0)
        name = schema["name"]
        if name not in self._empty:
            self._empty[name] = False  # if it is inside itself
            self._empty[name] = all(self.is_empty(one["type"]) for one in schema["fields"])
        return self._empty[name]


def _resolved(schema: Any, names: Names) -> tuple[str, Any]:
    """The kind of a schema, and itself, where it may be the name of one."""
    if isinstance(schema, list):
        return "union", schema
    if isinstance(schema, str):
        return (schema, schema) if schema in _PRIMITIVES else _resolved(names[schema], names)
    kind = schema["type"]
    return (kind, schema) if kind in _KINDS else _resolved(names[kind], names)


class _Walk:
    def __init__(self, data: bytes, names: Names) -> None:
        self._data = data
        self._names = names
        self._shapes = _Shapes(names)
        self._at = 0
        self._empty = 0

    def skip(self, schema: Any, deep: int) -> None:
        if deep > MOST_DEEP:
            raise PayloadNotDecodable(f"the payload is nested more than {MOST_DEEP} deep")
        kind, schema = _resolved(schema, self._names)
        if kind in _FIXED:
            self._pass(_FIXED[kind])
        elif kind in _VARINTS:
            self._long()
        elif kind in _LENGTHS:
            self._pass(self._long())
        elif kind == "fixed":
            self._pass(schema["size"])
        elif kind == "union":
            self.skip(self._chosen(schema), deep)
        elif kind in _RECORDS:
            for field in schema["fields"]:
                self.skip(field["type"], deep + 1)
        elif kind == "array":
            self._blocks([schema["items"]], deep + 1)
        else:
            self._blocks(["string", schema["values"]], deep + 1)

    def _blocks(self, parts: list[Any], deep: int) -> None:
        empty = all(map(self._shapes.is_empty, parts))
        while count := self._long():
            if count < 0:
                self._long()
            if empty:
                self._empty += abs(count)
                if self._empty > MOST_EMPTY:
                    raise PayloadNotDecodable(f"the payload has more than {MOST_EMPTY:,} items that take no bytes")
                continue
            for _ in range(abs(count)):
                for part in parts:
                    self.skip(part, deep)

    def _chosen(self, union: list[Any]) -> Any:
        index = self._long()
        if not 0 <= index < len(union):
            raise PayloadNotDecodable("the payload chooses a part of a union that there is not")
        return union[index]

    def _pass(self, count: int) -> None:
        if not 0 <= count <= len(self._data) - self._at:
            raise _ends_too_soon()
        self._at += count

    def _long(self) -> int:
        found = 0
        for shift in range(0, _VARINT_BITS, 7):
            if self._at >= len(self._data):
                raise _ends_too_soon()
            byte = self._data[self._at]
            self._at += 1
            found |= (byte & 0x7F) << shift
            if byte < 0x80:  # noqa: PLR2004 - the last byte of a varint
                return (found >> 1) ^ -(found & 1)
        raise PayloadNotDecodable("the payload has a number of more than 64 bits")


def _ends_too_soon() -> PayloadNotDecodable:
    return PayloadNotDecodable("the payload ends too soon")
