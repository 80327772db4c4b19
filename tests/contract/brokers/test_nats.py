"""What is NATS's own."""

from __future__ import annotations

from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING

import nats
import pytest

from postroom import Message
from postroom.brokers.nats import NatsBroker
from postroom.brokers.port import Accepted, Outcome, Refused, TargetUnavailable
from postroom.errors import BrokerUnavailable, InvalidSetting
from postroom.rules.failures import Reason
from tests.services.databases import need
from tests.services.nats import Nats
from tests.services.ports import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from nats.aio.msg import Msg
    from nats.js import JetStreamContext

USERS = """
jetstream: {{ store_dir: "{directory}/data" }}
authorization: {{ users: [
  {{ user: shop, password: "p@ss", permissions: {{ publish: ["ok.>", "$JS.>"] }} }}
] }}
"""


class NatsWithUsers(Nats):
    def command(self) -> list[str | Path]:
        configuration = self.directory / "users.conf"
        configuration.write_text(USERS.format(directory=self.directory))
        return [self._program, "--addr", "127.0.0.1", "--port", str(self.port), "--config", configuration]


@pytest.fixture(scope="module")
def server() -> Nats:
    return need(Nats)


@pytest.fixture(scope="module")
def guarded() -> Iterator[Nats]:
    with closing(NatsWithUsers()) as server:
        yield need(NatsWithUsers, server)


@pytest.fixture
async def jetstream(server: Nats) -> AsyncIterator[JetStreamContext]:
    client = await nats.connect(f"nats://127.0.0.1:{server.port}")
    yield client.jetstream()
    await client.close()


async def published(url: str, *messages: Message, seconds: float = 10.0) -> list[Outcome]:
    broker = NatsBroker(url)
    try:
        return list(await broker.publish(messages, seconds))
    finally:
        await broker.close()


async def test_a_stream_is_declared_where_there_is_none(server: Nats, jetstream: JetStreamContext) -> None:
    url = f"nats://127.0.0.1:{server.port}?declare=true&stream=DECLARED&subjects=declared.*,more.>"
    for number in (1, 2):
        [outcome] = await published(url, Message.new("declared.a", {"n": number}))
        assert outcome == Accepted(f"DECLARED:{number}")
    assert (await jetstream.stream_info("DECLARED")).config.subjects == ["declared.*", "more.>"]


async def test_a_repetition_is_kept_once(server: Nats, jetstream: JetStreamContext) -> None:
    await jetstream.add_stream(name="ONCE", subjects=["once"])
    message = Message.new("once", "a")
    outcomes = await published(f"nats://127.0.0.1:{server.port}", message, message)
    assert outcomes == [Accepted("ONCE:1")] * 2
    assert (await jetstream.stream_info("ONCE")).state.messages == 1


async def test_a_topic_does_not_reach_the_servers_inside(server: Nats, jetstream: JetStreamContext) -> None:
    """Whoever chooses topics would else command the server with the relay's permissions."""
    await jetstream.add_stream(name="VICTIM", subjects=["victim"])
    url = f"nats://127.0.0.1:{server.port}"
    await published(url, Message.new("victim", "a"))
    client = await nats.connect(url)
    waiting = await client.subscribe("_INBOX.somebody")
    topics = ["$JS.API.STREAM.PURGE.VICTIM", "$JS.API.STREAM.DELETE.VICTIM", "_INBOX.somebody", "_R_.a", "$SYS.REQ.X"]
    outcomes = await published(url, *(Message.new(topic, None) for topic in topics))
    assert {getattr(one, "code", one) for one in outcomes} == {Reason.INVALID_TARGET}
    assert (await jetstream.stream_info("VICTIM")).state.messages == 1
    await client.flush()
    assert waiting.pending_msgs == 0
    await client.close()


@pytest.mark.parametrize("topic", ["a b", "a.*", "a.>", "a..b", ".a"])
async def test_a_topic_that_is_no_subject_is_refused(server: Nats, topic: str) -> None:
    [outcome] = await published(f"nats://127.0.0.1:{server.port}", Message.new(topic, "a"))
    assert isinstance(outcome, Refused)
    assert outcome.code == Reason.INVALID_TARGET


