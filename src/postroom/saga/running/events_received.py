"""Signals: hands events to the instances that they are for."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from postroom.brokers.port import Refused
from postroom.delivery.destination import ALREADY_SETTLED, LEASE_LOST
from postroom.errors import SagaNotDecodable
from postroom.rules.failures import Failure, Reason
from postroom.saga.messages import read_signal
from postroom.store.saga.values import Locked, Received
from postroom.telemetry.saga_events import SagaSignalled, SignalEnd

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.delivery.destination import Outcome
    from postroom.saga.running.reports import Reports
    from postroom.store.connections.shared import Connection
    from postroom.store.outbox.leases import Claimed
    from postroom.store.saga.saga_store import SagaStore

UNKNOWN_SAGA = "UNKNOWN_SAGA"


class EventsReceived:
    """Takes up the signals of one saga."""

    def __init__(self, name: str, store: SagaStore, connection: Connection, reports: Reports) -> None:
        self._name = name
        self._store = store
        self._connection = connection
        self._reports = reports

    async def take_up(self, claimed: Claimed, woken: Callable[[], object]) -> Outcome | Locked:
        """Hand the event to its instance, and settle the signal in the same transaction. `woken`: it may be due now.

        `LOCKED` if somebody else has locked the instance: the signal waits.
        """
        try:
            signal = read_signal(claimed.message.headers)
        except SagaNotDecodable as error:
            return Refused(Reason.UNDECODABLE, str(error), Failure.PERMANENT)
        received = await self._connection.run(
            lambda: self._store.receive(
                claimed, signal.id, signal.event, claimed.message.payload, existed=bool(signal.told_by)
            )
        )
        match received:
            case Received.DELIVERED:
                end, outcome = SignalEnd.DELIVERED, ALREADY_SETTLED
                woken()
            case Received.ENDED:
                end, outcome = SignalEnd.LATE, ALREADY_SETTLED
            case Received.UNKNOWN:
                self._reports.event(SagaSignalled(self._name, signal.id, signal.event, SignalEnd.UNKNOWN))
                problem = (
                    f"there is no saga {self._name!r} with id {signal.id[:80]!r} to receive {signal.event!r}: it may "
                    "not have been started yet, or retention has removed it"
                )
                return Refused(UNKNOWN_SAGA, problem)
            case Received.LEASE_LOST:
                return LEASE_LOST
            case Locked():
                return received
            case never:
                assert_never(never)
        self._reports.event(SagaSignalled(self._name, signal.id, signal.event, end))
        return outcome
