"""Which changes of an Avro schema break something, by Avro's rules of resolution.

Within one version of an event, the new schema must read what the old one wrote, and the old one what the new one
writes: messages on their way, and programs that still run.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

_PRIMITIVE = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_PROMOTED = {
    "int": {"long", "float", "double"},
    "long": {"float", "double"},
    "float": {"double"},
    "string": {"bytes"},
    "bytes": {"string"},
}
_LOGICAL = ("logicalType", "precision", "scale")


def avro_changes(old: Any, new: Any) -> Iterator[str]:
    """What in the second schema breaks programs or messages of the first. Raises `ValueError` for what is no schema."""
    yield from _Resolution(old, new, "older messages").problems()
    yield from _Resolution(new, old, "older programs").problems()


class _Node(NamedTuple):
    """A schema, and the namespace that it stands in."""

    schema: Any
    space: str


class _Resolution:
    """How a reader's schema takes what a writer's has written."""

    def __init__(self, writer: Any, reader: Any, whom: str) -> None:
        self._writer, self._reader = _Node(writer, ""), _Node(reader, "")
        self._whom = whom
        self._written: dict[str, _Node] = {}
        self._read: dict[str, _Node] = {}
        _collect(self._writer, self._written)
        _collect(self._reader, self._read)
        self._seen: set[tuple[str, str]] = set()

    def problems(self) -> Iterator[str]:
        for problem in self._compared("", self._writer, self._reader):
            yield f"{problem}, for {self._whom}"

    def _compared(self, at: str, writer: _Node, reader: _Node) -> Iterator[str]:
        writer, reader = _resolved(writer, self._written), _resolved(reader, self._read)
        place = at or "the event"
        if isinstance(writer.schema, list):
            for one in writer.schema:
                yield from self._compared(at, _Node(one, writer.space), reader)
            return
        if isinstance(reader.schema, list):
            branches = [_Node(one, reader.space) for one in reader.schema]
            if not any(self._fits(writer, one) for one in branches):
                yield f"{place} may be {_shown(writer)}, which is not in {[_shown(one) for one in branches]}"
            return
        was, now = _type(writer), _type(reader)
        if was != now and now not in _PROMOTED.get(was, ()):
            yield f"{place} is written as {_shown(writer)}, and read as {_shown(reader)}"
            return
        logical = [(_get(writer, word), _get(reader, word)) for word in _LOGICAL]
        if any(one != other for one, other in logical):
            yield f"{place} is written as {logical[0][0] or was}, and read as {logical[0][1] or now} of another kind"
        yield from self._inside(at, was, writer, reader)

    def _fits(self, writer: _Node, reader: _Node) -> bool:
        seen = set(self._seen)
        found = next(self._compared("", writer, reader), None) is None
        self._seen = seen
        return found

    def _inside(self, at: str, kind: str, writer: _Node, reader: _Node) -> Iterator[str]:
        match kind:
            case "record":
                yield from self._record(at, writer, reader)
            case "array":
                items = (_Node(one.schema["items"], one.space) for one in (writer, reader))
                yield from self._compared(f"{at}[]", *items)
            case "map":
                values = (_Node(one.schema["values"], one.space) for one in (writer, reader))
                yield from self._compared(f"{at}.*", *values)
            case "enum":
                unknown = [one for one in writer.schema["symbols"] if one not in reader.schema["symbols"]]
                if unknown and "default" not in reader.schema:
                    yield f"{at} may be {', '.join(map(str, unknown))}, which is not known and has no default"
            case "fixed" if writer.schema.get("size") != reader.schema.get("size"):
                yield f"{at} has {writer.schema.get('size')} bytes, and {reader.schema.get('size')} are read"

    def _record(self, at: str, writer: _Node, reader: _Node) -> Iterator[str]:
        pair = (_full_name(writer), _full_name(reader))
        if pair in self._seen:
            return
        self._seen.add(pair)
        aliases = [_local(one) for one in reader.schema.get("aliases", ())]
        if _local(pair[0]) not in (_local(pair[1]), *aliases):
            yield f"{at or 'the event'} is {pair[0]}, and {pair[1]} is read"
            return
        fields = {one["name"]: one for one in writer.schema["fields"]}
        inner = (_space(writer), _space(reader))
        for field in reader.schema["fields"]:
            name = f"{at}.{field['name']}".lstrip(".")
            known = next((one for one in (field["name"], *field.get("aliases", ())) if one in fields), None)
            if known is not None:
                of = _Node(fields[known]["type"], inner[0]), _Node(field["type"], inner[1])
                yield from self._compared(name, *of)
            elif "default" not in field:
                yield f"{name} is missing and has no default"


def _collect(node: _Node, names: dict[str, _Node]) -> None:
    """Find the named types of a schema."""
    schema = node.schema
    if isinstance(schema, list):
        for one in schema:
            _collect(_Node(one, node.space), names)
    if not isinstance(schema, Mapping):
        return
    if schema.get("type") in ("record", "enum", "fixed"):
        names[_full_name(node)] = node
        for field in schema.get("fields", ()):
            _collect(_Node(field["type"], _space(node)), names)
    for word in ("items", "values", "type"):
        if word in schema:
            _collect(_Node(schema[word], node.space), names)


def _resolved(node: _Node, names: Mapping[str, _Node]) -> _Node:
    """What a name stands for. Raises `ValueError` if there is no such type."""
    schema = node.schema
    while isinstance(schema, Mapping) and isinstance(schema.get("type"), Mapping | list):
        schema = schema["type"]
    if not isinstance(schema, str) or schema in _PRIMITIVE:
        return _Node(schema, node.space)
    for name in (f"{node.space}.{schema}", schema):
        if name in names:
            return names[name]
    raise ValueError(f"the Avro schema has no type {schema}")


def _type(node: _Node) -> str:
    return str(node.schema["type"] if isinstance(node.schema, Mapping) else node.schema)


def _get(node: _Node, word: str) -> Any:
    return node.schema.get(word) if isinstance(node.schema, Mapping) else None


def _shown(node: _Node) -> str:
    return _full_name(node) if isinstance(node.schema, Mapping) and "name" in node.schema else _type(node)


def _full_name(node: _Node) -> str:
    name, space = str(node.schema["name"]), node.schema.get("namespace", node.space)
    return f"{space}.{name}" if space and "." not in name else name


def _space(node: _Node) -> str:
    """The namespace of what is inside a named type."""
    return _full_name(node).rpartition(".")[0]


def _local(name: str) -> str:
    return name.rpartition(".")[2]
