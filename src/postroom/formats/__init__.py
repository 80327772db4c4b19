"""Formats of typed events beside JSON: Avro and Protobuf, with a schema registry.

::

    registry = SchemaRegistry("https://registry.example:8081", auth=("user", "secret"))

    @event("orders.created", key="order_id", serializer=AvroSerializer(registry))
    @dataclass
    class OrderCreated: ...
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from postroom.rules.wire_format import Subject
from postroom.serializing import PayloadSchema, Serializer

if TYPE_CHECKING:
    from postroom.formats.avro import AvroSerializer
    from postroom.formats.protobuf import ProtobufSerializer
    from postroom.formats.registry import SchemaRegistry

__all__ = ["AvroSerializer", "PayloadSchema", "ProtobufSerializer", "SchemaRegistry", "Serializer", "Subject"]

_HOMES = {
    "AvroSerializer": ("postroom.formats.avro", "avro"),
    "ProtobufSerializer": ("postroom.formats.protobuf", "protobuf"),
    "SchemaRegistry": ("postroom.formats.registry", "http"),
}


def __getattr__(name: str) -> object:
    """Import a public name on first use. Raises `DriverMissing` if its library is not installed."""
    if name not in _HOMES:
        raise AttributeError(f"module 'postroom.formats' has no attribute {name!r}")
    module, extra = _HOMES[name]
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        from postroom.errors import DriverMissing

        raise DriverMissing(f"{name} needs {error.name}: pip install 'postroom[{extra}]'") from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
