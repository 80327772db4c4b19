"""A program that commits messages at a steady rate, and prints the time of each commit, by the machine's clock."""

from __future__ import annotations

import json
import sys
import time

from sqlalchemy import create_engine

from postroom.outbox import Outbox
from postroom.store.connections.urls import resolve


def main() -> None:
    """Run with the settings given as JSON in the only argument."""
    given = json.loads(sys.argv[1])
    cdc = given["cdc"]
    outbox = Outbox(schema=given["schema"], table_prefix=given["prefix"], notify=not cdc, brokers=[], cdc=cdc)
    committed: list[float] = []
    with create_engine(resolve(given["url"])).connect() as connection:
        start = time.monotonic()
        for number in range(given["count"]):
            time.sleep(max(0.0, start + number / given["rate"] - time.monotonic()))
            outbox.add(connection, "bench", str(number).encode())
            committed.append(time.monotonic())
            connection.commit()
    sys.stdout.write(json.dumps(committed))


if __name__ == "__main__":
    main()
