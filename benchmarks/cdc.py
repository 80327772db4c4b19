"""The stream beside the table: what adding and sending a message costs, on PostgreSQL with fsync.

``python -m benchmarks cdc [--messages N] [--settled N] [--rounds N]``. In each round both ways take turns: messages are
added one by one with a business row, by four connections; then a backlog is drained, as it is, while another session
holds a snapshot, and while one holds an open transaction that has written. `--settled` messages lie in the tables.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import time
from typing import TYPE_CHECKING

import asyncpg
import psycopg

from benchmarks.costs import HELD, Costs, ground, holding
from benchmarks.server_costs import spent
from postroom import Outbox
from postroom.bench import drains
from postroom.bench.scratch import PAYLOAD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.bench.scratch import Scratch
    from tests.services.postgresql import PostgreSQL

CONNECTIONS = 4
KEYS = 10_000
SETTLED = (
    """
    INSERT INTO postroom_bench.outbox (position, id, topic, payload, content_type, digest, streamed)
    OVERRIDING SYSTEM VALUE
    SELECT n, uuidv7(), 'bench', convert_to(repeat('x', 200), 'UTF8'), 'application/octet-stream',
        md5(n::text) || md5(n::text), true
    FROM generate_series(1, %(count)s::bigint) n""",
    """
    INSERT INTO postroom_bench.outbox_receipt (position, outcome)
    SELECT n, 'sent' FROM generate_series(1, %(count)s::bigint) n""",
    "SELECT setval(pg_get_serial_sequence('postroom_bench.outbox', 'position'), %(count)s)",
)
"""Without asking for the positions, and with ids in their order: ten million take minutes, not hours."""


def main(arguments: Sequence[str] = ()) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks cdc")
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--adds", type=int, default=8_000)
    parser.add_argument("--settled", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    costs = Costs()
    with ground() as there, asyncio.Runner() as runner:
        server, place = there.server, there.place
        place.fill(0)
        if options.settled:
            with psycopg.connect(place.url) as connection:
                for statement in SETTLED:
                    connection.execute(statement, {"count": options.settled})
            with psycopg.connect(
                place.url, autocommit=True
            ) as connection:  # else that would fall into the first rounds
                connection.execute("VACUUM (ANALYZE) postroom_bench.outbox, postroom_bench.outbox_receipt")
                connection.execute("CHECKPOINT")
        for _ in range(options.rounds):
            for cdc in (False, True):
                _adds(server, place, runner, costs, options.adds, cdc=cdc)
            for held in HELD:
                for keys in (None, KEYS):
                    for cdc in (False, True):
                        _drain(server, place, runner, costs, options, keys=keys, cdc=cdc, held=held)
    costs.show()


def _adds(server: PostgreSQL, place: Scratch, runner: asyncio.Runner, costs: Costs, count: int, *, cdc: bool) -> None:
    name = "cdc" if cdc else "table"
    if cdc:
        runner.run(drains.open_stream(place))
    for with_message in (False, True):
        before, started = spent(server, place.url), time.perf_counter()
        runner.run(_add_all(place, count, cdc=cdc, with_message=with_message))
        seconds, cost = time.perf_counter() - started, spent(server, place.url).since(before)
        costs.note(
            f"add with a business row, {name}" if with_message else "a business row alone",
            per_second=count / seconds,
            server_us=cost.processor / count * 1e6,
            wal_bytes=cost.wal / count,
        )
    runner.run(drains.open_stream(place) if cdc else drains.drain(place, count // CONNECTIONS * CONNECTIONS))


async def _add_all(place: Scratch, count: int, *, cdc: bool, with_message: bool) -> None:
    outbox = Outbox(schema=place.schema, brokers=[], cdc=cdc)

    async def add(share: int) -> None:
        connection = await asyncpg.connect(place.url)
        for number in range(share):
            async with connection.transaction():
                await connection.execute("INSERT INTO business (what) VALUES ($1)", "ordered")
                if with_message:
                    await outbox.aadd(connection, "bench", PAYLOAD, key=str(number % KEYS))
        await connection.close()

    await asyncio.gather(*(add(count // CONNECTIONS) for _ in range(CONNECTIONS)))


def _drain(
    server: PostgreSQL,
    place: Scratch,
    runner: asyncio.Runner,
    costs: Costs,
    options: argparse.Namespace,
    *,
    keys: int | None,
    cdc: bool,
    held: str,
) -> None:
    name = f"drain, {'cdc' if cdc else 'table'}, {'10,000 keys' if keys else 'no key'}{', ' + held if held else ''}"
    if cdc:
        runner.run(drains.open_stream(place))
    with holding(place.url, held):
        place.fill_more(options.messages, keys, streamed=cdc)
        gc.collect()
        before, processor = spent(server, place.url), time.process_time()
        rate = runner.run(drains.drain(place, options.messages, cdc=cdc))
        cost, own = spent(server, place.url).since(before), time.process_time() - processor
    costs.note(
        name,
        per_second=rate,
        python_us=own / options.messages * 1e6,
        server_us=cost.processor / options.messages * 1e6,
        wal_bytes=cost.wal / options.messages,
    )


if __name__ == "__main__":
    main()
