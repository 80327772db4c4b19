"""Replies on a publisher's inbox: any bytes, in any pieces; and which of them are JetStream's."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.brokers.nats_replies import ReplyParser, outcome_of
from postroom.brokers.port import Accepted, Refused, TargetUnavailable
from postroom.rules.failures import Failure, Reason

INBOX = "_INBOX.aB1"
NOBODYS = [f"{INBOX}.a.b", f"{INBOX}.1", f"{INBOX}.{'9' * 40}.1"]
"""Below the inbox, but no place where an answer is awaited."""
Heard = tuple[str, bytes, bytes]


class Client:
    """What the parser asks of the client, which hears what comes between replies."""

    def __init__(self) -> None:
        self.heard: list[Heard] = []
        self.pings = 0

    async def _process_msg(self, _: int, subject: bytes, __: bytes, data: bytes, headers: bytes | None) -> None:
        self.heard.append((subject.decode(), headers or b"", data))

    async def _process_ping(self) -> None:
        self.pings += 1

    def take(self, batch: int, number: int, headers: bytes, data: bytes) -> None:
        self.heard.append((f"{INBOX}.{batch}.{number}", headers, data))


def frame(subject: str, reply: str, headers: bytes, data: bytes) -> bytes:
    if headers:
        line = f"HMSG {subject} 1 {reply}{len(headers)} {len(headers) + len(data)}"
    else:
        line = f"MSG {subject} 1 {reply}{len(data)}"
    return line.encode() + b"\r\n" + headers + data + b"\r\n"


tricky = st.sampled_from(
    [b"", b"\r\n", b"\n", b"PING\r\n", f"MSG {INBOX}.0.0 1 5\r\n".encode(), b'{"stream":"S","seq":1}']
)
data = st.one_of(tricky, st.binary(max_size=60))
subjects = st.one_of(
    st.tuples(st.integers(0, 20), st.integers(0, 3000)).map(lambda two: f"{INBOX}.{two[0]}.{two[1]}"),
    st.sampled_from([*NOBODYS, "_INBOX.other.1.2", "orders"]),
)
frames = st.tuples(subjects, st.sampled_from(["", "7 ", "reply.to "]), data, data)


@given(st.lists(st.one_of(frames, st.none()), max_size=12), st.lists(st.integers(1, 50), max_size=40))
def test_B_3_any_reply_in_any_pieces_is_heard_as_it_was_sent(
    sent: list[tuple[str, str, bytes, bytes] | None], pieces: list[int]
) -> None:
    wire = b"".join(b"PING\r\n" if one is None else frame(*one) for one in sent)
    client = Client()

    async def arrive() -> None:
        parser = ReplyParser(client, INBOX, client.take)  # type: ignore[arg-type]  # as much of a client as is needed
        start = 0
        for size in [*pieces, len(wire)]:
            await parser.parse(wire[start : start + size])
            start += size

    asyncio.run(arrive())
    meant = [one for one in sent if one is not None and one[0] not in NOBODYS]
    assert client.heard == [(subject, headers, body) for subject, _, headers, body in meant]
    assert client.pings == sent.count(None)


def test_a_reply_of_many_pieces_is_put_together_once() -> None:
    """Each piece is added to what is there; nothing is read again and again."""
    client, body = Client(), b"\r\n" * 500_000
    wire = frame(f"{INBOX}.1.2", "", b"", body)

    async def arrive() -> None:
        parser = ReplyParser(client, INBOX, client.take)  # type: ignore[arg-type]  # as above
        for start in range(0, len(wire), 100):
            await parser.parse(wire[start : start + 100])

    asyncio.run(asyncio.wait_for(arrive(), 20))
    assert client.heard == [(f"{INBOX}.1.2", b"", body)]


def error(code: int, number: int | None, description: str = "no") -> bytes:
    numbered = "" if number is None else f'"err_code":{number},'
    return f'{{"stream":"S","seq":0,"error":{{"code":{code},{numbered}"description":"{description}"}}}}'.encode()


@pytest.mark.parametrize(
    ("data", "expected", "meaning"),
    [
        (b'{"stream":"S","seq":7}', None, Accepted("S:7")),
        (b'{"stream":"S","seq":7,"domain":"hub","duplicate":true}', "S", Accepted("S:7")),
        (b'{"stream":"T","seq":7}', "S", None),
        (b'{"stream":"S","seq":0}', None, None),
        (b'{"stream":"S","seq":-1}', None, None),
        (b'{"stream":"","seq":7}', None, None),
        (b'{"stream":"a\\nb","seq":7}', None, None),
        (b'{"stream":"%s","seq":7}' % (b"s" * 300), None, None),
        (b'{"stream":5,"seq":7}', None, None),
        (b'{"seq":7}', None, None),
        (b'{"ok":true}', None, None),
        (b"{}", None, None),
        (b"[1]", None, None),
        (b"", None, None),
        (b"+ACK", None, None),
        (b"\xff", None, None),
        (b'{"x":' * 100_000, None, None),
        (b'{"error":"no such order"}', None, None),
        (b'{"error":{"code":500,"description":"theirs"}}', None, None),
        (error(500, 42), None, None),
        (error(503, 10_077), None, TargetUnavailable("no")),
        (
            error(400, 10_060),
            "S",
            TargetUnavailable("the subject belongs to a stream other than S, which the URL names"),
        ),
        (error(400, 10_054), None, Refused(Reason.MESSAGE_TOO_LARGE, "no", Failure.PERMANENT)),
        (error(400, 10_097), None, Refused(Reason.MESSAGE_TOO_LARGE, "no", Failure.PERMANENT)),
        (error(400, 10_071), None, Refused("NATS_10071", "no")),
    ],
)
def test_only_a_stream_and_a_sequence_are_an_acknowledgement(data: bytes, expected: str | None, meaning: Any) -> None:
    assert outcome_of(data, expected) == meaning


@given(st.binary(max_size=200))
def test_no_bytes_make_the_judge_fail(data: bytes) -> None:
    outcome_of(data)
