"""The relay when its database or its broker goes away, and when relays come and go: it goes on by itself."""

from __future__ import annotations

import signal
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from postroom.rules.ordering import LANES
from tests.crash.places import Told
from tests.crash.processes import dismiss, wait_until
from tests.crash.relay_worker import relay
from tests.crash.shop import Shop, check
from tests.crash.stream import produce
from tests.services.databases import need
from tests.services.postgresql import PostgreSQL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.crash.places import Places
    from tests.crash.processes import Processes, Worker

BOTH = pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
OUTAGES = 2


@pytest.fixture
def server() -> Iterator[PostgreSQL]:
    """A server that the test may kill."""
    need(PostgreSQL)
    with closing(PostgreSQL()) as server:
        server.start()
        server.create_database("shop")
        yield server


def test_R_5_relays_go_on_when_postgresql_is_killed_and_back(
    server: PostgreSQL, processes: Processes, places: Places
) -> None:
    with closing(Shop(server.url("shop"))) as shop:
        producer = processes.start("producer", produce, shop.url, places)
        relays = [processes.start(name, relay, shop.url, places) for name in ("one", "two")]
        for number in range(OUTAGES):
            settled = shop.status().sent
            wait_until(lambda: shop.status().sent > settled + 100, "it is delivered")  # noqa: B023 - called at once
            server.stop(kill=True)
            for one in relays:
                wait_until(lambda: len(places.said(one.name)) > 2 * number, "it says that the database is gone")  # noqa: B023 - as above
            server.start()
            for one in relays:
                wait_until(lambda: len(places.said(one.name)) > 2 * number + 1, "it says that it is back")  # noqa: B023 - as above
        places.enough.touch()
        producer.join()
        wait_until(lambda: not shop.unsent(), "all is sent")
        dismiss(*relays)
        check(shop, places)
    for one in relays:
        assert places.said(one.name) == [Told("database", reachable=False), Told("database", reachable=True)] * OUTAGES


@BOTH
def test_R_4_a_rolling_restart_loses_nothing_and_shares_the_lanes_again(
    shop: Shop, processes: Processes, places: Places, kind: str
) -> None:
    del kind
    producer = processes.start("producer", produce, shop.url, places)
    relays = [processes.start(f"relay-{number}", relay, shop.url, places) for number in range(2)]
    wait_until(lambda: shared_out(shop, relays), "both have their share")
    for number in range(2, 5):
        oldest = relays.pop(0)
        dismiss(oldest)
        assert shop.leases_of(oldest.name) == 0
        assert oldest.name not in shop.workers()
        wait_until(lambda: shared_out(shop, relays), "the other takes over its share")
        relays.append(processes.start(f"relay-{number}", relay, shop.url, places))
        wait_until(lambda: shared_out(shop, relays), "the new one gets its share")
    victim = relays.pop(0)
    victim.signal(signal.SIGKILL)
    wait_until(lambda: shared_out(shop, relays), "the share of one that was killed is taken over")
    places.enough.touch()
    producer.join()
    wait_until(lambda: not shop.unsent(), "all is sent")
    dismiss(*relays)
    check(shop, places)


@BOTH
def test_R_5_a_broker_that_is_down_burns_no_attempt_and_is_said_once(
    shop: Shop, processes: Processes, places: Places, kind: str
) -> None:
    del kind
    producer = processes.start("producer", produce, shop.url, places)
    stopped, kept = (processes.start(name, relay, shop.url, places) for name in ("stopped", "kept"))
    wait_until(lambda: {line.sender for line in places.lines()} == {"stopped", "kept"}, "both deliver")
    places.down.touch()
    for one in (stopped, kept):
        wait_until(lambda: places.said(one.name), f"{one.name} finds out")  # noqa: B023 - called at once
    dismiss(stopped)
    assert shop.leases_of("stopped") == 0
    waiting = shop.unsent()
    wait_until(lambda: shop.unsent() > waiting + 100, "messages are added all the same")
    assert shop.select("SELECT max(attempts) FROM {delivery}") == [(0,)]
    places.down.unlink()
    places.enough.touch()
    producer.join()
    wait_until(lambda: not shop.unsent(), "all is sent")
    dismiss(kept)
    assert [told.reachable for told in places.said("kept")] == [False, True]
    assert [told.reachable for told in places.said("stopped")] == [False]
    assert shop.select("SELECT max(attempts) FROM {receipt}") == [(0,)]
    check(shop, places)


def shared_out(shop: Shop, relays: list[Worker]) -> bool:
    """Say whether each holds its share of the lanes, and nobody else any."""
    return shop.lanes() == {one.name: LANES // len(relays) for one in relays}
