"""Reading NATS's stream of bytes: whatever arrives together, every frame is handed over once, whole and in order."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

from hypothesis import given
from hypothesis import strategies as some

from postroom.sources.nats_frames import Frame, FrameParser

if TYPE_CHECKING:
    from nats.aio.client import Client

WANTED, OTHER = 1, 2
"""Numbers of subscriptions: whose frames somebody takes, and whose go to the client."""

bodies = some.one_of(some.binary(max_size=40), some.just(b"MSG orders 1 reply 3\r\nabc\r\n"), some.just(b"PING\r\n"))
frames = some.builds(
    Frame,
    some.sampled_from([b"orders", b"_INBOX.7"]),
    some.sampled_from([b"", b"$JS.ACK.1"]),
    bodies,
    some.one_of(some.just(b""), bodies.map(lambda body: b"NATS/1.0\r\n" + body)),
)
arrivals = some.lists(
    some.one_of(some.just(b"PING\r\n"), some.just(b"+OK\r\n"), some.tuples(frames, some.sampled_from([WANTED, OTHER])))
)


class Noting:
    """What the parser calls of the client."""

    def __init__(self, seen: list[Any]) -> None:
        self._seen = seen

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        self._seen.append((Frame(bytes(subject), bytes(reply), bytes(data), bytes(headers or b"")), sid))

    async def _process_ping(self) -> None:
        self._seen.append(b"PING\r\n")


def sent(arrival: Any) -> bytes:
    """As the server sends it."""
    if isinstance(arrival, bytes):
        return arrival
    (subject, reply, body, head), number = arrival
    place = b"%s %d %s" % (subject, number, reply + b" " if reply else b"")
    if head:
        return b"HMSG %s%d %d\r\n%s%s\r\n" % (place, len(head), len(head) + len(body), head, body)
    return b"MSG %s%d\r\n%s\r\n" % (place, len(body), body)


@given(arrivals, some.lists(some.integers(0, 400), max_size=12))
def test_every_frame_is_handed_over_once_and_in_order_wherever_the_stream_is_cut(
    arrived: list[Any], cuts: list[int]
) -> None:
    seen: list[Any] = []
    parser = FrameParser(cast("Client", Noting(seen)), {WANTED: lambda frame: seen.append((frame, WANTED))})
    stream = b"".join(map(sent, arrived))
    edges = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]

    async def parse() -> None:
        for start, end in pairwise(edges):
            await parser.parse(stream[start:end])

    asyncio.run(parse())
    assert seen == [one for one in arrived if one != b"+OK\r\n"]
    assert not parser.buf
