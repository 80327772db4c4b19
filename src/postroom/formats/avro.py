"""Avro with a schema registry: each payload names the schema that it was written with."""

from __future__ import annotations

import json
from contextlib import suppress
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple

import fastavro

from postroom.decoding import convert
from postroom.encoding import plain
from postroom.errors import InvalidSetting, PayloadNotDecodable, PayloadNotEncodable, RegistryUnavailable, UnknownSchema
from postroom.events import declared_event
from postroom.formats.avro_schemas import schema_of
from postroom.rules.avro_limits import check_payload, needs_check
from postroom.rules.wire_format import Subject, framed, subject_of, unframed
from postroom.serializing import PayloadSchema, Serializer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from postroom.formats.registry import RegisteredSchema, SchemaRegistry

AVRO = "AVRO"
SCHEMA_FORMAT = "application/vnd.apache.avro+json;version=1.9.0"


class _Written(NamedTuple):
    """What an event class is written with."""

    schema: Any
    """As given or derived."""
    parsed: Any
    """As fastavro has it."""

    @property
    def text(self) -> str:
        return json.dumps(self.schema, separators=(",", ":"))


class _Writer(NamedTuple):
    """What a payload was written with."""

    parsed: Any
    names: dict[str, Any]
    needs_check: bool
    """Whether a payload may be one that the decoder does not survive."""


