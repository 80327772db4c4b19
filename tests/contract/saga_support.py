"""Sagas as rows, in every state, without running any."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from postroom.message import Message
from postroom.rules.lifecycle import Stored
from postroom.rules.naming import SAGA_ID, SAGA_PLAN, SAGA_QUEUE, SAGA_START, saga_key
from postroom.rules.saga_plan import Direction, SagaOutcome, StepOutcome
from postroom.rules.saga_state import STEP_MISSING, SagaState, saga_state

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.contract.store_drivers import Room

PLAN = '[["reserve","step","",0,1],["charge","call","",0,1],["ship","step","",1],["mail"]]'


class Facts(NamedTuple):
    """What the state of a saga follows from."""

    direction: Direction = Direction.FORWARD
    outcome: SagaOutcome = SagaOutcome.OPEN
    stored: Stored | None = Stored.READY
    claimed: bool = False
    on_record: bool = False
    stranded: bool = False

    @property
    def state(self) -> SagaState:
        return saga_state(
            *(self.direction, self.outcome, self.stored),
            taken=self.claimed or self.on_record,
            error_code=STEP_MISSING if self.stranded else "",
        )


EVERY = [
    *(
        Facts(direction, SagaOutcome.OPEN, stored, claimed, on_record, stranded)
        for direction, stored in product(Direction, Stored)
        for claimed, on_record, stranded in product([False, True], repeat=3)
    ),
    Facts(Direction.FORWARD, SagaOutcome.COMPLETED, None),
    Facts(Direction.BACK, SagaOutcome.COMPENSATED, None),
]


def start(room: Room, name: str, id: str, plan: str = PLAN, headers: Mapping[str, str] | None = None) -> int:
    """Record a saga as its producer does; returns its position."""
    message = Message.new(
        f"{SAGA_QUEUE}{name}",
        {"order": id},
        type=SAGA_START,
        headers={SAGA_ID: id, SAGA_PLAN: plan, **(headers or {})},
    )
    message = msgspec.structs.replace(message, idempotency_key=saga_key(name, id))
    [position] = room.add_messages([message], f"{SAGA_QUEUE}{name}")
    room.execute(
        "INSERT INTO {saga} (position, name, id) VALUES (:position, :name, :id)", position=position, name=name, id=id
    )
    return position


def record(
    room: Room,
    position: int,
    step: str,
    outcome: StepOutcome = StepOutcome.DONE,
    direction: Direction = Direction.FORWARD,
    *,
    result: bytes | None = None,
    data: bytes | None = None,
    code: str = "",
) -> None:
    """Put a step on record."""
    [[number]] = room.select("SELECT count(*) FROM {saga_step} WHERE position = :position", position=position)
    room.execute(
        "INSERT INTO {saga_step} (position, direction, step, outcome, number, attempts, worker, result, data, "
        "error_code) VALUES (:position, :direction, :step, :outcome, :number, 1, 'worker', :result, :data, :code)",
        position=position,
        direction=int(direction),
        step=step,
        outcome=int(outcome),
        number=number,
        result=result,
        data=data,
        code=code,
    )


def make(room: Room, name: str, id: str, facts: Facts) -> int:
    """A saga of which this is true."""
    position = start(room, name, id)
    if facts.on_record:
        record(room, position, "reserve")
    room.execute(
        "UPDATE {saga} SET direction = :direction, outcome = :outcome WHERE position = :position",
        direction=int(facts.direction),
        outcome=int(facts.outcome),
        position=position,
    )
    if facts.stored is None:
        room.execute(f"UPDATE {{saga}} SET ended = {room.dialect.now} WHERE position = :position", position=position)
        room.execute("DELETE FROM {delivery} WHERE position = :position", position=position)
        return position
    room.execute(
        "UPDATE {delivery} SET state = :state, claims = :claims, error_code = :code WHERE position = :position",
        state=int(facts.stored),
        claims=int(facts.claimed),
        code=STEP_MISSING if facts.stranded else "",
        position=position,
    )
    return position
