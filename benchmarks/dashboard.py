"""How long the dashboard's pages take the server, on a PostgreSQL with many messages.

``python -m benchmarks dashboard [--messages N] [--dead N] [--json]``. Fills a database of its own, then asks for each
page several times with nothing cached, and prints the median and the slowest. A page must take less than 200 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from contextlib import closing
from statistics import median
from typing import TYPE_CHECKING, Any

import httpx
from sqlalchemy import create_engine, text

from benchmarks.rounds import create_tables
from postroom import Admin
from postroom.store.connections.urls import resolve
from postroom.web import Dashboard
from tests.services.postgresql import PostgreSQL

if TYPE_CHECKING:
    from collections.abc import Sequence

MESSAGES, DEAD = 1_000_000, 100_000
ROUNDS = 5
LIMIT_MS = 200
TOKEN = "of a benchmark that nobody else sees"  # noqa: S105 - its database is gone afterwards
FILL = (
    """INSERT INTO postroom.outbox (id, topic, type, ordering_key, payload, content_type, headers, created_at)
    SELECT gen_random_uuid(), 'topic.' || n % 40, 'Type' || n % 7, CASE WHEN n % 3 = 0 THEN 'key-' || n % 50000 END,
        convert_to('{"order": ' || n || '}', 'UTF8'), 'application/json', '{}',
        now() - interval '2 days' + n * interval '0.1 seconds'
    FROM generate_series(1, :messages) n""",
    """INSERT INTO postroom.outbox_receipt (position, outcome, sent_at, attempts)
    SELECT position, 'sent', created_at + interval '1 second', 0 FROM postroom.outbox
    WHERE position % (:messages / :dead) <> 0""",
    """INSERT INTO postroom.outbox_delivery (state, position, attempts, failed_at, error_code, error_message)
    SELECT 3, position, 6, created_at + interval '5 minutes',
        (ARRAY['TIMEOUT', 'INVALID_TARGET', 'CONNECTION', 'REFUSED'])[1 + position / 10 % 4],
        'account ' || position || ' of "customer ' || position % 900 || '" is ' ||
        (ARRAY['closed', 'blocked', 'unknown'])[1 + position / 10 % 3]
    FROM postroom.outbox WHERE position % (:messages / :dead) = 0""",
    "ANALYZE",
)


def main(arguments: Sequence[str] = ()) -> None:
    """Fill, measure, print. Exits with 1 if a page is slow."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks dashboard")
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--dead", type=int, default=DEAD)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    with closing(PostgreSQL()) as server:
        server.start()
        url = server.url("postgres")
        create_tables(url)
        _fill(url, given.messages, given.dead)
        figures = asyncio.run(_measure(url))
    if given.json:
        print(json.dumps(figures))
    else:
        print(f"{given.messages:,} messages, {given.dead:,} of them dead; milliseconds of {ROUNDS} requests")
        for page, (middle, slowest) in figures.items():
            print(f"{middle:8.1f} {slowest:8.1f}  {page}{'   SLOW' if middle > LIMIT_MS else ''}")
    if any(middle > LIMIT_MS for middle, _ in figures.values()):
        sys.exit(1)


def _fill(url: str, messages: int, dead: int) -> None:
    engine = create_engine(resolve(url))
    for statement in FILL:
        with engine.begin() as connection:
            connection.execute(text(statement), {"messages": messages, "dead": dead} if ":" in statement else {})
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE"))
    engine.dispose()


async def _measure(url: str) -> dict[str, tuple[float, float]]:
    """The median and the slowest of each page, by its address."""
    with Admin(url) as admin:
        [letter] = admin.dead_letters(limit=1)
    pages = [
        "",
        "?range=7d",
        *("messages", "messages?state=dead", "messages?state=sent", "messages?state=pending", "messages?topic=topic.7"),
        *("messages?key=key-7", "messages?state=dead&topic=topic.20", "messages?state=dead&error=blocked"),
        *("messages?state=dead&payload=order", "messages?payload=nowhere", "messages?type=Type3&since=1h"),
        *(
            "dead",
            "dead?topic=topic.20",
            "sagas",
            "transactions",
            "lookup?message=7",
            "lookup?key=7",
            "audit",
            f"message?id={letter.id}",
        ),
    ]
    dashboard = Dashboard(url, token=TOKEN)
    figures: dict[str, tuple[float, float]] = {}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(dashboard), base_url="http://here/") as client:
        await client.post("login", data={"token": TOKEN}, headers={"sec-fetch-site": "same-origin"})
        for page in pages:
            figures[page or "overview"] = await _page(client, dashboard, page)
    await dashboard.close()
    return figures


async def _page(client: httpx.AsyncClient, dashboard: Any, page: str) -> tuple[float, float]:
    taken = []
    for _ in range(ROUNDS):
        dashboard._database.forget_shared()  # noqa: SLF001 - what all tabs share is not what is measured
        start = time.perf_counter()
        answer = await client.get(page)
        taken.append((time.perf_counter() - start) * 1000)
        if answer.status_code != httpx.codes.OK:
            raise RuntimeError(f"{page} answers {answer.status_code}")
    return median(taken), max(taken)
