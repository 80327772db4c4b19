"""What sagas keep as JSON, and the context that functions get."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom import Saga
from postroom.errors import (
    InvalidMessage,
    InvalidSetting,
    PayloadNotEncodable,
    PayloadTooLarge,
    SagaNotDecodable,
)
from postroom.rules.saga_plan import Direction, Kind, PlannedStep, SagaOutcome
from postroom.saga import SagaContext
from postroom.saga.messages import Tell, read_signal, read_start, signal_message, tell_message
from postroom.store.saga.plan_header import plan_from_header, plan_to_header

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
NAMES = st.text("ab-._0", min_size=1, max_size=50)


@dataclass
class Plain:
    id: uuid.UUID
    total: Decimal
    placed: datetime


class Compact(msgspec.Struct):
    id: uuid.UUID
    total: Decimal
    placed: datetime


class Model(pydantic.BaseModel):
    id: uuid.UUID
    total: Decimal
    placed: datetime


class Typed(TypedDict):
    id: uuid.UUID
    total: Decimal
    placed: datetime


VALUES: dict[str, Any] = {"id": uuid.UUID(int=7), "total": Decimal("1.10"), "placed": NOON}


@pytest.mark.parametrize("kind", [Plain, Compact, Model, Typed])
def test_S_5_data_of_every_kind_comes_back_as_it_went(kind: Any) -> None:
    saga = Saga("order", data=kind)
    data = kind(**VALUES)
    assert saga.decode(saga.encode(data)) == data


@pytest.mark.parametrize("value", [None, "text", 7, 1.5, True, [1, {"a": None}], {"b": "é", "a": []}])
def test_S_5_without_a_class_data_is_any_json(value: Any) -> None:
    saga = Saga("order")
    assert saga.decode(saga.encode(value)) == value


def test_the_same_data_has_the_same_json_whatever_the_order_of_its_keys() -> None:
    saga = Saga("order")
    assert saga.encode({"b": 1, "a": 2}) == saga.encode({"a": 2, "b": 1})


def test_what_is_too_large_or_no_json_is_refused_by_name_and_never_quoted() -> None:
    saga = Saga("order", max_data_bytes=20)
    with pytest.raises(PayloadTooLarge, match=r"the data of saga 'order' has 23 bytes of JSON, the limit is 20"):
        saga.encode("secret secret secret!")
    with pytest.raises(PayloadTooLarge, match="the result of step 'charge' has 23 bytes"):
        saga.encode_result("charge", "secret secret secret!")
    with pytest.raises(PayloadNotEncodable, match=r"the result of step 'charge': .* type object") as raised:
        saga.encode_result("charge", {"secret": object()})
    assert "secret" not in str(raised.value)


def test_data_that_the_class_does_not_fit_is_refused_at_the_start() -> None:
    saga = Saga("order", data=Plain)
    saga.step(name="x")(lambda saga: None)
    with pytest.raises(InvalidMessage, match=r"the data of saga 'order': .*not a valid Plain.*`?id`?"):
        saga.start_message({"total": 3})  # type: ignore[arg-type]  # on purpose


def test_data_of_an_older_version_that_does_not_fit_says_so() -> None:
    with pytest.raises(SagaNotDecodable, match="the data of saga 'order': the payload is not a valid Plain"):
        Saga("order", data=Plain).decode(b'{"total": 3}')


def context(saga: Saga[Any], step: str, data: Any = None, **results: bytes | None) -> SagaContext[Any]:
    return SagaContext(
        name=saga.name,
        id="order 7",
        step=step,
        direction=Direction.FORWARD,
        attempt=1,
        data=data,
        connection=None,
        started_at=NOON,
        deadline=None,
        steps=saga.steps,
        results=results,
    )


def test_a_result_comes_back_as_what_the_function_says_it_returns() -> None:
    saga = Saga("order")

    @saga.step
    def price(saga: NowhereDefined) -> Decimal:  # type: ignore[name-defined]  # noqa: F821 - as if for type checkers only
        return Decimal(1)

    @saga.step
    async def note(saga: Any) -> NowhereDefined:  # type: ignore[name-defined]  # noqa: F821 - as above
        return {}

    @saga.step
    def nothing(saga: Any) -> None: ...

    given = context(saga, "note", price=b'"1.10"', note=b'{"a":1}')
    assert given.result(price) == Decimal("1.10")
    assert given.result("price") == Decimal("1.10")
    assert given.result() == given.result(note) == {"a": 1}
    assert given.result(nothing) is None
    with pytest.raises(LookupError, match="saga 'order' has no step 'prise': it has price, note, nothing"):
        given.result("prise")
    with pytest.raises(SagaNotDecodable, match="the result of step 'price'"):
        context(saga, "note", price=b"[]").result(price)


def test_a_change_of_the_data_is_noticed_and_refused_in_a_group() -> None:
    saga = Saga("order")
    saga.step(name="alone")(lambda saga: None)
    saga.step(name="grouped", group="g")(lambda saga: None)
    before = saga.encode({"n": 1})
    assert saga.changed_data(before, context(saga, "alone", {"n": 1})) is None
    assert saga.changed_data(before, context(saga, "grouped", {"n": 1})) is None
    assert saga.changed_data(before, context(saga, "alone", {"n": 2})) == b'{"n":2}'
    with pytest.raises(InvalidSetting, match="'grouped' changed the data, which is read-only in a group"):
        saga.changed_data(before, context(saga, "grouped", {"n": 2}))


def test_a_change_that_no_later_step_could_read_is_refused() -> None:
    saga = Saga("order", data=Plain)
    before = saga.encode(Plain(**VALUES))
    with pytest.raises(InvalidMessage, match=r"the data of saga 'order': .* at \$\.total"):
        saga.changed_data(before, context(saga, "only", Plain(**VALUES | {"total": "much"})))


def test_S_4_the_key_and_the_headers_are_the_same_for_every_attempt() -> None:
    given = context(Saga("order"), "charge", "secret")
    assert given.key == given.headers["idempotency-key"] == "order/order%207/charge/do"
    assert given.correlation_id("parcel") == "order/parcel/order%207"
    assert "secret" not in repr(given)


PLANNED = st.builds(
    PlannedStep,
    NAMES,
    st.sampled_from(Kind),
    st.just("") | NAMES,
    st.booleans(),
    st.booleans(),
    st.just("") | NAMES,
)


@given(st.lists(PLANNED).map(tuple))
def test_a_plan_survives_the_header(plan: tuple[PlannedStep, ...]) -> None:
    assert plan_from_header(plan_to_header(plan)) == plan


@pytest.mark.parametrize("header", ["", "{}", '[["a","dance"]]', "[[]]"])
def test_a_plan_of_another_version_says_so(header: str) -> None:
    with pytest.raises(SagaNotDecodable, match="the saga's plan is not one that this version of Postroom knows"):
        plan_from_header(header)


def one_step() -> Saga[Any]:
    saga = Saga("order")
    saga.step(name="x")(lambda saga: None)
    return saga


def test_a_start_says_which_instance_and_whom_to_tell() -> None:
    saga = one_step()
    parent = context(saga, "x")
    message = saga.start_message({"n": 1}, id=7, tell=(parent, "shipped"))
    assert (message.topic, message.type, message.payload) == ("saga:order", "start", b'{"n":1}')
    assert message.idempotency_key == "postroom:saga:order:7"
    assert read_start(message.headers) == ("7", saga.plan, Tell("order", "order 7", "shipped"))
    assert read_start(saga.start_message({}).headers).tell is None
    assert uuid.UUID(read_start(saga.start_message({}).headers).id).version == 7


@pytest.mark.parametrize("id", ["", "x" * 181, "a\nb", "a ", " a", 1.5, "\ud800", True])
def test_a_bad_id_is_refused(id: Any) -> None:
    with pytest.raises(InvalidMessage, match="the saga's id"):
        one_step().start_message({}, id=id)


def test_a_long_id_is_told_the_limit_that_counts() -> None:
    for length in (181, 300):
        with pytest.raises(InvalidMessage, match="give 1 to 180 printable characters"):
            one_step().start_message({}, id="x" * length)


@pytest.mark.parametrize("tell", ["shipped", ("a", "b"), (Saga("parent"), "shipped"), 3])
def test_a_bad_parent_is_refused(tell: Any) -> None:
    with pytest.raises(InvalidMessage, match=r"as in tell=\(saga, 'shipped'\)"):
        one_step().start_message({}, tell=tell)


def test_the_end_of_a_child_is_a_signal_with_its_outcome_and_data() -> None:
    told = tell_message(Tell("order", "order 7", "shipped"), SagaOutcome.COMPENSATED, b'{"n":1}', "ship/7")
    assert (told.topic, told.type) == ("saga:order", "signal")
    assert told.json() == {"outcome": "compensated", "data": {"n": 1}}
    assert read_signal(told.headers) == ("order 7", "shipped", "ship/7")


def test_a_signal_with_the_same_message_id_is_the_same_signal() -> None:
    one = signal_message("order", 7, "parcel", {"n": 1}, message_id="a")
    assert one.idempotency_key == signal_message("order", "7", "parcel", {"n": 1}, message_id="a").idempotency_key
    assert one.idempotency_key != signal_message("order", "7", "parcel", {"n": 1}, message_id="b").idempotency_key
    assert one.idempotency_key != signal_message("order", "8", "parcel", {"n": 1}, message_id="a").idempotency_key
    assert signal_message("order", 7, "parcel", None).idempotency_key is None
    with pytest.raises(PayloadTooLarge, match="the payload of event 'parcel' has 5 bytes"):
        signal_message("order", 7, "parcel", "abc", limit=4)
