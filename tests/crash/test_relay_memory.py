"""What is in flight is bounded: a relay stays small whatever waits for it."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import psutil
import pytest

from postroom.rules.ordering import LANES, NO_LANE
from tests.crash.processes import wait_until
from tests.crash.program import Program

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.crash.places import Places
    from tests.crash.shop import Shop

MEGABYTE = 1024 * 1024
MOST = 200 * MEGABYTE

pytestmark = pytest.mark.parametrize("kind", ["postgresql"])


def fill(shop: Shop, count: int, size: int) -> None:
    """Commit so many messages of so many bytes, half of them with a key."""
    key = "CASE n % 2 WHEN 0 THEN 'key-' || n % 100 END"
    hashed = "('x' || left(md5(convert_to(ordering_key, 'UTF8')), 16))::bit(64)::bigint"
    shop.select(
        f"""
        WITH added AS (
            INSERT INTO {{outbox}} (id, topic, ordering_key, payload, content_type)
            SELECT gen_random_uuid(), 'orders.created', {key}, convert_to(repeat('x', {size}), 'UTF8'), 'text/plain'
            FROM generate_series(1, {count}) n
            RETURNING position, {hashed} AS key_hash
        )
        INSERT INTO {{delivery}} (lane, position, key_hash, size)
        SELECT coalesce(key_hash & {LANES - 1}, {NO_LANE}), position, key_hash, {size} FROM added"""
    )


def largest(program: Program, until: Callable[[], bool]) -> int:
    """The most memory that was resident until the condition came true."""
    process = psutil.Process(program.process.pid)
    most = 0

    def measured() -> bool:
        nonlocal most
        most = max(most, process.memory_info().rss)
        return until()

    wait_until(measured, "it delivers")
    return most


def test_large_messages_do_not_fill_the_memory(shop: Shop, places: Places, kind: str) -> None:
    del kind
    fill(shop, 300, 1_000_000)
    # Leases that outlast a busy machine: each that ends brings its messages once more.
    leases = "--lock-lease-sec", "60", "--lane-lease-sec", "60"
    with Program(places, shop.url, *leases, SHOP_PACE="0.01", SHOP_LITTER="yes") as program:
        assert largest(program, lambda: not shop.unsent()) < MOST
        program.signal(signal.SIGTERM)
        assert program.ended() == 0
    assert len(places.lines()) == 300


def test_many_messages_do_not_fill_the_memory(shop: Shop, places: Places, kind: str) -> None:
    del kind
    fill(shop, 200_000, 100)
    with Program(places, shop.url) as program:
        wait_until(places.broker.exists, "it has begun")
        assert largest(program, lambda: places.broker.stat().st_size > MEGABYTE) < MOST
        program.signal(signal.SIGTERM)
        assert program.ended() == 0
    assert shop.status().sending == 0
