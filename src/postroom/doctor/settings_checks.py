"""Looks at settings that contradict each other, or what is installed and running."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

from postroom.brokers.schemes import CLIENTS
from postroom.errors import DriverMissing
from postroom.rules.checks import contradictions
from postroom.rules.checks.contradictions import RunningRelay
from postroom.rules.checks.findings import skip
from postroom.rules.routing import is_routed
from postroom.settings import unknown_variables

if TYPE_CHECKING:
    from postroom.doctor.surroundings import Surroundings
    from postroom.rules.checks.findings import Finding

DAY = 86_400.0
_EXTRAS = {"amqp": "rabbitmq", "amqps": "rabbitmq", "http": "http", "https": "http"}


def lease(at: Surroundings) -> Finding:
    """Leases and the time that a send may take."""
    settings = at.settings
    return contradictions.lease(settings.lock_lease_sec, settings.lane_lease_sec, settings.broker_timeout_ms / 1000)


def inbox_window(at: Surroundings) -> Finding:
    """How long inboxes remember, and how long messages may be repeated."""
    settings = at.settings
    pauses = settings.backoff_sec
    waits = [pauses[min(n, len(pauses) - 1)] for n in range(settings.max_attempts - 1)]
    retries = sum(waits) + settings.max_attempts * settings.broker_timeout_ms / 1000
    return contradictions.inbox_window(settings.inbox_retention_days * DAY, retries, at.dead_letters().oldest_seconds)


def notify(at: Surroundings) -> Finding:
    """Notifications, and a pooler that swallows them."""
    from postroom.store.connections.pooled import is_direct

    if at.dialect != "postgresql":
        return skip("only PostgreSQL notifies")
    direct = at.call(lambda connection, _names: is_direct(connection.connection.dbapi_connection))
    return contradictions.notify(wanted=at.settings.notify, pooled=not direct)


def extras(at: Surroundings) -> Finding:
    """Libraries that the settings need."""
    from postroom.store.connections.urls import resolve

    missing: dict[str, str] = {}
    if at.dialect != "sqlite":
        try:
            resolve(at.settings.database or "", asynchronous=True)
        except DriverMissing:
            missing["the database"] = at.dialect
    for seat in at.brokers():
        if seat.scheme in CLIENTS and seat.inspector is None:
            missing[f"{seat.scheme}:"] = _EXTRAS.get(
                seat.scheme, seat.scheme.partition("+")[0].replace("rediss", "redis")
            )
    if at.settings.http_port is not None and find_spec("prometheus_client") is None:
        missing["http_port"] = "metrics"
    return contradictions.extras(missing)


def relays(at: Surroundings) -> Finding:
    """Whether relays agree about where topics go."""
    from postroom.store.sql.operations import DEFAULT_QUEUE

    served: dict[str, set[str]] = {}
    down: set[str] = set()
    for worker in at.workers():
        if worker.queue == DEFAULT_QUEUE or is_routed(worker.queue):
            served.setdefault(worker.name, set()).add(worker.queue)
            down |= {worker.name} if worker.broker_down else set()
    return contradictions.relays_agree(
        [RunningRelay(name, frozenset(queues), name in down) for name, queues in sorted(served.items())]
    )


def enabled(at: Surroundings) -> Finding:
    """Relays that are switched off."""
    return contradictions.enabled(is_on=at.settings.enabled, pending=sum(one.pending for one in at.waiting()))


def variables(at: Surroundings) -> Finding:
    """Environment variables whose names are wrong."""
    del at
    return contradictions.known(sorted(unknown_variables(os.environ)))
