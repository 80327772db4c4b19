"""Messages that no well-behaved client sends: what of them can be read, and what cannot."""

from __future__ import annotations

import asyncio
import ctypes
import struct
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import redis.asyncio as redis
from pamqp import commands, frame

from postroom.brokers.rabbitmq_connection import RabbitConnection
from tests.contract.sources.source_rigs import KafkaSourceRig, NatsSourceRig, RabbitSourceRig, RedisSourceRig
from tests.services.kafka_program import library

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from tests.contract.sources.source_rigs import ServerSourceRig


class Hostile(NamedTuple):
    """What is sent: its body, and the head before it, as each broker has one."""

    body: bytes
    head: bytes
    raw: bytes | None = None
    """What must be kept of the head where it cannot be read; None where it can."""


def short(text: bytes) -> bytes:
    return bytes([len(text)]) + text


def table(name: bytes, value: bytes) -> bytes:
    content = short(name) + value
    return struct.pack(">I", len(content)) + content


def properties(flag: int, value: bytes) -> bytes:
    return struct.pack(">H", 1 << flag) + value


def nested(depth: int) -> bytes:
    inner = b"S\0\0\0\1x"
    for _ in range(depth):
        inner = b"F" + table(b"n", inner)
    return table(b"deep", inner)


AMQP = [
    *(
        Hostile(b"amqp %d" % n, head, head)
        for n, head in enumerate(
            [
                properties(15, short(b"\xff\xfe")),  # the content type
                properties(7, short(b"\xff")),  # the message id
                properties(13, table(b"\xff", b"S\0\0\0\1x")),
                properties(6, struct.pack(">Q", 1_700_000_000_000_000_000)),  # nanoseconds
                properties(6, struct.pack(">Q", 2**64 - 1)),
                properties(5, short(b"\xc3(")),  # the type
            ]
        )
    ),
    Hostile(b"nested", properties(13, nested(20))),
    Hostile(b"binary value", properties(13, table(b"b", b"S\0\0\0\2\xff\xfe"))),
    Hostile(b"twice", properties(13, struct.pack(">I", 8) + b"\1ab\1" + b"\1ab\2")),
    Hostile(b"", properties(7, short(b"empty"))),
]
NATS = [
    *(
        Hostile(b"nats %d" % n, head, head)
        for n, head in enumerate(
            [
                b"X",
                b"NATS/1.0\r\nno colon\r\n\r\n",
                b"NATS/1.0\r\n\xff\xfe: 1\r\n\r\n",
                b"NATS/1.0\r\n: no name\r\n\r\n",
            ]
        )
    ),
    Hostile(b"status", b"NATS/1.0 \xff\xfe\xfd oops\r\n\r\n"),
    Hostile(b"binary value", b"NATS/1.0\r\ncolour: \xff\xfe\r\n\r\n"),
    Hostile(b"twice", b"NATS/1.0\r\na: 1\r\na: 2\r\n\r\n"),
    Hostile(b"", b"NATS/1.0\r\n\r\n"),
]
REDIS = [
    Hostile(b"redis 0", b"\xff", b"$1\r\n\xff\r\n$1\r\n1\r\n"),
    Hostile(b"redis 1", b"a\xc3(", b"$3\r\na\xc3(\r\n$1\r\n1\r\n"),
    Hostile(b"line feed", b"a\nb"),
    Hostile(b"", b"empty"),
    Hostile(b"no name", b""),
]
KAFKA = [
    # Code becomes another when it is hot.
    *(Hostile(b"kafka %d" % n, b"\xff\xfe", b"\xff\xfe") for n in range(20)),
    Hostile(b"kafka", b"a\xc3(", b"a\xc3("),
    Hostile(b"line feed", b"a\nb"),
    Hostile(b"", b"empty"),
    Hostile(b"no name", b""),
]


class Deaf(RabbitConnection):
    def _settled(self, *_: object, **__: object) -> None:
        """What is sent here, no batch waits for."""


async def to_rabbitmq(source_rig: ServerSourceRig, topic: str, given: Sequence[Hostile]) -> None:
    link = await Deaf.open("127.0.0.1", source_rig.rig.server.port, None, "guest", "guest", "/")
    for one in given:
        content = struct.pack(">HHQ", 60, 0, len(one.body)) + one.head
        raw = frame.marshal(commands.Basic.Publish(0, "", topic), 1)
        raw += struct.pack(">BHI", 2, 1, len(content)) + content + b"\xce"
        if one.body:
            raw += struct.pack(">BHI", 3, 1, len(one.body)) + one.body + b"\xce"
        link._writer.write(raw)
    await link._ask(commands.Channel.Close(200, "", 0, 0), 1, commands.Channel.CloseOk)
    await link.close()


async def to_nats(source_rig: ServerSourceRig, topic: str, given: Sequence[Hostile]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", source_rig.rig.server.port)
    writer.write(b'CONNECT {"verbose":false,"headers":true}\r\n')
    for one in given:
        sizes = f"{len(one.head)} {len(one.head) + len(one.body)}"
        writer.write(f"HPUB {topic} {sizes}\r\n".encode() + one.head + one.body + b"\r\n")
    writer.write(b"PING\r\n")
    while (line := await reader.readline()) != b"PONG\r\n":
        assert not line.startswith(b"-ERR"), line
    writer.close()
    await writer.wait_closed()


async def to_redis(source_rig: ServerSourceRig, topic: str, given: Sequence[Hostile]) -> None:
    async with redis.Redis(port=source_rig.rig.server.port) as client:
        for one in given:
            await client.xadd(topic, {one.head: b"1", b"data": one.body})


async def to_kafka(source_rig: ServerSourceRig, topic: str, given: Sequence[Hostile]) -> None:
    """By the C library: the Python client sends no names that are no text."""
    kafka = library()
    places = source_rig.rig.url().removeprefix("kafka://").partition("?")[0].encode()
    settings = ctypes.c_void_p(kafka.rd_kafka_conf_new())
    error = ctypes.create_string_buffer(512)
    kafka.rd_kafka_conf_set(settings, b"bootstrap.servers", places, error, 512)
    producer = ctypes.c_void_p(kafka.rd_kafka_new(0, settings, error, 512))
    end, to, value, flags, header, copy = 0, 1, 4, 7, 9, 2
    for one in given:
        size = ctypes.c_size_t
        failed = kafka.rd_kafka_producev(
            *(producer, to, topic.encode(), flags, copy, value, one.body, size(len(one.body))),
            *(header, one.head, b"1", ctypes.c_ssize_t(1), end),
        )
        assert failed == 0
    assert await asyncio.to_thread(kafka.rd_kafka_flush, producer, 10_000) == 0
    kafka.rd_kafka_destroy(producer)


Send: TypeAlias = "Callable[[ServerSourceRig, str, Sequence[Hostile]], Awaitable[None]]"
HOSTILE: Mapping[type[ServerSourceRig], tuple[Send, list[Hostile]]] = {
    RabbitSourceRig: (to_rabbitmq, AMQP),
    NatsSourceRig: (to_nats, NATS),
    RedisSourceRig: (to_redis, REDIS),
    KafkaSourceRig: (to_kafka, KAFKA),
}
