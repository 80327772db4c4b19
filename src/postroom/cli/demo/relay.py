"""``python -m postroom.cli.demo.relay DIRECTORY NAME``: one of the demo's relays. It ends with its standard input."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from postroom import Message, Relay, RetryPolicy
from postroom.cli.demo.broker import Broker
from postroom.cli.demo.checkout import checkout_of
from postroom.cli.demo.workspace import database_url

GRACE = 5.0
"""Seconds that it has to stop."""


def relay_of(directory: Path, name: str) -> Relay:
    """The relay. Its leases and pauses come from the environment."""
    broker = Broker(directory)

    def publish(messages: Sequence[Message]) -> list[dict[str, Any]]:
        return broker.publish(messages, name)

    return Relay(
        database_url(directory),
        publish,
        brokers={},
        worker=name,
        policy=RetryPolicy.table([0.5], max_attempts=3),
        sagas=[checkout_of(directory)],
    )


def stop_with_the_demo(relay: Relay) -> None:
    """Stop when the demo closes the pipe, or dies."""
    while os.read(0, 1):  # not sys.stdin, whose lock a thread must not hold when Python ends
        pass
    relay.stop()
    time.sleep(GRACE)
    os._exit(1)


def main() -> None:
    """Deliver until the demo has ended."""
    relay = relay_of(Path(sys.argv[1]), sys.argv[2])
    threading.Thread(target=stop_with_the_demo, args=(relay,), daemon=True).start()
    asyncio.run(relay.run())


if __name__ == "__main__":
    main()