async def test_a_full_stream_and_another_stream_burn_no_attempt(server: Nats, jetstream: JetStreamContext) -> None:
    await jetstream.add_stream(name="FULL", subjects=["full"], max_msgs=1, discard="new", max_msg_size=500)
    url = f"nats://127.0.0.1:{server.port}"
    first, second, large = await published(url, *(Message.new("full", text) for text in ("a", "b", "c" * 500)))
    assert isinstance(first, Accepted)
    assert second == TargetUnavailable("maximum messages exceeded")
    assert isinstance(large, Refused)
    assert large.code == Reason.MESSAGE_TOO_LARGE
    assert await published(f"{url}?stream=OTHER", Message.new("full", "d")) == [
        TargetUnavailable("the subject belongs to a stream other than OTHER, which the URL names")
    ]


async def test_users_and_what_they_may_not_do(guarded: Nats) -> None:
    place = f"127.0.0.1:{guarded.port}"
    url = f"nats://shop:p%40ss@{place}?declare=true&stream=S&subjects=ok.>"
    [outcome] = await published(url, Message.new("ok.a", "a"))
    assert outcome == Accepted("S:1")
    fine, outcome = await published(url, Message.new("ok.a", "a"), Message.new("forbidden", "a"))
    assert isinstance(fine, Accepted)
    assert isinstance(outcome, TargetUnavailable)
    assert 'permissions violation for publish to "forbidden"' in outcome.reason.lower()
    with pytest.raises(BrokerUnavailable, match=r"(?i)authorization") as caught:
        await published(f"nats://shop:secret@{place}", Message.new("ok.a", "a"))
    assert "secret" not in str(caught.value)


async def test_hosts_that_are_not_there_are_passed_by(server: Nats, jetstream: JetStreamContext) -> None:
    await jetstream.add_stream(name="HOSTS", subjects=["hosts"])
    url = f"nats://127.0.0.1:{free_port()},127.0.0.1:{server.port}"
    assert await published(url, Message.new("hosts", "a")) == [Accepted("HOSTS:1")]


STRANGE = [
    b'{"ok":true}',
    b"{}",
    b"",
    b"line\nline\r\n\r\n",
    b"\xff\r\nMSG",
    b'{"stream":"","seq":1}',
    b'{"error":"theirs"}',
]


@asynccontextmanager
async def answering(server: Nats, subject: str) -> AsyncIterator[None]:
    """A service that listens on a subject and answers whoever publishes there, with all sorts of things."""
    client = await nats.connect(f"nats://127.0.0.1:{server.port}")

    async def answer(message: Msg) -> None:
        for data in STRANGE:
            await client.publish(message.reply, data)
            await client.publish(message.reply, data, reply="x.y", headers={"a": "b"})
        await client.publish(f"{message.reply}9999999999", b"{}")
        await client.publish(message.reply.rpartition(".")[0] + ".all", b"{}")

    await client.subscribe(subject, cb=answer)
    await client.flush()
    try:
        yield
    finally:
        await client.close()


async def test_what_others_answer_is_no_acknowledgement(server: Nats, jetstream: JetStreamContext) -> None:
    """Nor does it keep JetStream's from being heard, whichever comes first."""
    await jetstream.add_stream(name="OURS", subjects=["ours"])
    url = f"nats://127.0.0.1:{server.port}"
    orphans, taken = ([Message.new(topic, {"n": n}) for n in range(120)] for topic in ("orphan", "ours"))
    async with answering(server, "orphan"), answering(server, "ours"):
        broker = NatsBroker(url)
        assert await broker.publish(taken, 10.0) == [Accepted(f"OURS:{n}") for n in range(1, 121)]
        outcomes = await broker.publish([*orphans, *taken], 3.0)
        assert {type(outcome) for outcome in outcomes[:120]} == {TargetUnavailable}
        assert "not JetStream" in str(outcomes[0])
        assert outcomes[120:] == [Accepted(f"OURS:{n}") for n in range(1, 121)]
        await broker.close()
    assert (await jetstream.stream_info("OURS")).state.messages == 120


async def test_another_streams_acknowledgement_is_none(server: Nats) -> None:
    """A service that passes for a stream: with `stream` set, it is not believed."""
    client = await nats.connect(f"nats://127.0.0.1:{server.port}")

    async def answer(message: Msg) -> None:
        await client.publish(message.reply, b'{"stream":"THEIRS","seq":5}')

    await client.subscribe("posing", cb=answer)
    await client.flush()
    [outcome] = await published(f"nats://127.0.0.1:{server.port}?stream=OWN", Message.new("posing", "a"), seconds=1.0)
    assert isinstance(outcome, TargetUnavailable)
    await client.close()


def test_declaring_needs_a_stream() -> None:
    with pytest.raises(InvalidSetting, match="give its name and its subjects"):
        NatsBroker("nats://host?declare=true")