class AvroSerializer(Serializer):
    """Encodes events as Avro, and registers their schemas.

    ``schema`` is the Avro schema, as a dict or as JSON; without it, the event's class is the schema
    (`postroom.formats.avro_schemas`). ``subject`` says under which name the registry has it. Payloads of other schemas
    are read by Avro's rules: fields that only the reader has get their defaults, others are left out.
    """

    content_type = "application/vnd.confluent.avro"

    def __init__(self, registry: SchemaRegistry, schema: Any = None, *, subject: Subject = Subject.TOPIC) -> None:
        self._registry = registry
        self._given = _loaded(schema)
        self._strategy = Subject(subject)
        self._written: dict[type[Any], _Written] = {}
        self._ids: dict[type[Any], int] = {}
        self._writers: dict[int, _Writer] = {}

    def encode(self, value: Any, kind: type[Any]) -> bytes:
        """The event in Avro's binary form, behind the id of its schema. Raises `PayloadNotEncodable`."""
        data = plain(value)
        buffer = BytesIO()
        try:
            fastavro.schemaless_writer(buffer, self._schema(kind).parsed, data, strict=True)
        except Exception as error:  # noqa: BLE001 - whatever it is; its text may quote the payload
            raise PayloadNotEncodable(
                f"the {kind.__name__} does not fit its Avro schema ({type(error).__name__}): compare its fields and "
                "their types with the schema"
            ) from None
        if kind not in self._ids:
            self.prepare(kind)
        return framed(self._ids[kind], buffer.getvalue())

    def decode(self, payload: bytes | None, kind: type[Any]) -> Any:
        """The event, read from the schema that it was written with to that of its class."""
        return convert(self._read(payload, self._schema(kind).parsed), kind)

    def decode_plain(self, payload: bytes | None, kind: type[Any]) -> Any:  # noqa: ARG002 - another version's
        """What the payload holds, by the schema that it was written with alone."""
        return self._read(payload, None)

    def from_plain(self, data: Any, kind: type[Any]) -> Any:
        """The event that upcasters made."""
        return convert(data, kind)

    def is_prepared(self, kind: type[Any]) -> bool:
        """Whether the schema's id is known."""
        return kind in self._ids

    def prepare(self, kind: type[Any]) -> None:
        """Register the class's schema, unless its id is known."""
        declared = declared_event(kind)
        if declared is None:
            raise InvalidSetting(f"{kind.__name__} is no event: decorate it with @event(topic)")
        written = self._schema(kind)
        subject = subject_of(self._strategy, declared.topic, _full_name(written.schema))
        self._ids[kind] = self._registry.id_of(subject, AVRO, written.text)

    def lacks(self, payload: bytes | None) -> bool:
        """Whether the schema that the payload was written with is not known."""
        try:
            schema_id = unframed(payload).schema_id
        except PayloadNotDecodable:
            return False
        return schema_id not in self._writers and not self._registry.knows(schema_id)

    def fetch(self, payloads: Iterable[bytes | None]) -> None:
        """Get the schemas that these payloads were written with."""
        for payload in payloads:
            if self.lacks(payload):
                with suppress(PayloadNotDecodable, RegistryUnavailable):
                    self._writer(unframed(payload).schema_id)

    def schema(self, kind: type[Any]) -> PayloadSchema:
        """The Avro schema of the class."""
        return PayloadSchema(SCHEMA_FORMAT, self._schema(kind).schema)

    def _schema(self, kind: type[Any]) -> _Written:
        found = self._written.get(kind)
        if found is None:
            schema = schema_of(kind) if self._given is None else self._given
            found = self._written[kind] = _Written(schema, _parsed(schema, f"the Avro schema of {kind.__name__}"))
        return found

    def _writer(self, id: int) -> _Writer:
        found = self._writers.get(id)
        if found is None:
            schema = self._registry.schema(id)
            if schema.type != AVRO:
                raise PayloadNotDecodable(f"the payload was written with schema {id}, which is {schema.type}, not Avro")
            named: dict[str, Any] = {}
            self._read_references(schema, named, set())
            try:
                parsed = fastavro.parse_schema(json.loads(schema.text), named_schemas=named)
                found = _Writer(parsed, named, needs_check(parsed, named))
            except Exception as error:  # noqa: BLE001 - whatever is wrong with it
                raise UnknownSchema(f"schema {id} cannot be read ({type(error).__name__})") from None
            self._writers[id] = found
        return found

    def _read_references(self, schema: RegisteredSchema, named: dict[str, Any], seen: set[object]) -> None:
        for reference in schema.references:
            if reference in seen:
                continue
            seen.add(reference)
            used = self._registry.referenced(reference)
            self._read_references(used, named, seen)
            try:
                fastavro.parse_schema(json.loads(used.text), named_schemas=named)
            except Exception as error:  # noqa: BLE001 - as above
                raise UnknownSchema(f"schema {used.id} cannot be read ({type(error).__name__})") from None

    def _read(self, payload: bytes | None, reader: Any) -> Any:
        schema_id, data = unframed(payload)
        writer = self._writer(schema_id)
        if writer.needs_check:
            check_payload(data, writer.parsed, writer.names)
        buffer = BytesIO(data)
        try:
            found = fastavro.schemaless_reader(buffer, writer.parsed, reader)
        except Exception as error:  # noqa: BLE001 - whatever it is; its text may quote the payload
            raise PayloadNotDecodable(
                f"the payload is not what schema {schema_id} says ({type(error).__name__})"
            ) from None
        if buffer.tell() != len(data):
            raise PayloadNotDecodable(f"the payload is not what schema {schema_id} says: bytes are left over")
        return found


def _loaded(schema: Any) -> Any:
    if not isinstance(schema, str):
        return schema
    try:
        return json.loads(schema)
    except ValueError:
        raise InvalidSetting("the Avro schema is not JSON: give a dict, or the content of an .avsc file") from None


def _parsed(schema: Any, what: str) -> Any:
    try:
        return fastavro.parse_schema(schema, named_schemas={})
    except Exception as error:  # noqa: BLE001 - whatever is wrong with it
        raise InvalidSetting(f"{what} is not valid: {type(error).__name__}: {error}") from None


def _full_name(schema: Any) -> str:
    if not isinstance(schema, dict) or "name" not in schema:
        raise InvalidSetting("the Avro schema of an event must be a record, with a name")
    name = str(schema["name"])
    space = schema.get("namespace")
    return f"{space}.{name}" if space and "." not in name else name
