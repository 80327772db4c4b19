"""Message classes as protoc generates them: two files, of which one imports the other."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

Field = descriptor_pb2.FieldDescriptorProto
OPTIONAL, REPEATED = Field.LABEL_OPTIONAL, Field.LABEL_REPEATED
PREFIX = "postroom.tests.shop"


def _common() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="postroom/tests/common.proto", package=PREFIX, syntax="proto3")
    address = file.message_type.add(name="Address")
    address.field.add(name="city", number=1, type=Field.TYPE_STRING, label=OPTIONAL)
    return file


def _orders() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="postroom/tests/orders.proto", package=PREFIX, syntax="proto3")
    file.dependency.extend(["postroom/tests/common.proto", "google/protobuf/timestamp.proto"])
    state = file.enum_type.add(name="State")
    state.value.add(name="UNKNOWN", number=0)
    state.value.add(name="PAID", number=1)
    file.message_type.add(name="OrderLost").field.add(name="order_id", number=1, type=Field.TYPE_INT64, label=OPTIONAL)
    order = file.message_type.add(name="OrderCreated")
    line = order.nested_type.add(name="Line")
    line.field.add(name="article", number=1, type=Field.TYPE_STRING, label=OPTIONAL)
    prices = order.nested_type.add(name="PricesEntry", options=descriptor_pb2.MessageOptions(map_entry=True))
    prices.field.add(name="key", number=1, type=Field.TYPE_STRING, label=OPTIONAL)
    prices.field.add(name="value", number=2, type=Field.TYPE_INT64, label=OPTIONAL)
    own = f".{PREFIX}.OrderCreated"
    add = order.field.add
    add(name="order_id", number=1, type=Field.TYPE_INT64, label=OPTIONAL)
    add(name="reference", number=2, type=Field.TYPE_STRING, label=OPTIONAL)
    add(name="lines", number=3, type=Field.TYPE_MESSAGE, type_name=f"{own}.Line", label=REPEATED)
    add(name="prices", number=4, type=Field.TYPE_MESSAGE, type_name=f"{own}.PricesEntry", label=REPEATED)
    add(name="state", number=5, type=Field.TYPE_ENUM, type_name=f".{PREFIX}.State", label=OPTIONAL)
    at = timestamp_pb2.Timestamp.DESCRIPTOR.full_name
    add(name="at", number=6, type=Field.TYPE_MESSAGE, type_name=f".{at}", label=OPTIONAL)
    add(name="to", number=7, type=Field.TYPE_MESSAGE, type_name=f".{PREFIX}.Address", label=OPTIONAL)
    add(name="note", number=8, type=Field.TYPE_STRING, label=OPTIONAL, proto3_optional=True, oneof_index=1)
    add(name="tags", number=9, type=Field.TYPE_STRING, label=REPEATED)
    add(name="card", number=10, type=Field.TYPE_STRING, label=OPTIONAL, oneof_index=0)
    add(name="voucher", number=11, type=Field.TYPE_BYTES, label=OPTIONAL, oneof_index=0)
    order.oneof_decl.add(name="payment")
    order.oneof_decl.add(name="_note")
    return file


def _built() -> Any:
    pool = descriptor_pool.Default()
    try:
        return pool.FindFileByName("postroom/tests/orders.proto")
    except KeyError:
        for one in (_common(), _orders()):
            pool.Add(one)
        return pool.FindFileByName("postroom/tests/orders.proto")


FILE = _built()
OrderCreated: Any = message_factory.GetMessageClass(FILE.message_types_by_name["OrderCreated"])
OrderLost: Any = message_factory.GetMessageClass(FILE.message_types_by_name["OrderLost"])
