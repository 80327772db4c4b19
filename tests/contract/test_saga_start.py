"""S-1: what producers do with sagas, on every kind of connection, in their own transaction."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from postroom import Saga
from postroom.errors import IdempotencyConflict, InvalidMessage, SagaNotFound, SagaSettled, WrongMethod
from postroom.rules.saga_plan import Direction
from postroom.runtime import wakeup
from postroom.saga import SagaContext, areply, reply
from tests.contract.connection_kinds import KINDS, Kind
from tests.contract.write_support import Database, business_row

if TYPE_CHECKING:
    from tests.contract.connection_callers import Caller

each_kind = pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.name) for kind in KINDS])


@dataclass
class Order:
    id: int
    note: str = 'it\'s "odd" % %s :name $1 ? é 日本 😀'


SAGA = Saga("place_order", data=Order, deadline=900)
SAGA.step(name="reserve_stock")(lambda saga: None)
SAGA.wait("parcel", name="delivered")(lambda saga, event: None)


def call(caller: Caller, method: str, *args: Any, **options: Any) -> Any:
    """Call one of the saga's methods, or its async twin."""
    name = f"a{method}" if caller.runner else method
    return caller.wait(getattr(SAGA, name)(caller.connection, *args, **options))


def counted(database: Database, id: str) -> tuple[int, int]:
    """How many rows the instance has: its own, and messages with deliveries, signals included."""
    sagas = database.rows("SELECT count(*) FROM {saga} WHERE name = 'place_order' AND id = :id", id=id)
    messages = database.rows(
        "SELECT count(*) FROM {outbox} m JOIN {delivery} d USING (position) WHERE m.queue = 'saga:place_order' AND "
        "d.queue = m.queue AND m.headers LIKE :id"
        if database.store.names.dialect != "postgresql"
        else "SELECT count(*) FROM {outbox} m JOIN {delivery} d USING (position) WHERE m.queue = 'saga:place_order' "
        "AND d.queue = m.queue AND m.headers::text LIKE :id",
        id=f'%"{id}"%',
    )
    return int(sagas[0][0]), int(messages[0][0])


@each_kind
def test_S_1_a_start_and_its_signals_commit_with_the_business_rows(caller: Caller, database: Database) -> None:
    statement, row = business_row()
    woken: list[None] = []
    wakeup.subscribe(callback := lambda: woken.append(None))
    caller.sql(statement)
    saga_id = call(caller, "start", Order(7))
    call(caller, "signal", saga_id, "parcel", {"number": "P1"}, message_id="a")
    call(caller, "signal", saga_id, "parcel", {"number": "P1"}, message_id="a")
    wakeup.unsubscribe(callback)
    caller.commit()
    assert database.has_business(row)
    assert counted(database, saga_id) == (1, 2), "the signal came twice, and counts once"
    assert len(woken) == 3


@each_kind
def test_S_1_what_is_rolled_back_is_not_there_and_what_was_refused_leaves_nothing(
    caller: Caller, database: Database
) -> None:
    saga_id, refused = str(uuid4()), str(uuid4())
    call(caller, "start", Order(7), id=saga_id)
    caller.rollback()
    assert counted(database, saga_id) == (0, 0)
    caller.begin()
    assert call(caller, "start", Order(7), id=saga_id) == saga_id
    assert call(caller, "start", {"note": Order(7).note, "id": 7}, id=saga_id) == saga_id, "the same id and data"
    with pytest.raises(IdempotencyConflict, match=f"saga 'place_order' was started with other data .* id '{saga_id}'"):
        call(caller, "start", Order(8), id=saga_id)
    with pytest.raises(InvalidMessage, match="is not a valid Order"):
        call(caller, "start", {"id": "seven"}, id=refused)
    caller.commit()
    assert counted(database, saga_id) == (1, 1), "the transaction was still usable"
    assert counted(database, refused) == (0, 0)
    caller.begin()
    with pytest.raises(IdempotencyConflict, match="use another id for another instance"):
        call(caller, "start", Order(8), id=saga_id)
    caller.rollback()


@each_kind
def test_S_5_an_abort_turns_the_saga_in_the_callers_transaction(caller: Caller, database: Database) -> None:
    saga_id = call(caller, "start", Order(7))
    caller.commit()
    caller.begin()
    call(caller, "abort", saga_id, by="ann", reason="changed her mind")
    caller.rollback()
    turned = "SELECT direction, aborted_by FROM {saga} WHERE id = :id"
    assert [tuple(row) for row in database.rows(turned, id=saga_id)] == [(0, "")]
    caller.begin()
    call(caller, "abort", saga_id, by="ann", reason="changed her mind")
    with pytest.raises(SagaSettled, match=f"'{saga_id}' cannot be aborted: it is already being compensated"):
        call(caller, "abort", saga_id)
    with pytest.raises(SagaNotFound, match="there is no saga 'place_order' with the id 'nowhere'"):
        call(caller, "abort", "nowhere")
    caller.commit()
    assert [tuple(row) for row in database.rows(turned, id=saga_id)] == [(1, "ann")]


@each_kind
def test_S_5_a_reply_is_a_signal_by_correlation_id(caller: Caller, database: Database) -> None:
    saga_id = call(caller, "start", Order(7))
    context = SagaContext(
        name="place_order",
        id=saga_id,
        step="reserve_stock",
        direction=Direction.FORWARD,
        attempt=1,
        data=None,
        connection=caller.connection,
        started_at=datetime.now(UTC),
        deadline=None,
        steps={},
        results={},
    )
    answer = areply if caller.runner else reply
    caller.wait(answer(caller.connection, context.correlation_id("parcel"), {"number": "P1"}))
    with pytest.raises(InvalidMessage, match="'parcel' is not a correlation id"):
        caller.wait(answer(caller.connection, "parcel"))
    child = call(caller, "start", Order(8), id=f"{saga_id}/ship", tell=(context, "parcel"))
    caller.commit()
    assert counted(database, saga_id) == (1, 2)
    assert counted(database, child) == (1, 1)


@pytest.mark.parametrize(
    "kind", [one for one in KINDS if one.name in {"sqlite3", "aiosqlite"}], ids=lambda one: one.name
)
def test_the_wrong_method_names_the_right_one(kind: Kind, caller: Caller) -> None:
    if caller.runner is None:
        with pytest.raises(WrongMethod, match=r"use `saga\.start\(…\)` without await"):
            asyncio.run(SAGA.astart(caller.connection, Order(7)))
    else:
        with pytest.raises(WrongMethod, match=r"use `await saga\.astart\(…\)`"):
            SAGA.start(caller.connection, Order(7))
    caller.rollback()
