"""The command line for events: what it exports, and what it finds broken."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.services.asyncapi import parsed

if TYPE_CHECKING:
    from pathlib import Path

SHOP = """
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from msgspec import Struct
from pydantic import BaseModel
from postroom import event, upcaster

@dataclass
class Line:
    article: str
    count: int = 1
    part_of: "Line | None" = None

@event("orders.created", key="order_id", version={version})
@dataclass
class OrderCreated:
    order_id: int
    lines: list[Line]
    {field}

@event("orders.created", type="paid")
class OrderPaid(Struct):
    order_id: int
    amount: Decimal

class Address(BaseModel):
    city: str

@event("parcels/sent")
class ParcelSent(BaseModel):
    to: Address
    at: datetime
"""
UPCASTER = """
@upcaster(OrderCreated, since=1)
def with_note(data):
    return data | {"note": ""}
"""


FORMATS = """
from dataclasses import dataclass
from google.protobuf.api_pb2 import Mixin
from postroom import event
from postroom.formats import AvroSerializer, ProtobufSerializer, SchemaRegistry

registry = SchemaRegistry("http://registry.invalid")  # which needs not be there

@event("orders.placed", key="order_id", serializer=AvroSerializer(registry))
@dataclass
class OrderPlaced:
    order_id: int
    {field}

@event("orders.noted", serializer=ProtobufSerializer(registry, Mixin))
@dataclass
class OrderNoted:
    name: str
"""


def run(directory: Path, *arguments: str) -> tuple[int, str]:
    ended = subprocess.run(
        [sys.executable, "-B", "-m", "postroom", "events", *arguments],  # else bytecode of the same second is taken
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return ended.returncode, (ended.stdout + ended.stderr).strip()


def write(directory: Path, version: int = 1, field: str = "", more: str = "") -> None:
    (directory / "shop.py").write_text(SHOP.replace("{version}", str(version)).replace("{field}", field) + more)


def test_events_become_asyncapi_and_a_breaking_change_fails(tmp_path: Path) -> None:
    write(tmp_path)
    code, printed = run(tmp_path, "export", "--app", "shop", "--title", "Shop", "--version", "2.1")
    assert code == 0
    document = json.loads(printed)
    assert document["info"] == {"title": "Shop", "version": "2.1"}
    assert {channel["address"] for channel in document["channels"].values()} == {"orders.created", "parcels/sent"}
    found = parsed(printed)
    assert found["errors"] == []
    assert sorted(found["messages"]) == ["OrderCreated", "ParcelSent", "paid"]

    assert run(tmp_path, "export", "--app", "shop", "-o", "main.json") == (0, "3 events are in main.json")
    (tmp_path / "one.py").write_text("import msgspec, postroom\n@postroom.event('a')\nclass A(msgspec.Struct): ...\n")
    assert run(tmp_path, "export", "--app", "one", "-o", "one.json") == (0, "1 event is in one.json")
    against = ("check", "--app", "shop", "--against", "main.json")
    assert run(tmp_path, *against) == (0, "no event breaks what was exported")
    write(tmp_path, field="note: str = ''")
    assert run(tmp_path, *against)[0] == 0
    write(tmp_path, field="note: str")
    assert run(tmp_path, *against) == (
        1,
        "orders.created OrderCreated: note is needed, and older messages may lack it (raise the version)",
    )
    write(tmp_path, 2, "note: str")
    assert run(tmp_path, *against) == (1, "orders.created OrderCreated: no upcaster leads from version 1 to 2")
    write(tmp_path, 2, "note: str", UPCASTER)
    assert run(tmp_path, *against)[0] == 0


def test_avro_and_protobuf_are_exported_and_compared_as_such(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(FORMATS.replace("{field}", ""))
    code, printed = run(tmp_path, "export", "--app", "shop")
    assert code == 0
    messages = json.loads(printed)["components"]["messages"]
    placed, noted = messages["orders.placed.OrderPlaced"], messages["orders.noted.OrderNoted"]
    assert (placed["contentType"], placed["payload"]) == (
        "application/vnd.confluent.avro",
        {
            "schemaFormat": "application/vnd.apache.avro+json;version=1.9.0",
            "schema": {
                "type": "record",
                "name": "OrderPlaced",
                "fields": [{"name": "order_id", "type": "long"}],
            },
        },
    )
    assert noted["payload"]["schemaFormat"] == "application/vnd.google.protobuf;version=3"
    assert "message Mixin {\n  string name = 1;" in noted["payload"]["schema"]
    # The parser reads no Avro and no Protobuf without plugins: it checks the document around them.
    assert parsed(printed) == {"errors": [], "messages": ["OrderNoted", "OrderPlaced"]}

    assert run(tmp_path, "export", "--app", "shop", "-o", "main.json")[0] == 0
    against = ("check", "--app", "shop", "--against", "main.json")
    for field, ended in (
        ("note: str = ''", (0, "no event breaks what was exported")),
        (
            "note: str",
            (
                1,
                "orders.placed OrderPlaced: note is missing and has no default, for older messages (raise the version)",
            ),
        ),
    ):
        (tmp_path / "shop.py").write_text(FORMATS.replace("{field}", field))
        assert run(tmp_path, *against) == ended


def test_bad_input_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "double.py").write_text(
        SHOP.replace("{version}", "1").replace("{field}", "")
        + "OrderPaid = event('orders.created', type='OrderCreated')(OrderPaid)"
    )
    (tmp_path / "inner.py").write_text("from postroom import event\n@event('t')\nclass Plain: pass")
    (tmp_path / "text.json").write_text("no JSON")
    (tmp_path / "other.json").write_text("{}")
    write(tmp_path)
    for arguments, complaint in (
        (("export", "--app", "nowhere"), "--app nowhere cannot be loaded"),
        (("export", "--app", "empty"), "empty declares no event"),
        (("export", "--app", "double"), "are both version 1 of OrderCreated in orders.created"),
        (("export", "--app", "inner"), "inner.Plain has no JSON Schema"),
        (("export", "--app", "shop", "-o", "no/such/place.json"), "cannot be written"),
        (("check", "--app", "shop", "--against", "gone.json"), "gone.json cannot be read"),
        (("check", "--app", "shop", "--against", "text.json"), "text.json is not JSON"),
        (("check", "--app", "shop", "--against", "other.json"), "no document of `postroom events export`"),
    ):
        code, printed = run(tmp_path, *arguments)
        assert code == 2, printed
        assert complaint in printed
        assert "Traceback" not in printed
