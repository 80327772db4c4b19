"""Looks at what moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.rules.checks import flow
from postroom.rules.checks.flow import DownWorker

if TYPE_CHECKING:
    from postroom.doctor.surroundings import Surroundings
    from postroom.rules.checks.findings import Finding

DAY = 86_400.0


def workers(at: Surroundings) -> Finding:
    """A living worker for each queue with messages."""
    return flow.workers(at.waiting(), {worker.queue for worker in at.workers()})


def oldest(at: Surroundings) -> Finding:
    """How long messages have waited that could leave."""
    return flow.oldest(at.waiting())


def dead(at: Surroundings) -> Finding:
    """Dead letters."""
    found = at.dead_letters()
    return flow.dead(found.codes, more=found.more)


def held(at: Surroundings) -> Finding:
    """Keys that a dead letter holds back."""
    return flow.held(at.read(at.traffic.held_keys()))


def targets(at: Surroundings) -> Finding:
    """Topics that take no messages."""
    from postroom.store.outbox.held_targets import HeldTargets

    found = at.read(HeldTargets(at.names).held_targets())
    return flow.targets({one.topic: (one.waiting, one.reason) for one in found})


def broker_down(at: Surroundings) -> Finding:
    """Workers that cannot reach their broker."""
    alive = at.workers()
    down = [DownWorker(one.name, one.host, one.broker_down) for one in alive if one.broker_down]
    return flow.broker_down(len(alive), down)


def leases(at: Surroundings) -> Finding:
    """Leases that crashed workers left behind."""
    return flow.leases(*at.read(at.traffic.stale_leases()))


def retention(at: Surroundings) -> Finding:
    """What should have been removed."""
    settings = at.settings
    return flow.retention(
        at.read(at.traffic.overdue()),
        settings.retention_days * DAY,
        settings.inbox_retention_days * DAY,
        by_relay=settings.cleanup_every_sec is not None,
    )


def incomplete(at: Surroundings) -> Finding:
    """Messages without a delivery."""
    return flow.incomplete(*at.read(at.traffic.incomplete()))


def ledger(at: Surroundings) -> Finding:
    """Keyed requests that were left in progress."""
    return flow.ledger(*at.read(at.traffic.unfinished_requests()))
