"""Message: what it carries, what makes two of them the same request, and what it never shows."""

from __future__ import annotations

import enum
import subprocess
import sys
import threading
import uuid
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import uuid_utils
from hypothesis import assume, given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider

from postroom import Message
from postroom.errors import InvalidMessage

if TYPE_CHECKING:
    from opentelemetry import trace


class Number(enum.IntEnum):
    EIGHT = 8


class Text(enum.StrEnum):
    SEVEN = "seven"


TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

no_control = st.characters(exclude_categories=("Cs", "Cc"))
printable = st.text(no_control, min_size=1, max_size=20)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | printable,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(printable, inner, max_size=4),
    max_leaves=5,
)
objects = st.dictionaries(printable, json_values, min_size=1, max_size=5)


def test_O_2_it_carries_everything() -> None:
    identifier = uuid.uuid4()
    later = datetime(2030, 1, 2, 3, 4, 5, 6, tzinfo=timezone(timedelta(hours=9)))
    message = Message.new(
        "orders.created",
        {"order": 7},
        key=7,
        type="OrderCreated",
        aggregate_type="order",
        aggregate_id=identifier,
        headers={"tenant": "a"},
        id=str(identifier),
        idempotency_key="once",
        deliver_at=later,
        expires_at=later + timedelta(seconds=1),
        content_type="application/vnd.order+json",
    )
    assert message.id == identifier
    assert (message.topic, message.type, message.key) == ("orders.created", "OrderCreated", "7")
    assert (message.aggregate_type, message.aggregate_id) == ("order", str(identifier))
    assert (message.payload, message.content_type) == (b'{"order":7}', "application/vnd.order+json")
    assert (message.headers, message.idempotency_key) == ({"tenant": "a"}, "once")
    assert (message.deliver_at, message.expires_at) == (later, later + timedelta(seconds=1))
    assert message.deliver_at is not None
    assert message.deliver_at.tzinfo is UTC
    assert message.digest is not None
    assert len(message.digest) == 64
    assert (message.created_at, message.duplicate) == (None, False)


@pytest.mark.parametrize("moment", [datetime.min, datetime.max, datetime(999, 12, 30), datetime(9999, 1, 2)])  # noqa: DTZ001, DTZ901 - made aware below
@pytest.mark.parametrize("hours", [-12, 0, 12])
def test_moments_that_a_database_cannot_hold_are_refused(moment: datetime, hours: int) -> None:
    aware = moment.replace(tzinfo=timezone(timedelta(hours=hours)))
    with pytest.raises(InvalidMessage, match="is outside the years 1000 to 9998"):
        Message.new("orders", expires_at=aware)


def test_only_the_topic_is_needed() -> None:
    message = Message.new("orders")
    assert (message.payload, message.key, message.headers, message.json()) == (None, None, {}, None)


@pytest.mark.parametrize(
    ("key", "stored"),
    [
        ("a", "a"),
        (7, "7"),
        (-1, "-1"),
        (uuid.UUID(int=1), str(uuid.UUID(int=1))),
        (uuid_utils.UUID(int=1), str(uuid.UUID(int=1))),
        ("line\nbreak", "line\nbreak"),
        ("x" * 255, "x" * 255),
        (Number.EIGHT, "8"),
        (Text.SEVEN, "seven"),
    ],
)
def test_keys_are_texts_numbers_and_uuids(key: Any, stored: str) -> None:
    message = Message.new("orders", key=key, aggregate_id=key, idempotency_key=key)
    assert (message.key, message.aggregate_id, message.idempotency_key) == (stored, stored, stored)
    assert type(message.key) is str


def test_members_of_an_enum_of_texts_become_plain_texts() -> None:
    class Name(str, enum.Enum):  # noqa: UP042 - the older form, whose str() is not its value
        ORDERS = "orders"

    message = Message.new(Name.ORDERS, None, key=Name.ORDERS, type=Name.ORDERS, headers={Name.ORDERS: Name.ORDERS})
    texts = [message.topic, message.key, message.type, *message.headers, *message.headers.values()]
    assert texts == ["orders"] * 5
    assert {type(text) for text in texts} == {str}


def test_ids_are_time_ordered_uuids() -> None:
    messages = [Message.new("orders") for _ in range(2000)]
    ids = [message.id for message in messages]
    assert {identifier.version for identifier in ids} == {7}
    assert ids == sorted(ids)
    assert len(set(ids)) == 2000
    made = datetime.fromtimestamp((ids[0].int >> 80) / 1000, UTC)
    assert abs(made - datetime.now(UTC)) < timedelta(minutes=1)


