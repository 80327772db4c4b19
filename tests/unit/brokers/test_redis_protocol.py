"""Redis's answers, in any pieces, and its commands."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.connection import Connection
from redis.exceptions import ConnectionError as RedisConnectionError

from postroom.brokers import redis_protocol as protocol

WIRE = {
    b"$15\r\n1526919030474-0\r\n": b"1526919030474-0",
    b"$3\r\n1-1\r\n": b"1-1",
    b"$-1\r\n": b"$-1",
    b"-WRONGTYPE Operation against a key\r\n": b"-WRONGTYPE Operation against a key",
    b":2\r\n": b":2",
}


async def read(pieces: list[bytes], count: int) -> list[bytes]:
    reader = asyncio.StreamReader()
    reading = asyncio.create_task(protocol.answers(reader, count))
    for piece in pieces:
        reader.feed_data(piece)
        await asyncio.sleep(0)
    reader.feed_eof()
    return await reading


@given(st.lists(st.sampled_from(list(WIRE)), min_size=1, max_size=8), st.integers(1, 20))
def test_answers_arrive_in_any_pieces(sent: list[bytes], size: int) -> None:
    data = b"".join(sent)
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    assert asyncio.run(read(pieces, len(sent))) == [WIRE[one] for one in sent]


async def test_a_connection_that_ends_early_is_lost() -> None:
    with pytest.raises(RedisConnectionError, match="closed"):
        await read([b"$3\r\n1-1\r\n$3\r\n1"], 2)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=5))
def test_a_command_is_what_the_client_would_send(texts: list[str]) -> None:
    packed = Connection().pack_command("XADD", *texts)  # type: ignore[no-untyped-call]  # the client has no type here
    assert protocol.command("XADD", *texts) == b"".join(packed)
