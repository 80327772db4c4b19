"""Look at Redis: does it write everything to disk, and does it forget streams when its memory is full."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from postroom.brokers import redis as publisher  # first: it says which extra is missing
from postroom.brokers import urls
from postroom.brokers.inspection.port import Inspector
from postroom.errors import BrokerUnavailable
from postroom.rules.checks.brokers import BrokerFacts, Place

# isort: split
from redis.exceptions import RedisError, ResponseError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.asyncio import Redis

STREAM = b"stream"
NOTHING = b"none"


class RedisInspector(Inspector):
    """Reads INFO, which every user may, and CONFIG, which some may not."""

    def __init__(self, url: str) -> None:
        parsed, self._options = urls.parse(url, publisher.PORTS, publisher.RedisOptions)
        super().__init__(parsed, self._options)
        self._url = url

    async def facts(self, topics: Sequence[str], timeout: float) -> BrokerFacts:  # noqa: ASYNC109 - the port's
        """As the port says."""
        broker = publisher.RedisBroker(self._url)
        try:
            async with asyncio.timeout(timeout):
                return await self._facts(broker.client, topics)
        except TimeoutError:
            raise BrokerUnavailable(f"{self.name} does not answer within {timeout:g} s") from None
        except (RedisError, OSError) as error:
            raise BrokerUnavailable(f"{self.name}: {error}") from error
        finally:
            await broker.close()

    async def _facts(self, client: Redis, topics: Sequence[str]) -> BrokerFacts:
        began = time.monotonic()
        await client.ping()
        seconds = time.monotonic() - began
        info: dict[str, Any] = await client.info()
        fsync = await _setting(client, "appendfsync")
        largest = await _setting(client, "proto-max-bulk-len")
        weakness, remedy = "", ""
        if not info.get("aof_enabled"):
            weakness = "appendonly is off: a crash loses what came since the last snapshot"
            remedy = "CONFIG SET appendonly yes, and in redis.conf, with appendfsync always"
        elif fsync == "no":
            weakness = "appendfsync is no: a crash of the machine loses what the system had not written"
            remedy = "CONFIG SET appendfsync always, and in redis.conf"
        return BrokerFacts(
            seconds=seconds,
            version=f"Redis {info.get('redis_version', '')}",
            places=[await self._place(client, topic) for topic in topics],
            max_bytes=min(self._options.max_bytes, int(largest)) if largest else self._options.max_bytes,
            limit_name="proto-max-bulk-len" if largest else "max_bytes",
            weakness=weakness,
            remedy=remedy,
            eviction=str(info.get("maxmemory_policy", "noeviction")),
            memory_limit=int(info.get("maxmemory", 0)),
            figures={"aof_enabled": bool(info.get("aof_enabled")), "appendfsync": fsync},
        )

    async def _place(self, client: Redis, topic: str) -> Place:
        name = f"{self._options.prefix}{topic}"
        try:
            kind = await client.type(name)
        except ResponseError as error:
            return Place(topic, unknown=str(error))
        kind = kind if isinstance(kind, bytes) else str(kind).encode()
        if kind == STREAM or (kind == NOTHING and self._options.declare):
            return Place(topic, name)
        return Place(topic, name, missing="there is no such stream" if kind == NOTHING else f"it is a {kind.decode()}")


async def _setting(client: Redis, name: str) -> str:
    """A setting; empty if this user may not read it."""
    try:
        found = await client.config_get(name)
    except ResponseError:
        return ""
    return str(found.get(name, ""))