def test_ids_made_by_threads_are_all_different() -> None:
    ids: list[uuid.UUID] = []
    threads = [threading.Thread(target=lambda: ids.extend(Message.new("t").id for _ in range(500))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 4000


def test_it_is_frozen() -> None:
    message = Message.new("orders")
    with pytest.raises(AttributeError, match="immutable"):
        message.topic = "invoices"  # type: ignore[misc]  # that is what is tested


def test_it_can_be_in_a_set() -> None:
    message = Message.new("orders", headers={"a": "b"})
    assert {message, msgspec.structs.replace(message)} == {message}


def test_V_2_it_shows_neither_payload_nor_headers() -> None:
    message = Message.new("orders", {"card": "4111"}, key="7", headers={"authorization": "4111"})
    for shown in (repr(message), str(message), f"{message}"):
        assert "4111" not in shown
        assert f"Message(id={message.id}, topic='orders', key='7', 32 bytes)" == shown


def test_the_callers_headers_are_copied() -> None:
    headers = {"a": "b"}
    message = Message.new("orders", headers=headers)
    headers["c"] = "d"
    assert message.headers == {"a": "b"}


def test_its_size_is_that_of_payload_and_headers_in_bytes() -> None:
    assert Message.new("orders", "é", headers={"né": "日"}).size == 2 + 3 + 3
    assert Message.new("orders").size == 0


@given(objects)
def test_json_gives_back_what_went_in(payload: dict[str, Any]) -> None:
    assert Message.new("orders", payload).json() == payload


def reordered(value: Any) -> Any:
    """The same value, every dict of it filled the other way round."""
    if isinstance(value, dict):
        return {name: reordered(value[name]) for name in reversed(value)}
    return [reordered(item) for item in value] if isinstance(value, list) else value


@given(objects)
def test_the_digest_does_not_depend_on_the_order_of_a_dict(payload: dict[str, Any]) -> None:
    assert Message.new("orders", payload).digest == Message.new("orders", reordered(payload)).digest


@given(objects, objects)
def test_the_digest_depends_on_the_payload(one: dict[str, Any], other: dict[str, Any]) -> None:
    assume(msgspec.json.encode(one, order="sorted") != msgspec.json.encode(other, order="sorted"))
    assert Message.new("orders", one).digest != Message.new("orders", other).digest


@given(
    st.sampled_from(["topic", "type", "key", "aggregate_type", "aggregate_id", "content_type"]), printable, printable
)
def test_the_digest_depends_on_where_it_goes_and_what_it_is_about(field: str, one: str, other: str) -> None:
    assume(one != other)
    base: dict[str, Any] = {"topic": "orders", "payload": {"a": 1}}
    assert Message.new(**{**base, field: one}).digest != Message.new(**{**base, field: other}).digest


@given(printable)
def test_the_digest_tells_fields_apart(text: str) -> None:
    digests = {Message.new("orders", **{field: text}).digest for field in ("type", "key", "aggregate_type")}  # type: ignore[arg-type]  # keywords
    assert len(digests | {Message.new("orders").digest}) == 4


@given(
    st.dictionaries(printable, printable, max_size=3),
    st.uuids(),
    st.datetimes(datetime.fromisoformat("2000-01-01"), datetime.fromisoformat("2900-01-01"), timezones=st.just(UTC)),
)
def test_the_digest_does_not_depend_on_headers_id_and_times(
    headers: dict[str, str], identifier: uuid.UUID, moment: datetime
) -> None:
    plain = Message.new("orders", {"a": 1}, key="7")
    other = Message.new(
        "orders",
        {"a": 1},
        key="7",
        headers=headers,
        id=identifier,
        idempotency_key="once",
        deliver_at=moment,
        expires_at=moment + timedelta(seconds=1),
    )
    assert other.digest == plain.digest


def test_the_digest_stays_what_it_was() -> None:
    """Stored digests are compared with those of later versions: this one must never change."""
    message = Message.new("orders.created", {"b": 2, "a": [1, None, "é"]}, key="7", type="OrderCreated")
    assert message.digest == "642a070e2ef0eb77de2dabc7f252519060640ce95b4525f4145b535a1b9dd63f"


@given(st.text(no_control, min_size=1, max_size=255))
def test_every_printable_text_of_255_characters_is_accepted(text: str) -> None:
    assume(not text.endswith(" "))
    assume(not text.startswith(("postroom:", "postroom-")))  # reserved; Hypothesis tries our constants
    message = Message.new(text, text, key=text, type=text, headers={text: text}, idempotency_key=text)
    assert (message.topic, message.key, message.idempotency_key) == (text, text, text)


@given(st.text(min_size=1, max_size=20), st.sampled_from(["topic", "type", "content_type", "key", "idempotency_key"]))
def test_what_is_refused_is_refused_as_an_invalid_message(text: str, field: str) -> None:
    values: dict[str, Any] = {"topic": "orders", field: text}
    try:
        message = Message.new(**values)
    except InvalidMessage as refused:
        assert str(refused).startswith(field)  # noqa: PT017 - what is refused is for the rule to say
    else:
        assert getattr(message, field) == text
        assert "\0" not in text


@pytest.fixture(scope="module")
def tracer() -> trace.Tracer:
    return TracerProvider().get_tracer("tests")


def test_V_3_the_current_span_travels_in_the_headers(tracer: trace.Tracer) -> None:
    with tracer.start_as_current_span("placing an order") as span:
        message = Message.new("orders", headers={"a": "b"})
        context = span.get_span_context()
    traceparent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    assert message.headers == {"a": "b", "traceparent": traceparent}


@pytest.mark.parametrize("name", ["traceparent", "Traceparent", "TRACEPARENT"])
def test_V_3_a_trace_context_that_was_given_wins(name: str, tracer: trace.Tracer) -> None:
    with tracer.start_as_current_span("placing an order"):
        assert Message.new("orders", headers={name: TRACEPARENT}).headers == {name: TRACEPARENT}


def test_V_3_without_a_span_there_is_no_trace_context() -> None:
    assert Message.new("orders").headers == {}


def test_V_3_who_never_loaded_opentelemetry_does_not_load_it_with_a_message() -> None:
    program = (
        "import sys; from postroom import Message; print(dict(Message.new('orders').headers), "
        "[name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    shown = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert shown.stdout.strip() == "{} []"


def test_a_key_of_more_digits_than_python_writes_out_is_refused() -> None:
    with pytest.raises(InvalidMessage, match="more than 255 digits"):
        Message.new("t", key=10**5000)
    assert Message.new("t", key=10**254).key == "1" + "0" * 254
