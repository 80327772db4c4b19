"""The hook of a saga's queue: what the engine reports of its deliveries, in the words of sagas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from postroom.rules.lifecycle import OutcomeCode
from postroom.rules.naming import SAGA_EVENT, SAGA_ID, SAGA_SIGNAL
from postroom.rules.saga_plan import Direction
from postroom.telemetry.events import DATABASE, Beat, Phase, Published, Reachability, Settled
from postroom.telemetry.saga_events import SagaParked, SagaSignalled, SignalEnd

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postroom.telemetry.events import Event, Hook
    from postroom.telemetry.saga_events import SagaEvent


def saga_queue_hook(saga: str, hook: Hook) -> Hook:
    """A hook for the engine's events of this saga's queue.

    What a worker reports itself is left out: claims, sends and settlements. What the engine alone decides is told as an
    event of sagas: a delivery that it gave up is a parked saga, or a signal that found none.
    """

    def report(event: Event) -> None:
        match event:
            case Settled(outcome=OutcomeCode.DEAD):
                for one in _given_up(saga, event):
                    hook(one)
            case Settled() | Phase() | Published():
                pass
            case Reachability() if event.what != DATABASE:
                pass  # functions of this process are always there
            case Beat():
                hook(replace(event, broker="", broker_reachable=True))
            case _:
                hook(event)

    return report


def _given_up(saga: str, event: Settled) -> Iterator[SagaEvent]:
    for message in event.messages:
        saga_id = message.headers.get(SAGA_ID, "")
        if message.type == SAGA_SIGNAL:
            yield SagaSignalled(saga, saga_id, message.headers.get(SAGA_EVENT, ""), SignalEnd.DEAD)
        else:
            yield SagaParked(saga, saga_id, "", Direction.FORWARD, event.code, event.detail, event.attempts)
