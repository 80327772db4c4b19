"""Sagas that wait, through the public surface: for events, for their time, for their children."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from postroom import Saga
from postroom.delivery.queue_worker import QueueWorker
from postroom.saga import Refused, reply
from tests.acceptance.saga_service import SagaService, effect
from tests.acceptance.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import FreshDatabase

each_database = pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])


@pytest.fixture
def service(kind: str, ready_database: FreshDatabase) -> Iterator[SagaService]:
    with closing(SagaService(ready_database(kind))) as service:
        yield service


def waiting_saga(on_timeout: Any = "compensate", timeout: float = 600) -> Saga[Any]:
    saga = Saga(f"waiting_{on_timeout}")
    saga.step(name="send")(lambda saga: saga.correlation_id("parcel")).compensation(lambda saga: effect(saga, "undo"))

    @saga.wait("parcel", timeout=timeout, on_timeout=on_timeout)
    def delivered(saga: Any, event: dict[str, Any] | None) -> None:
        effect(saga, f"delivered {event and event['n']}")

    return saga


@each_database
async def test_S_5_an_event_counts_whether_it_comes_before_or_while_the_saga_waits(service: SagaService) -> None:
    saga = waiting_saga()
    before, during, replied = service.start(saga, {}, {}, {})
    service.signal(saga, before, "parcel", {"n": 1}, message_id="m")
    service.signal(saga, before, "parcel", {"n": 1}, message_id="m")
    async with service.relay(saga):
        await service.reached(saga, [during, replied], frozenset({"waiting"}))
        service.signal(Saga(saga.name), during, "other", {"n": 0})  # from where only the name is known
        service.signal(saga, during, "parcel", {"n": 2})
        with service.engine.begin() as connection:
            reply(connection, f"waiting_compensate/parcel/{replied}", {"n": 3})
        await service.reached(saga, [before, during, replied])
    assert [service.effects(key) for key in (before, during, replied)] == [
        ["delivered 1"],
        ["delivered 2"],
        ["delivered 3"],
    ]


@each_database
async def test_S_5_an_event_that_never_comes_undoes_the_saga_or_lets_it_go_on(service: SagaService) -> None:
    strict, lenient = waiting_saga(timeout=0.3), waiting_saga("continue", timeout=0.3)
    [undone], [gone_on] = service.start(strict, {}), service.start(lenient, {})
    async with service.relay(strict, lenient):
        await service.reached(strict, [undone])
        await service.reached(lenient, [gone_on])
    assert (service.seen(strict, undone).turned_code, service.effects(undone)) == ("TIMEOUT", ["undo"])
    assert (service.seen(lenient, gone_on).state, service.effects(gone_on)) == ("completed", ["delivered None"])


@each_database
async def test_S_5_an_aborted_saga_is_undone_from_where_it_stands(service: SagaService) -> None:
    saga = waiting_saga()
    [key] = service.start(saga, {})
    async with service.relay(saga):
        await service.reached(saga, [key], frozenset({"waiting"}))
        await service.abort(saga, key, by="ann", reason="changed her mind")
        await service.reached(saga, [key])
    seen = service.seen(saga, key)
    assert (seen.state, seen.aborted_by, seen.turned_code) == ("compensated", "ann", "ABORTED")
    assert service.effects(key) == ["undo"]


@each_database
async def test_S_5_a_child_tells_its_parent_how_it_ended(service: SagaService) -> None:
    parent, child = Saga("parent"), Saga("child")

    @child.step
    def ship(saga: Any) -> None:
        if saga.data["fails"]:
            raise Refused("NO")
        saga.data = {**saga.data, "shipped": True}

    @parent.step
    def begin(saga: Any) -> str:
        return child.start(saga.connection, saga.data, id=f"{saga.id}/{saga.step}", tell=(saga, "shipped"))

    @parent.wait("shipped", timeout=600)
    def shipped(saga: Any, event: Any) -> None:
        saga.data = event

    ids = service.start(parent, {"fails": False}, {"fails": True})
    async with service.relay(parent, child):
        await service.reached(parent, ids)
        assert [one.id for one in service.seen(parent, ids[0]).children] == [f"{ids[0]}/begin"]
    told = [msgspec.json.decode(service.seen(parent, key).data or b"") for key in ids]
    assert told == [
        {"outcome": "completed", "data": {"fails": False, "shipped": True}},
        {"outcome": "compensated", "data": {"fails": True}},
    ]


@each_database
async def test_S_5_cleanup_leaves_open_sagas_alone_and_a_child_may_outlive_its_parent(service: SagaService) -> None:
    child, patient, hasty = Saga("child"), Saga("patient"), Saga("hasty")

    @child.wait("go", timeout=600)
    def go(saga: Any, event: Any) -> None: ...

    def beget(saga: Any) -> None:
        child.start(saga.connection, {}, id=f"{saga.name}/{saga.id}", tell=(saga, "told"))

    patient.step(name="beget")(beget)
    hasty.step(name="beget")(beget)

    @patient.wait("told", timeout=600)
    def told(saga: Any, event: Any) -> None:
        effect(saga, event["outcome"])

    service.start(patient, {}, id="1")
    service.start(hasty, {}, id="2")
    async with service.relay(patient, hasty, child):
        await service.reached(hasty, ["2"])
        for saga, one in ((patient, "1"), (child, "patient/1"), (child, "hasty/2")):
            await service.reached(saga, [one], frozenset({"waiting"}))
        assert service.operator.cleanup(days=0).messages == 1  # the hasty parent, which has ended
        for one in ("hasty/2", "patient/1"):
            service.signal(child, one, "go")
        await service.reached(patient, ["1"])
        await service.reached(child, ["hasty/2"])
        waiting = f"SELECT count(*) FROM {service.table('delivery')}"
        await service.holds(lambda: service.rows(waiting) == [(0,)])  # nothing is retried, or a dead letter
    assert service.effects("1") == ["completed"]
    service.operator.cleanup(days=0)
    assert service.rows(f"SELECT count(*) FROM {service.table('outbox')}") == [(0,)]


@pytest.mark.parametrize("kind", ["sqlite"])
async def test_S_1_a_run_until_empty_hears_of_a_child_that_ends_after_its_parents_queue_was_asked(
    service: SagaService, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, child, asked = Saga("parent"), Saga("child"), threading.Event()

    @child.call
    def ship(saga: Any) -> None:
        asked.wait(PATIENCE)
        raise Refused("NO")

    @parent.step
    def begin(saga: Any) -> None:
        child.start(saga.connection, {}, id=f"{saga.id}/{saga.step}", tell=(saga, "shipped"))

    @parent.wait("shipped", timeout=3600)
    def shipped(saga: Any, event: Any) -> None:
        effect(saga, event["outcome"])

    ask = QueueWorker.anything_to_send

    async def noted(worker: QueueWorker) -> bool:
        if worker.queue.name == child.queue:
            asked.set()
        return await ask(worker)

    monkeypatch.setattr(QueueWorker, "anything_to_send", noted)
    [key] = service.start(parent, {})
    report = await service.relay(parent, child).run_until_empty()
    assert (report.completed, report.compensated, service.effects(key)) == (1, 1, ["compensated"])
