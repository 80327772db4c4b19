"""What the tests of stored sagas share: a saga's queue with its instances, and what a worker does with them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

from postroom.rules.lifecycle import ClaimLimits
from postroom.rules.naming import SAGA_QUEUE
from postroom.rules.saga_plan import Direction, PlannedStep, StepOutcome
from postroom.saga import messages
from postroom.store.outbox.leases import Retry
from postroom.store.outbox.writers import WRITERS
from postroom.store.saga.saga_store import SagaStore
from postroom.store.saga.values import Entry, Instance

if TYPE_CHECKING:
    from postroom.message import Message
    from postroom.rules.saga_plan import Plan, SagaOutcome
    from postroom.store.outbox.leases import Claimed
    from tests.contract.store_drivers import Room

NAME = "place_order"
PLAN = (PlannedStep("reserve", compensated=True), PlannedStep("charge", compensated=True), PlannedStep("ship"))
OFF = ClaimLimits(10**6, 10**6 + 1)
FORWARD, BACK = Direction.FORWARD, Direction.BACK


class Row(NamedTuple):
    """A row of `saga`."""

    direction: int
    outcome: int
    failed_step: str
    error_code: str
    error_message: str
    aborted_by: str


def start_message(id: str, data: bytes = b"{}", plan: Plan = PLAN, name: str = NAME) -> Message:
    return messages.start_message(name, id, plan, data, None)


def done(step: str, result: bytes | None = None, **fields: Any) -> Entry:
    return Entry(FORWARD, step, StepOutcome.DONE, 0.25, result, **fields)


def failed(step: str) -> Entry:
    return Entry(FORWARD, step, StepOutcome.FAILED, error_code="TIMEOUT", error_message="no answer")


def undone(step: str) -> Entry:
    return Entry(BACK, step, StepOutcome.DONE)


class Sagas:
    """One saga's instances in a room. Instances are started by the producer, and run on the room's driver."""

    def __init__(self, room: Room, name: str = NAME) -> None:
        self.room = room
        self.store = SagaStore(room.names, name)
        self.name = name
        self.queue = room.on(f"{SAGA_QUEUE}{name}", limits=OFF)
        self._numbers = itertools.count(1)

    def start(self, id: str = "", *, deadline: float | None = None, plan: Plan = PLAN, data: bytes = b"{}") -> int:
        known_as = id or f"order-{next(self._numbers)}"
        message = start_message(known_as, data, plan, self.name)
        self.room.producer.run(self.store.sql.transaction(self.store.start, message, deadline))
        position = self.room.producer.run(self.store.position_of(known_as))
        assert position is not None
        return position

    def signal(self, id: str, event: str = "parcel", payload: object = None) -> Message:
        message = messages.signal_message(self.name, id, event, payload)
        writer = WRITERS[self.room.names.dialect](self.room.names, message.topic)
        self.room.producer.run(self.store.sql.transaction(writer.add, [message]))
        return message

    def claim(self, seconds: float = 30, worker: str = "worker", limit: int = 100) -> list[Claimed]:
        return self.room.run(self.queue.rows.claim(worker, limit, seconds)).messages

    def running(self, **options: Any) -> Claimed:
        """A new instance that a worker has claimed."""
        position = self.start(**options)
        [claimed] = [one for one in self.claim() if one.position == position]
        return claimed

    def retry(self, claimed: Claimed, delay: float) -> Retry:
        return Retry(claimed, delay, "TIMEOUT", "no answer")

    def in_transaction(self, operation: Any, *args: Any, **options: Any) -> Any:
        """Run what belongs into a caller's transaction, and commit, on the room's driver."""
        return self.room.run(self.store.sql.transaction(operation, *args, **options))

    def log(self, claimed: Claimed, *entries: Entry, end: SagaOutcome | None = None, **options: Any) -> Any:
        return self.in_transaction(self.store.log, claimed, entries, end, **options)

    def read(self, position: int) -> Instance:
        return self.room.run(self.store.read([position]))[position]

    def row(self, position: int) -> Row:
        columns = ", ".join(Row._fields)
        [row] = self.room.select(f"SELECT {columns} FROM {{saga}} WHERE position = :position", position=position)
        return Row(*row)

    def steps(self, position: int) -> dict[tuple[int, str], int]:
        """What is on record, in order: direction and step → outcome."""
        rows = self.room.select(
            "SELECT direction, step, outcome FROM {saga_step} WHERE position = :position ORDER BY number",
            position=position,
        )
        return {(direction, step): outcome for direction, step, outcome in rows}

    def events(self, position: int) -> list[str]:
        rows = self.room.select(
            "SELECT name FROM {saga_event} WHERE position = :position ORDER BY received_at", position=position
        )
        return [name for [name] in rows]
