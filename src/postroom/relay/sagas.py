"""The queues of a relay's sagas: one for each, whose destination runs their instances in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postroom.delivery.queue import Queue
from postroom.errors import InvalidSetting
from postroom.rules.lifecycle import NEVER_DEAD
from postroom.saga.running.sagas_at_work import SagasAtWork
from postroom.saga.saga import Saga
from postroom.telemetry.saga_queue import saga_queue_hook

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AsyncExitStack

    from postroom.delivery.queue import OnDead
    from postroom.rules.failures import Classifier
    from postroom.settings import Settings
    from postroom.store.connections.reconnecting import Database
    from postroom.telemetry.events import Hook


READING = 30.0
"""Seconds for the destination to read the instances that it takes in hand."""


def check_sagas(given: object, settings: Settings) -> Sequence[Saga[Any]]:
    """The sagas that a relay with these settings was given. Raises `InvalidSetting`."""
    sagas: list[Saga[Any]] = []
    for one in given if isinstance(given, list | tuple) else [given]:
        if not isinstance(one, Saga):
            raise InvalidSetting(f"sagas has a {type(one).__name__}: give Saga objects, as in sagas=[place_order]")
        if not one.steps:
            raise InvalidSetting(f"saga {one.name!r} has no step: add one with @saga.step or @saga.call")
        if one.place != (settings.schema, settings.table_prefix):
            raise InvalidSetting(
                f"saga {one.name!r} is recorded in {_shown(*one.place)}, and the relay works on "
                f"{_shown(settings.schema, settings.table_prefix)}: give both the same schema and table_prefix"
            )
        sagas.append(one)
    names = [one.name for one in sagas]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidSetting(f"saga {twice!r} is given twice: a name identifies a saga, so give each name once")
    return sagas


async def open_saga_queues(
    sagas: Sequence[Saga[Any]],
    database: Database,
    settings: Settings,
    stack: AsyncExitStack,
    *,
    worker: str,
    classifier: Classifier,
    on_dead: OnDead | None,
    hook: Hook,
) -> list[Queue]:
    """A queue for each saga; the stack closes what runs them. Raises if no transaction can be opened for their steps.

    As many instances of a saga are claimed as may run at a time, and as many again that come next.
    """
    at_work = SagasAtWork(
        database,
        settings.database,
        worker=worker,
        concurrency=settings.saga_concurrency,
        hook=hook,
        notify=settings.notify,
        classifier=classifier,
        on_dead=on_dead,
    )
    stack.push_async_callback(at_work.close)
    queues: list[Queue] = []
    for saga in sagas:
        destination = at_work.destination(saga)
        stack.push_async_callback(destination.close)
        queues.append(
            Queue(
                name=saga.queue,
                destination=destination,
                timeout=READING,
                keyed=False,
                batch=settings.saga_concurrency,
                concurrency=1,
                most_in_flight=2 * settings.saga_concurrency,
                most_bytes=settings.max_in_flight_bytes,
                claim_limits=NEVER_DEAD,
                on_dead=on_dead,
                hook=saga_queue_hook(saga.name, hook),
            )
        )
    await at_work.check()
    return queues


def _shown(schema: str | None, table_prefix: str | None) -> str:
    return f"schema {schema or '(default)'} with table prefix {table_prefix or '(default)'}"
