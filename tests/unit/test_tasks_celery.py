"""Calls of Celery's tasks as messages: what is stored, and what is refused before anything is written."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery, chain, chord, group
from sqlalchemy import create_engine

from postroom import Inbox, Message, Outbox
from postroom.brokers.port import Refused, Unreached
from postroom.brokers.schemes import BRIDGES
from postroom.celery import CeleryBroker, once
from postroom.doctor.surroundings import _seat
from postroom.errors import InvalidMessage, InvalidSetting, PayloadNotEncodable, PayloadTooLarge
from postroom.rules.failures import Failure, Reason
from postroom.settings import Settings
from postroom.tasks.calls import OPTIONS

if TYPE_CHECKING:
    from pathlib import Path

app = Celery("shop", broker="memory://", set_as_current=False)


@app.task(name="shop.charge", time_limit=30, shared=False)  # type: ignore[untyped-decorator]  # Celery has no types
def charge(order: int, *, cents: int = 0) -> None: ...


@app.task(name="shop.note", ignore_result=True, serializer="pickle", shared=False)  # type: ignore[untyped-decorator]  # Celery has no types
def note(what: object) -> None: ...


def options_of(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(message.headers[OPTIONS])
    return found


def test_a_call_is_stored_with_its_options_and_its_arguments_as_json() -> None:
    message = Outbox().task_message(charge, [7], {"cents": 5}, key=7, priority=3, countdown=60)
    assert (message.topic, message.type, message.key) == ("celery.shop.charge", "shop.charge", "7")
    assert message.content_type == "application/json"
    assert message.json() == [[7], {"cents": 5}]
    options = options_of(message)
    eta = datetime.fromisoformat(options.pop("eta"))
    assert timedelta(seconds=50) < eta - datetime.now(UTC) <= timedelta(seconds=60)
    assert options == {
        "serializer": "json",
        "encoding": "utf-8",
        "time_limit": 30,
        "priority": 3,
        "ignore_result": False,
    }


def test_a_signature_brings_its_own_arguments_and_options() -> None:
    partial = charge.s(7).set(queue="other", link=charge.si(8))
    message = Outbox().task_message(partial, kwargs={"cents": 1}, expires=datetime(2027, 1, 1))  # noqa: DTZ001 - in the app's zone
    assert message.json() == [[7], {"cents": 1}]
    assert options_of(message)["queue"] == "other"
    assert options_of(message)["link"]["task"] == "shop.charge"
    assert options_of(message)["expires"] == "2027-01-01T00:00:00+00:00"
    remote = app.signature("billing.charge", args=[1])
    assert Outbox().task_message(remote, remote=True).topic == "celery.billing.charge"


def test_the_mask_sees_arguments_before_they_are_stored() -> None:
    def without_cents(topic: str, payload: Any) -> Any:
        assert topic == "celery.shop.charge"
        return {"args": payload["args"], "kwargs": {}}

    assert Outbox(mask=without_cents).task_message(charge, [7], {"cents": 5}).json() == [[7], {}]
    with pytest.raises(InvalidMessage, match=r"mask returned a NoneType for the task 'celery\.shop\.charge'"):
        Outbox(mask=lambda topic, payload: None).task_message(charge, [7])


class Secret:
    def __repr__(self) -> str:
        return "4111 1111"


@pytest.mark.parametrize(
    ("task", "args", "options", "problem"),
    [
        (print, [], {}, "task is a builtin_function_or_method: give a Celery task or signature, a Dramatiq actor"),
        ("shop.charge", [], {}, "task is a str: give a Celery task"),
        (app, [], {}, "task is a Celery of Celery: give a task or a signature"),
        (charge, "7", {}, "the args of celery are a str: give a list or tuple"),
        (charge, [], {}, "'shop.charge' cannot be called like this: .*'order'"),
        (charge, [1], {"kwargs": {"euros": 1}}, "cannot be called like this: .*'euros'"),
        (charge, [1], {"kwargs": {1: 1}}, "the kwargs of celery are a dict: give a dict with names as keys"),
        (
            charge,
            [Secret()],
            {},
            r"arguments of the task 'shop.charge' cannot be written .* \(TypeError\): give values",
        ),
        (note, [1], {}, "does not accept application/x-python-serialize: add it to accept_content"),
        (charge, [1], {"serializer": "xml"}, "the serializer 'xml', which Celery does not know"),
        (app.signature("shop.chrage"), [1], {}, "there is no task 'shop.chrage' in the app 'shop': .* remote=True"),
        (chain(charge.si(1), charge.si(2)), [], {}, "the chain cannot be stored as one message: write a task that"),
        (group(charge.si(1), charge.si(2)), [], {}, "the group cannot be stored"),
        (chord([charge.si(1), charge.si(2)], charge.si(3)), [], {}, "the chord cannot be stored"),
        (charge, [1], {"countdown": "soon"}, "option 'countdown' of the task 'shop.charge' is 'soon': give seconds"),
        (charge, [1], {"countdown": 1e300}, "option 'countdown' .* is 1e\\+300"),
        (charge, [1], {"eta": "2027-01-01"}, "option 'eta' .* give a datetime with a time zone"),
        (charge, [1], {"countdown": 1, "eta": datetime.now(UTC)}, "both countdown and eta"),
        (charge, [1], {"producer": object()}, "option 'producer' is for tasks that are sent at once: leave it out"),
        (charge.s(1).set(retry=True), [], {}, "option 'retry': leave it out, the relay retries"),
        (
            charge,
            [1],
            {"headers": {"a": Secret()}},
            "option 'headers' of the task 'shop.charge' is a dict, which cannot",
        ),
        (charge, [1], {"queue": object()}, "option 'queue' of the task 'shop.charge' is an object: give its name"),
    ],
)
def test_what_cannot_be_sent_is_refused_at_once(task: object, args: Any, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidMessage, match=problem) as refused:
        Outbox().task_message(task, args, **options)
    assert "4111" not in str(refused.value)


def test_arguments_that_are_too_large_are_refused() -> None:
    engine = create_engine("sqlite://")
    with engine.begin() as connection, pytest.raises(PayloadTooLarge, match=r"'celery\.shop\.charge'"):
        Outbox(max_payload_bytes=100).task(connection, charge, ["x" * 200])
    engine.dispose()
    assert issubclass(PayloadNotEncodable, InvalidMessage)


async def test_other_messages_and_what_the_app_does_not_accept_are_dead_letters() -> None:
    broker = CeleryBroker(app)
    trusting = Celery("shop", broker="memory://", set_as_current=False, accept_content=["pickle"])
    pickled = Outbox().task_message(trusting.task(name="shop.note", serializer="pickle", shared=False)(note.run), [1])
    broken = Message.new("celery.x", b"{", type="x", content_type="application/json", headers={OPTIONS: "{}"})
    made_up = Message.new("celery.x", 1, type="x", headers={OPTIONS: "["})
    outcomes = await broker.publish([Message.new("orders", 1), made_up, pickled, broken], 5)
    found = [(one.code, one.failure) for one in outcomes if isinstance(one, Refused)]
    invalid, undecodable = Reason.INVALID_TARGET, Reason.UNDECODABLE_PAYLOAD
    assert found == [(code, Failure.PERMANENT) for code in (invalid, invalid, undecodable, undecodable)]
    await broker.close()


async def test_a_password_that_breaks_the_url_is_not_quoted() -> None:
    broker = CeleryBroker(Celery("shop", broker="amqp://guest:s3cr3t/x@localhost", set_as_current=False))
    problem = "celery:shop: broker_url cannot be read: percent-encode special characters of user and password"
    assert await broker.publish([Outbox().task_message(charge, [1])], 5) == [Unreached(problem)]
    await broker.close()


async def test_a_url_names_the_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from postroom.compose.brokers import broker_at
    from postroom.rules.failures import DEFAULT_CLASSIFIER

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "shop_tasks_app.py").write_text(
        "import celery\napp = celery.Celery('shop', set_as_current=False)\nno = 1"
    )
    broker = broker_at("celery://shop_tasks_app:app", Settings(), DEFAULT_CLASSIFIER)
    assert broker.name == "celery:shop"
    await broker.close()
    with pytest.raises(InvalidSetting, match="CeleryBroker takes a Celery app, not a int"):
        broker_at("celery://shop_tasks_app:no", Settings(), DEFAULT_CLASSIFIER)
    with pytest.raises(InvalidSetting, match="celery://shop_tasks_app does not name an object: write celery://module:"):
        broker_at("celery://shop_tasks_app", Settings(), DEFAULT_CLASSIFIER)


def test_the_doctor_leaves_task_queues_to_their_own_tools() -> None:
    for scheme in BRIDGES:
        seat = _seat("celery.*", f"{scheme}://shop:app")
        assert (seat.inspector, seat.problem) == (None, f"{scheme}: has a server that only its own client knows")


def test_once_wants_an_inbox_transactions_and_a_parameter_for_the_connection() -> None:
    engine = create_engine("sqlite://")
    with pytest.raises(InvalidSetting, match=r"once takes an Inbox, not a str"):
        once("shop", engine)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(InvalidSetting, match="once needs what opens transactions"):
        once(Inbox("shop"), None)
    with pytest.raises(InvalidSetting, match=r"lonely\(self.* has no parameter for the connection"):

        @once(Inbox("shop"), engine)
        def lonely(self: object) -> None: ...
