"""A process that receives messages, names them, and acknowledges none: `URL CONSUMER TOPIC HOW-MANY`."""

from __future__ import annotations

import asyncio
import sys

from postroom.sources.urls import open_source


async def main(url: str, consumer: str, topic: str, number: str) -> None:
    """Receive, and wait to be killed."""
    source = open_source(url, consumer, [topic])
    found = 0
    while True:
        for one in await source.receive(int(number) - found or 1, 1.0):
            found += 1
            sys.stdout.write(f"{one.message.id}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
