"""Look at a webhook's receiver: can it be reached. Nothing is posted to it."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from postroom.brokers import http as publisher  # first: it says which extra is missing
from postroom.brokers.inspection.port import Inspector
from postroom.brokers.webhook_hosts import lookup
from postroom.errors import BrokerUnavailable
from postroom.rules.checks.brokers import BrokerFacts

if TYPE_CHECKING:
    from collections.abc import Sequence


class HttpInspector(Inspector):
    """Connects, and closes the connection."""

    def __init__(self, url: str) -> None:
        publisher.HttpBroker(url)  # which checks the URL
        parsed, self._options = publisher.parsed(url)
        super().__init__(parsed, self._options)

    async def facts(self, topics: Sequence[str], timeout: float) -> BrokerFacts:  # noqa: ASYNC109 - the port's
        """As the port says."""
        del topics
        [(host, port)] = self.url.hosts
        began = time.monotonic()
        addresses = await lookup(host, port, timeout, private=self._options.private)
        try:
            async with asyncio.timeout(timeout):
                _, writer = await asyncio.open_connection(addresses[0], port)
        except TimeoutError:
            raise BrokerUnavailable(f"{self.name} does not answer within {timeout:g} s") from None
        except OSError as error:
            raise BrokerUnavailable(f"{self.name}: {error}") from error
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        return BrokerFacts(seconds=time.monotonic() - began)
