"""Relays that are killed or paused at the worst places: what they held is delivered by others, once it is theirs."""

from __future__ import annotations

import signal
from functools import partial
from typing import TYPE_CHECKING

import psycopg
import pytest

from postroom import Message
from tests.crash.processes import dismiss, wait_until
from tests.crash.relay_worker import Fate, Point, relay
from tests.crash.shop import check
from tests.crash.stream import produce

if TYPE_CHECKING:
    from tests.crash.places import Places
    from tests.crash.processes import Processes, Worker
    from tests.crash.shop import Shop

BOTH = pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
KEYED = pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "unkeyed"])


def orders(count: int, *, keyed: bool) -> list[Message]:
    return [Message.new("orders.created", {"number": n}, key=f"key-{n % 20}" if keyed else None) for n in range(count)]


@BOTH
def test_L_4_what_a_killed_relay_held_is_delivered_wherever_it_died(
    shop: Shop, processes: Processes, places: Places, kind: str
) -> None:
    del kind
    processes.start("producer", produce, shop.url, places)
    steady = processes.start("steady", relay, shop.url, places)
    for number, (point, keyed) in enumerate((point, keyed) for point in Point for keyed in (True, False)):
        victim = processes.start(f"victim-{number}", relay, shop.url, places, Fate(signal.SIGKILL, point, keyed))
        wait_until(victim.ended, f"a relay dies {point}")
        assert victim.killed()
    places.enough.touch()
    wait_until(lambda: not shop.unsent(), "all is sent")
    dismiss(steady)
    check(shop, places)


def paused(processes: Processes, shop: Shop, places: Places, fate: Fate) -> Worker:
    """A relay that is paused until its leases have ended."""
    zombie = processes.start("zombie", relay, shop.url, places, fate)
    wait_until(zombie.stopped, "it is paused")
    wait_until(lambda: not shop.leases_of("zombie"), "its leases end")
    return zombie


@BOTH
@KEYED
def test_L_5_a_relay_that_wakes_after_its_lease_sends_nothing(
    shop: Shop, processes: Processes, places: Places, kind: str, *, keyed: bool
) -> None:
    del kind
    shop.commit(*orders(50, keyed=keyed))
    zombie = paused(processes, shop, places, Fate(signal.SIGSTOP, Point.CLAIMED, keyed))
    assert places.lines() == []
    other = processes.start("other", relay, shop.url, places)
    wait_until(lambda: not shop.unsent(), "another sends all")
    zombie.signal(signal.SIGCONT)
    wait_until(shop.conflicts, "it finds that it has lost them")
    dismiss(zombie, other)
    assert {actor for actor, _, _ in shop.conflicts()} == {"zombie"}
    assert {line.sender for line in places.lines()} == {"other"}
    check(shop, places)


@BOTH
@KEYED
def test_L_6_a_settle_after_the_lease_is_refused_and_audited_with_what_was_found(
    shop: Shop, processes: Processes, places: Places, kind: str, *, keyed: bool
) -> None:
    del kind
    shop.commit(*orders(50, keyed=keyed))
    zombie = paused(processes, shop, places, Fate(signal.SIGSTOP, Point.PUBLISHED, keyed))
    assert places.lines()
    other = processes.start("other", relay, shop.url, places)
    wait_until(lambda: not shop.unsent(), "another sends all")
    zombie.signal(signal.SIGCONT)
    wait_until(shop.conflicts, "it finds that it has lost them")
    dismiss(zombie, other)
    found = {(actor, details["status"], details["same_claim"]) for actor, _, details in shop.conflicts()}
    assert found == {("zombie", "sent", False)}
    check(shop, places)


@BOTH
@KEYED
def test_L_6_the_audit_names_who_has_the_message_now(
    shop: Shop, processes: Processes, places: Places, kind: str, *, keyed: bool
) -> None:
    del kind
    shop.commit(*orders(1, keyed=keyed))
    zombie = paused(processes, shop, places, Fate(signal.SIGSTOP, Point.PUBLISHED, keyed))
    places.stuck.touch()
    other = processes.start("other", partial(relay, broker_timeout_ms=60_000), shop.url, places)
    wait_until(lambda: len(places.lines()) == 2, "another sends it again, and gets no answer")
    zombie.signal(signal.SIGCONT)
    wait_until(shop.conflicts, "it finds that it has lost it")
    places.stuck.unlink()
    wait_until(lambda: not shop.unsent(), "the other settles it")
    dismiss(zombie, other)
    [(_, _, found)] = shop.conflicts()
    assert found == {"status": "sending", "owner": "other", "same_claim": False}
    check(shop, places)


@pytest.mark.parametrize("kind", ["postgresql"])
@KEYED
def test_L_3_a_settle_that_commits_after_its_relay_has_died_counts(
    shop: Shop, processes: Processes, places: Places, kind: str, *, keyed: bool
) -> None:
    del kind
    shop.commit(*orders(1, keyed=keyed))
    places.stuck.touch()
    patient = partial(relay, lock_lease_sec=60, lane_lease_sec=60, broker_timeout_ms=60_000)
    victim = processes.start("victim", patient, shop.url, places)
    wait_until(places.lines, "it is sent")
    with psycopg.connect(shop.url) as holder:
        holder.execute("SELECT FROM postroom.outbox_delivery FOR UPDATE")
        places.stuck.unlink()
        wait_until(lambda: blocked(holder), "the settle waits for the row")
        victim.signal(signal.SIGKILL)
        wait_until(victim.killed, "the relay is dead")
    wait_until(lambda: not shop.unsent(), "the server finishes what it was asked")
    check(shop, places)


def blocked(holder: psycopg.Connection) -> bool:
    """Say whether a statement waits for the holder's transaction to end."""
    waiting = "SELECT 1 FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted AND transactionid = ("
    holding = "SELECT transactionid FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'transactionid')"
    return holder.execute(waiting + holding).fetchone() is not None
