"""Look at NATS: does a stream accept each subject, on files, and for how long does it recognise repetitions."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from postroom.brokers import nats as publisher  # first: it says which extra is missing
from postroom.brokers import urls
from postroom.brokers.inspection.port import Inspector
from postroom.errors import BrokerUnavailable
from postroom.rules.checks.brokers import BrokerFacts, Place

# isort: split
import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.js.api import StorageType, StreamInfo

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from nats.js import JetStreamContext

STREAM_SHARE = 0.25
"""The share of the time for one question about a stream."""
CLOSING = 0.5
"""Seconds for closing a connection."""


class NatsInspector(Inspector):
    """Asks JetStream for the streams."""

    greets_first = True

    def __init__(self, url: str) -> None:
        self._broker = publisher.NatsBroker(url)
        super().__init__(*urls.parse(url, publisher.PORTS, publisher.NatsOptions))

    async def facts(self, topics: Sequence[str], timeout: float) -> BrokerFacts:  # noqa: ASYNC109 - the port's
        """As the port says."""
        began = time.monotonic()
        async with self._connected(timeout) as client:
            seconds = time.monotonic() - began
            context = client.jetstream(timeout=timeout * STREAM_SHARE)
            return BrokerFacts(
                seconds=seconds,
                version=f"NATS {client._server_info.get('version', '')}",  # noqa: SLF001 - it has no other place for it
                places=await self._places(context, topics),
                max_bytes=client.max_payload,
                limit_name="max_payload",
                deduplicates=True,
            )

    @property
    def has_secret(self) -> bool:
        """A user without a password is a token."""
        return self.url.user is not None

    async def _places(self, context: JetStreamContext, topics: Sequence[str]) -> list[Place]:
        places: list[Place] = []
        for topic in topics:
            try:
                places.append(await self._place(context, topic))
            except TimeoutError:  # as when the user may not ask: then it is the same for all
                silent = "JetStream does not answer questions of this user"
                return [*places, *(Place(one, unknown=silent) for one in topics[len(places) :])]
        return places

    async def _place(self, context: JetStreamContext, topic: str) -> Place:
        expected = self._broker.options.stream
        try:
            name = expected or await context.find_stream_name_by_subject(topic)
            return _place(topic, await context.stream_info(name))
        except nats.js.errors.NotFoundError:
            return Place(topic, missing=f"there is no stream {expected or 'that accepts this subject'}")
        except nats.js.errors.ServiceUnavailableError:
            return Place(topic, missing="this server has no JetStream")
        except TimeoutError:
            raise
        except nats.errors.Error as error:
            return Place(topic, unknown=f"its stream cannot be read: {str(error) or type(error).__name__}")

    @asynccontextmanager
    async def _connected(self, timeout: float) -> AsyncIterator[Client]:  # noqa: ASYNC109 - the port's
        client = Client()
        reasons: list[str] = []

        async def failed(error: Exception) -> None:
            reasons.append(str(error) or type(error).__name__)

        try:
            async with asyncio.timeout(timeout):
                await self._connect(client, failed, reasons)
            yield client
        except TimeoutError:
            raise BrokerUnavailable(f"{self.name} does not answer within {timeout:g} s") from None
        except (nats.errors.Error, OSError) as error:
            reason = reasons[-1] if reasons else str(error) or type(error).__name__
            raise BrokerUnavailable(f"{self.name}: {reason}") from error
        finally:
            with suppress(Exception):  # nobody needs it any more, and it may wait for a server that is silent
                async with asyncio.timeout(CLOSING):
                    await client.close()

    async def _connect(
        self, client: Client, failed: Callable[[Exception], Awaitable[None]], reasons: list[str]
    ) -> None:
        *others, last = self.url.hosts
        for host, port in others:
            try:
                await client.connect(**self._broker.connection_settings(host, port), error_cb=failed)
                return
            except (nats.errors.Error, OSError):
                reasons.clear()
        await client.connect(**self._broker.connection_settings(*last), error_cb=failed)


def _place(topic: str, info: StreamInfo) -> Place:
    config = info.config
    name = f"stream {config.name}"
    in_memory = config.storage == StorageType.MEMORY
    return Place(
        topic,
        name,
        weakness="it is kept in memory" if in_memory else "",
        remedy=f"make the stream {config.name} anew, with file storage" if in_memory else "",
        dedup_seconds=float(config.duplicate_window or 0),
        max_bytes=config.max_msg_size if (config.max_msg_size or -1) > 0 else None,
        replicas=config.num_replicas,
    )
