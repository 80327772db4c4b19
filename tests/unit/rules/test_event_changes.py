"""Which changes of events break something."""

from __future__ import annotations

from typing import Any

import pytest

from postroom.rules.event_changes import breaking_changes


def document(payload: Any, version: int = 1, upcasts: tuple[int, ...] = (), **schemas: Any) -> dict[str, Any]:
    message = {
        "name": "Created",
        "payload": payload,
        "x-postroom": {"topic": "orders", "version": version, "upcasts": list(upcasts)},
    }
    return {"components": {"messages": {"orders.Created": message}, "schemas": schemas}}


def fields(*required: str, closed: bool = False, **properties: Any) -> dict[str, Any]:
    closing = {"additionalProperties": False} if closed else {}
    return {"type": "object", "properties": properties, "required": list(required), **closing}


NUMBER, TEXT = {"type": "integer"}, {"type": "string"}
OLD = fields("id", id=NUMBER, note=TEXT)
NODE = {"type": "object", "properties": {"next": {"$ref": "#/components/schemas/Node"}}, "required": []}


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (OLD, OLD),
        ({"enum": [1]}, {"enum": [1]}),
        (OLD, fields("id", id={**NUMBER, "title": "Id", "description": "a number"})),
        (OLD, fields("id", id=NUMBER, note=TEXT, more=NUMBER)),
        ({"type": "array", "items": NUMBER}, {"type": "array", "items": NUMBER}),
        ({"anyOf": [NUMBER, {"type": "null"}]}, {"anyOf": [NUMBER, {"type": "null"}]}),
        ({"type": "object", "additionalProperties": NUMBER}, {"type": "object", "additionalProperties": NUMBER}),
    ],
)
def test_what_may_come_and_go_breaks_nothing(before: Any, now: Any) -> None:
    assert breaking_changes(document(before), document(now)) == []


@pytest.mark.parametrize(
    ("before", "now", "change"),
    [
        (OLD, fields(id=NUMBER, note=TEXT), "id may be missing, and older programs need it"),
        (OLD, fields(note=TEXT), "id is gone, and older programs need it"),
        (OLD, fields("id", "note", id=NUMBER, note=TEXT), "note is needed, and older messages may lack it"),
        (OLD, fields("id", id=TEXT, note=TEXT), "id was integer, and is string"),
        (OLD, fields("id", id={"enum": [1, 2]}), "id was integer, and is of any type"),
        (OLD, NUMBER, "the event was object, and is integer"),
        ({"enum": [1]}, {"enum": [1, 2]}, "enum of the event was [1], and is [1, 2]"),
        (fields(n=NUMBER), fields(n={**NUMBER, "maximum": 5}), "maximum of n was not set, and is 5"),
        (fields(n={"items": NUMBER}), fields(n={"items": TEXT}), "n[] was integer, and is string"),
        (fields(n={"items": NUMBER}), fields(n={}), "the items of n changed"),
        (fields(a=fields(b=NUMBER)), fields(a=fields(b=TEXT)), "a.b was integer, and is string"),
        (fields(n={"anyOf": [NUMBER]}), fields(n={"anyOf": [NUMBER, TEXT]}), "n had 1 alternatives, and has 2"),
        (fields(n={"oneOf": [NUMBER]}), fields(n={"oneOf": [TEXT]}), "n was integer, and is string"),
        ({"additionalProperties": NUMBER}, {"additionalProperties": TEXT}, "* was integer, and is string"),
        (fields(closed=True), fields(n=NUMBER), "n is new, and older programs refuse what they do not know"),
        (fields(n=NUMBER), fields(closed=True), "n is gone, and older messages with it are refused"),
    ],
)
def test_any_other_change_needs_a_higher_version(before: Any, now: Any, change: str) -> None:
    assert breaking_changes(document(before), document(now)) == [f"orders Created: {change} (raise the version)"]
    assert breaking_changes(document(before), document(now, 2, (1,))) == []


def test_classes_are_compared_where_they_are_referred_to_even_if_they_hold_themselves() -> None:
    payload = {"$ref": "#/components/schemas/Node"}
    assert breaking_changes(document(payload, Node=NODE), document(payload, Node=NODE)) == []
    changed = {**NODE, "required": ["next"]}
    assert breaking_changes(document(payload, Node=NODE), document(payload, Node=changed)) == [
        "orders Created: next is needed, and older messages may lack it (raise the version)"
    ]
    assert breaking_changes(document(NODE, Node=NODE), document(payload, Node=NODE)) == []


def test_versions_go_up_step_by_step() -> None:
    old = document(OLD, 1)
    assert breaking_changes(old, document(NUMBER, 3, (2,))) == ["orders Created: no upcaster leads from version 1 to 2"]
    assert breaking_changes(document(OLD, 2), old) == ["orders Created: the version went back from 2 to 1"]
    assert breaking_changes(old, {"components": {"messages": {}}})[0].startswith("orders Created is gone")


@pytest.mark.parametrize("there", [{}, {"Node": {"$ref": "#/components/schemas/Node"}}, {"Node": "text"}])
def test_a_reference_that_leads_nowhere_is_refused(there: dict[str, Any]) -> None:
    payload = {"$ref": "#/components/schemas/Node"}
    with pytest.raises(ValueError, match="the reference #/components/schemas/Node leads nowhere"):
        breaking_changes(document(payload, **there), document(payload, Node=NODE))
    with pytest.raises(ValueError, match="leads nowhere"):
        breaking_changes(document({"$ref": "#/asyncapi/x"}) | {"asyncapi": "3.0.0"}, document(NODE))


@pytest.mark.parametrize("wrong", [{}, [], {"components": {"messages": {"a": {"name": "A"}}}}])
def test_what_is_no_such_document_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="it is no document of `postroom events export`"):
        breaking_changes(wrong, document(OLD))


AVRO_FORMAT = "application/vnd.apache.avro+json;version=1.9.0"
PROTOBUF_FORMAT = "application/vnd.google.protobuf;version=3"


def avro(*fields: Any) -> Any:
    return {"schemaFormat": AVRO_FORMAT, "schema": {"type": "record", "name": "Created", "fields": list(fields)}}


def protobuf(type: str) -> Any:
    given = document({"schemaFormat": PROTOBUF_FORMAT, "schema": 'syntax = "proto3";'})
    schema = {"message": "Created", "messages": {"Created": {"1": {"name": "id", "type": type}}}, "enums": {}}
    given["components"]["messages"]["orders.Created"]["x-postroom"]["schema"] = schema
    return given


def test_other_formats_are_compared_by_their_own_rules() -> None:
    field = {"name": "id", "type": "long"}
    assert breaking_changes(document(avro(field)), document(avro(field))) == []
    assert breaking_changes(document(avro()), document(avro(field))) == [
        "orders Created: id is missing and has no default, for older messages (raise the version)"
    ]
    assert breaking_changes(protobuf("int64"), protobuf("int64")) == []
    assert breaking_changes(protobuf("int64"), protobuf("string")) == [
        "orders Created: id (number 1) was int64, and is string (raise the version)"
    ]
    assert breaking_changes(document(OLD), document(avro(field))) == [
        "orders Created: the format was JSON, and is Avro: older programs cannot read it (raise the version)"
    ]
    other = {"schemaFormat": "application/raml+yaml;version=1.0", "schema": ""}
    assert "is application/raml+yaml" in breaking_changes(document(OLD), document(other))[0]
