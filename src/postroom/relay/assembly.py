"""Hiring: puts together the crew for a run, and gives each part its connections."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.delivery.engine import Crew
from postroom.delivery.listener import Listener
from postroom.delivery.queue_router import Sorter
from postroom.delivery.queue_state import Office
from postroom.delivery.queue_worker import Shift
from postroom.relay.backlog import Counting
from postroom.relay.cleaning import PATIENCE, Cleaning
from postroom.rules.ordering import Order
from postroom.store.admin.backlog import BacklogCount
from postroom.store.connections.reconnecting import QUICK, Database, ShiftLines
from postroom.store.outbox.databases import deliveries
from postroom.store.outbox.workers import Workers
from postroom.store.sql.names import channel
from postroom.store.sql.operations import DEFAULT_QUEUE
from postroom.telemetry.events import wants_counts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from postroom.brokers.port import Broker
    from postroom.delivery.options import Options
    from postroom.delivery.queue_worker import Part
    from postroom.rules.routing import Routing
    from postroom.settings import Settings
    from postroom.store.connections.stores import ConnectionFactory
    from postroom.store.sql.names import Names
    from postroom.telemetry.events import Hook


def hired(
    settings: Settings,
    options: Options,
    store: ConnectionFactory,
    brokers: Mapping[str, Broker],
    routing: Routing | None,
    hook: Hook,
) -> Crew:
    """A crew with a shift for each queue and its broker. Topics are sorted by the routing, where there is one."""
    names, database = store.names, Database(store, hook)
    offices: dict[str, Office] = {}
    for queue, broker in brokers.items():
        protocol = deliveries(names, queue, Order(settings.order))
        protocol.ledger_keep = settings.idempotency_keep_sec
        offices[queue] = Office(options, broker, protocol, hook, routing.queue_of if routing else None)
        offices[queue].neighbours = offices
    if DEFAULT_QUEUE in offices:
        lines = [ShiftLines.all_its_own(database)]
        sorting = lines[0].beats
    else:
        sorting, beats = database.line(), database.line(QUICK)
        lines = [ShiftLines.sparing(database, beats) for _ in offices]  # of many queues, or of one with little to do
    shifts = [
        Shift(office, some, Workers(names, queue)) for (queue, office), some in zip(offices.items(), lines, strict=True)
    ]
    sorter = None
    if routing is not None or DEFAULT_QUEUE in offices:
        notify = settings.notify and names.dialect == "postgresql"
        sorter = Sorter(options, names, sorting, routing, offices, notify=notify)
    others: list[Part] = [*_listeners(settings, names, offices, sorter)]
    if wants_counts(hook):
        others.append(Counting(database.line(), BacklogCount(names, Order(settings.order)), hook))
    if settings.cleanup_every_sec is not None:
        others.append(Cleaning(database.line(PATIENCE), names, settings, settings.cleanup_every_sec, hook))
    return Crew(shifts, sorter, database.lines, others)


def _listeners(
    settings: Settings, names: Names, offices: Mapping[str, Office], sorter: Sorter | None
) -> list[Listener]:
    if not settings.notify or settings.database is None:
        return []
    channels = {channel(names, queue): office.wake for queue, office in offices.items()}
    if sorter is not None:
        channels.setdefault(channel(names, DEFAULT_QUEUE), sorter.wake)
    return [Listener(settings.database, channels)]
