"""What is Redis's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import redis.asyncio as redis

from postroom import Message
from postroom.brokers.port import Accepted, Outcome, TargetUnavailable, Unreached
from postroom.brokers.redis import RedisBroker
from postroom.errors import BrokerUnavailable, InvalidSetting
from tests.services.databases import need
from tests.services.redis import Redis

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture(scope="module")
def url() -> str:
    return f"redis://127.0.0.1:{need(Redis).port}"


@pytest.fixture
async def client(url: str) -> AsyncIterator[redis.Redis]:
    async with redis.Redis.from_url(url) as client:
        yield client


async def published(url: str, *messages: Message) -> list[Outcome]:
    broker = RedisBroker(url)
    try:
        return list(await broker.publish(messages, 10.0))
    finally:
        await broker.close()


async def test_a_stream_is_declared_named_and_cut(url: str, client: redis.Redis) -> None:
    messages = [Message.new("cut", {"n": n}) for n in range(500)]
    outcomes = await published(f"{url}?declare=true&prefix=shop:&maxlen=100", *messages)
    assert {type(outcome) for outcome in outcomes} == {Accepted}
    assert 100 <= await client.xlen("shop:cut") < 500


async def test_a_database_is_chosen(url: str) -> None:
    await published(f"{url}/3?declare=true", Message.new("three", "a"))
    async with redis.Redis.from_url(f"{url}/3") as third:
        assert await third.xlen("three") == 1


async def test_too_few_replicas_burn_no_attempt(url: str) -> None:
    broker = RedisBroker(f"{url}?declare=true&replicas=1")
    outcomes = await broker.publish([Message.new("replicated", "a")], 1.0)
    await broker.close()
    assert outcomes == [Unreached("too few replicas have it")]


async def test_what_the_server_refuses_burns_no_attempt(url: str, client: redis.Redis) -> None:
    await client.set("not-a-stream", "a")
    [outcome] = await published(f"{url}?declare=true", Message.new("not-a-stream", "a"))
    assert isinstance(outcome, TargetUnavailable)
    assert "WRONGTYPE" in outcome.reason


async def test_R_9_a_stream_that_is_forbidden_is_the_topics_fault(url: str, client: redis.Redis) -> None:
    await client.execute_command("ACL", "SETUSER", "default", "resetkeys", "~permitted")  # type: ignore[no-untyped-call]  # the client has no type here
    try:
        outcomes = await published(f"{url}?declare=true", Message.new("forbidden", "a"), Message.new("permitted", "b"))
    finally:
        await client.execute_command("ACL", "SETUSER", "default", "allkeys")  # type: ignore[no-untyped-call]  # as above
    assert [type(one) for one in outcomes] == [TargetUnavailable, Accepted]


@pytest.mark.parametrize(
    ("trouble", "back", "reason"),
    [
        (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0"), "maxmemory"),
        (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE"), "read only"),
        (("ACL", "SETUSER", "default", "-xadd"), ("ACL", "SETUSER", "default", "+xadd"), "permissions"),
    ],
)
async def test_L_9_a_server_that_takes_nothing_burns_no_attempt(
    url: str, client: redis.Redis, trouble: tuple[str, ...], back: tuple[str, ...], reason: str
) -> None:
    await client.execute_command(*trouble)  # type: ignore[no-untyped-call]  # the client has no type here
    try:
        [outcome] = await published(f"{url}?declare=true", Message.new("refused", "a"))
    finally:
        await client.execute_command(*back)  # type: ignore[no-untyped-call]  # as above
    assert isinstance(outcome, Unreached)
    assert reason in outcome.reason
    assert isinstance((await published(f"{url}?declare=true", Message.new("refused", "a")))[0], Accepted)


async def test_a_password_that_is_missing_burns_no_attempt(url: str, client: redis.Redis) -> None:
    await client.config_set("requirepass", "secret")
    try:
        with pytest.raises(BrokerUnavailable, match=r"(?i)auth"):
            await published(url, Message.new("t", "a"))
        good = url.replace("redis://", "redis://:secret@")
        assert isinstance((await published(f"{good}?declare=true", Message.new("t", "a")))[0], Accepted)
    finally:
        await client.config_set("requirepass", "")


async def test_a_wrong_password_is_not_shown(url: str) -> None:
    with pytest.raises(BrokerUnavailable) as caught:
        await published(url.replace("redis://", "redis://shop:secret@"), Message.new("t", "a"))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(("url", "problem"), [("redis://a,b", "one host"), ("redis://a/b", "number of a database")])
def test_a_url_that_makes_no_sense_is_refused(url: str, problem: str) -> None:
    with pytest.raises(InvalidSetting, match=problem):
        RedisBroker(url)
