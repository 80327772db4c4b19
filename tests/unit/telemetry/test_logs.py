"""Logs: what is written of each event, and what never is."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom import Consumer, Message, Outbox, Relay, RetryPolicy
from postroom.brokers.memory import MemoryBroker
from postroom.incoming import Incoming
from postroom.rules.failures import Reason
from postroom.rules.lifecycle import OutcomeCode
from postroom.telemetry import logs
from postroom.telemetry.events import (
    Event,
    Expired,
    HookFailed,
    LeasesLost,
    Lifecycle,
    NotSettled,
    Phase,
    Raised,
    Reachability,
    Settled,
)

if TYPE_CHECKING:
    from pathlib import Path

KEY = "order-7"
MESSAGE = msgspec.structs.replace(
    Message.new("orders.created", {"order_id": 7}, key="customer-1", idempotency_key=KEY, headers={"a": "b"}),
    position=12,
    created_at=datetime.now(UTC) - timedelta(seconds=3),
)
HASHED = hashlib.sha256(KEY.encode()).hexdigest()[:16]


def logged(*events: Event) -> list[dict[str, Any]]:
    stream = io.StringIO()
    hook = logs.structured(stream)
    for event in events:
        hook(event)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    for line in lines:
        assert list(line)[:3] == ["timestamp", "level", "event"]
        assert datetime.fromisoformat(line.pop("timestamp")).tzinfo is not None
        assert line.pop("latency_ms", 3000) >= 3000
    return lines


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (Lifecycle("w1", "started"), {"level": "info", "event": "relay_started", "worker": "w1"}),
        (Lifecycle("w1", "stopped"), {"level": "info", "event": "relay_stopped", "worker": "w1"}),
        (LeasesLost(3, 1), {"level": "warning", "event": "leases_lost", "messages": 3, "lanes": 1}),
        (
            HookFailed("on_dead", "ValueError: of order 7"),
            {"level": "error", "event": "hook_failed", "hook": "on_dead", "error": "ValueError"},
        ),
        (
            Reachability("kafka", reachable=False, reason="no answer"),
            {"level": "error", "event": "broker_unreachable", "adapter": "kafka", "reason": "no answer"},
        ),
        (
            Reachability("nats://nats.internal:4222", reachable=False, reason="nats://nats.internal:4222:\n refused"),
            {
                "level": "error",
                "event": "broker_unreachable",
                "adapter": "nats",
                "broker": "nats://nats.internal:4222",
                "reason": "nats://nats.internal:4222: refused",
            },
        ),
        (
            Reachability("python:shop:publish", reachable=False, reason="the card 4111 cannot be charged now"),
            {"level": "error", "event": "broker_unreachable", "adapter": "python:shop:publish"},
        ),
        (
            Reachability("database", reachable=False, reason="connection refused"),
            {"level": "error", "event": "database_unreachable", "reason": "connection refused"},
        ),
        (
            Settled(OutcomeCode.SUCCESS, [MESSAGE, MESSAGE], broker="kafka"),
            {"level": "info", "event": "outbox_flush_success", "status": "sent", "messages": 2, "adapter": "kafka"},
        ),
    ],
)
def test_V_2_what_happened_is_one_line(event: Event, line: dict[str, Any]) -> None:
    assert logged(event) == [line]


@pytest.mark.parametrize(
    ("event", "level", "rest"),
    [
        (
            Settled(OutcomeCode.RETRY, [MESSAGE], 2, "TIMEOUT", "no answer within 2.5 s", "kafka", 2.5),
            "warning",
            {"status": "waiting", "attempts": 2, "reason_code": "TIMEOUT", "adapter": "kafka", "send_ms": 2500.0},
        ),
        (
            Settled(OutcomeCode.DEAD, [MESSAGE], 6, "INVALID_TARGET", "no such topic"),
            "error",
            {"status": "dead", "attempts": 6, "reason_code": "INVALID_TARGET"},
        ),
        (Settled(OutcomeCode.CONFLICT, [MESSAGE]), "warning", {}),
        (Settled(OutcomeCode.DEDUP_HIT, [MESSAGE], 1), "info", {"status": "sent", "attempts": 1}),
        (Settled(OutcomeCode.DB_ERROR, [MESSAGE]), "error", {}),
    ],
)
def test_V_2_a_message_that_was_not_simply_sent_has_a_line_of_its_own(
    event: Settled, level: str, rest: dict[str, Any]
) -> None:
    [line] = logged(event)
    assert line == {
        "level": level,
        "event": event.outcome.value,
        "outbox_id": str(MESSAGE.id),
        "position": 12,
        "topic": "orders.created",
        "idempotency_key_sha256": HASHED,
        **rest,
    }


def test_each_message_of_a_conflict_is_named() -> None:
    assert len(logged(Settled(OutcomeCode.CONFLICT, [MESSAGE, MESSAGE]))) == 2


def test_a_message_without_a_key_or_a_time_has_none_in_its_line() -> None:
    [line] = logged(Settled(OutcomeCode.RETRY, [Message.new("t")], 1, "TIMEOUT"))
    assert not {"idempotency_key_sha256", "latency_ms", "adapter"} & set(line)


def test_phases_are_for_metrics() -> None:
    assert logged(Phase("claim", 0, 0.1), Phase("send", 5, 0.1)) == []


def test_going_away_is_said_once_and_coming_back_once() -> None:
    away, back = Reachability("database", reachable=False), Reachability("database", reachable=True)
    broker = Reachability("stdout", reachable=False)
    said = [line["event"] for line in logged(back, away, away, broker, broker, back, back)]
    assert said == ["database_unreachable", "broker_unreachable", "database_reachable"]


def test_of_several_brokers_each_is_said_with_its_queue() -> None:
    away = [Reachability("kafka", reachable=False, queue=queue) for queue in ("topic:a.*", "topic:b.*", "topic:a.*")]
    back = Reachability("kafka", reachable=True, queue="topic:b.*")
    said = [(line["event"], line["queue"]) for line in logged(*away, back)]
    assert said == [
        ("broker_unreachable", "topic:a.*"),
        ("broker_unreachable", "topic:b.*"),
        ("broker_reachable", "topic:b.*"),
    ]


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("TIMEOUT", "TIMEOUT"),
        ("http.503", "http.503"),
        ("421", "421"),
        ("x" * 65, "OTHER"),
        ("card 4111 refused", "OTHER"),
    ],
)
def test_a_reason_code_is_one_word(code: str, shown: str) -> None:
    [line] = logged(Settled(OutcomeCode.RETRY, [MESSAGE], 1, code))
    assert line["reason_code"] == shown


@pytest.mark.parametrize(
    ("given_name", "shown"),
    [("amqp://guest:word@host/", "amqp"), ("stdout:", "stdout"), ("python:shop:publish", "python:shop:publish")],
)
def test_of_a_url_only_the_scheme_is_written(given_name: str, shown: str) -> None:
    [sent] = logged(Settled(OutcomeCode.SUCCESS, [MESSAGE], broker=given_name))
    assert sent["adapter"] == shown


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_it_is_text_in_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    coloured, plain, as_json = Terminal(), Terminal(), Terminal()
    logs.structured(coloured)(Lifecycle("w1\x1b[2J", "started"))
    assert "\x1b[1mrelay_started" in coloured.getvalue()
    assert "\x1b[2J" not in coloured.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    logs.structured(plain)(Settled(OutcomeCode.RETRY, [MESSAGE], 2, Reason.TIMEOUT))
    assert re.match(r"\S+Z \[warning *\] outbox_flush_retry +outbox_id='\S+' position=12 topic=", plain.getvalue())
    assert "reason_code='TIMEOUT'" in plain.getvalue()
    logs.structured(as_json, json=True)(Lifecycle("w1", "started"))
    assert json.loads(as_json.getvalue())["event"] == "relay_started"


def test_standard_error_is_where_it_goes(capsys: pytest.CaptureFixture[str]) -> None:
    logs.structured()(Lifecycle("w1", "started"))
    written = capsys.readouterr()
    assert written.out == ""
    assert json.loads(written.err)["event"] == "relay_started"


def test_a_stream_that_is_closed_stops_nothing() -> None:
    stream = io.StringIO()
    hook = logs.structured(stream)
    stream.close()
    hook(Lifecycle("w1", "stopped"))


def test_the_application_s_own_structlog_stays_as_it_is() -> None:
    before = structlog.get_config()
    structlog.configure(processors=[lambda *_: pytest.fail("the application's processor was called")])
    try:
        assert len(logged(Lifecycle("w1", "started"))) == 1
    finally:
        structlog.configure(**before)


def test_structlog_is_loaded_when_a_log_in_text_is_asked_for() -> None:
    program = (
        "import sys; from postroom.telemetry import events, logs\n"
        "logs.structured(json=True)(events.Lifecycle('w1', 'started')); assert 'structlog' not in sys.modules\n"
        "logs.structured(json=False)(events.Lifecycle('w1', 'started')); assert 'structlog' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


SECRET = "s3cr3t-"  # noqa: S105 - a made-up one


@settings(deadline=None)
@given(
    secret=st.text("0123456789abcdef", min_size=8, max_size=30).map(lambda rest: SECRET + rest),
    outcome=st.sampled_from(OutcomeCode),
    as_json=st.booleans(),
)
def test_V_2_payload_key_password_and_error_text_are_in_no_line(
    secret: str,
    outcome: OutcomeCode,
    as_json: bool,  # noqa: FBT001 - hypothesis chooses
) -> None:
    message = Message.new(
        "orders", {"card": secret}, key=secret, idempotency_key=secret, headers={"authorization": secret}, type="T"
    )
    url = f"amqp://user:{secret}@host"
    stream = io.StringIO()
    hook = logs.structured(stream, json=as_json)
    for event in (
        Settled(outcome, [message], 3, f"refused: {secret}", f"the card {secret} was refused", url, 1.0),
        Reachability(url, reachable=False, reason=f"{url} did not answer"),
        Reachability("database", reachable=False, reason=f"postgresql://shop:{secret}@db/shop refused us"),
        Raised("publish", [message], ValueError(f"cannot read {secret}")),
        Expired([message]),
        NotSettled(message, f"cannot write {secret}"),
        HookFailed("on_dead", f"ValueError: {secret}"),
        HookFailed("on_dead", f"{secret} alone: and more"),
    ):
        hook(event)
    written = stream.getvalue()
    assert len(written.splitlines()) == 8
    assert secret not in written


async def test_V_2_a_relay_that_fails_logs_codes_and_never_what_the_function_said(
    tmp_path: Path, postroom_database: str
) -> None:
    import aiosqlite

    async with aiosqlite.connect(postroom_database.removeprefix("sqlite:///")) as connection:
        await Outbox().aadd(connection, "orders", {"card": SECRET}, idempotency_key=SECRET)
        await connection.commit()

    def publish(message: Message) -> None:
        raise ValueError(f"cannot read {message.json()}")

    log = tmp_path / "relay.log"
    with log.open("w") as stream:
        hook = logs.structured(stream)
        policy = RetryPolicy.table([0], max_attempts=2)
        await Relay(postroom_database, publish, hook=hook, policy=policy).run_once()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["event"] for line in lines] == [
        "relay_started",
        "function_failed",
        "outbox_flush_retry",
        "function_failed",
        "outbox_flush_dead",
        "relay_stopped",
    ]
    retry, dead = lines[2], lines[4]
    assert (retry["attempts"], dead["attempts"]) == (1, 2)
    assert all(line["latency_ms"] >= 0 for line in (retry, dead))
    assert lines[1]["error"] == "ValueError"
    assert re.fullmatch(r"\S*test_logs\.py:\d+, in publish", lines[1]["where"])
    assert SECRET not in log.read_text()


def failing(message: Message) -> None:
    raise ValueError(f"cannot read {message.topic} at amqp://shop:word@host")


def raised() -> Raised:
    try:
        failing(MESSAGE)
    except ValueError as error:
        received = Incoming(id="m1", topic="orders", payload=b"", content_type="text/plain")
        return Raised("bill", [received], error, "billing")
    raise AssertionError


def test_V_2_a_handler_that_fails_is_named_with_file_and_line_and_its_traceback_is_written_if_wanted() -> None:
    [line] = logged(raised())
    where = line.pop("where")
    assert re.fullmatch(r"\S*test_logs\.py:\d+, in failing", where)
    assert line == {
        "level": "warning",
        "event": "handler_failed",
        "function": "bill",
        "consumer": "billing",
        "message_id": "m1",
        "topic": "orders",
        "error": "ValueError",
    }
    stream = io.StringIO()
    logs.structured(stream, tracebacks=True)(raised())
    exception = json.loads(stream.getvalue())["exception"]
    assert exception.startswith("Traceback (most recent call last):")
    assert exception.endswith("ValueError: cannot read orders.created at amqp://***@host")


def test_V_2_a_terminal_gets_tracebacks_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    shown, hidden = Terminal(), Terminal()
    logs.structured(shown)(raised())
    logs.structured(hidden, tracebacks=False)(raised())
    assert "\nTraceback (most recent call last):\n" in shown.getvalue()
    assert "Traceback" not in hidden.getvalue()
    assert "test_logs.py" in hidden.getvalue()


@pytest.mark.parametrize(("level", "written"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)])
def test_V_2_nothing_below_the_level_is_written(level: str, written: int) -> None:
    stream = io.StringIO()
    hook = logs.structured(stream, level=level)
    for event in (Phase("send", 3, 0.5), Lifecycle("w1", "started"), LeasesLost(1, 0), Reachability("x", False, "y")):  # noqa: FBT003 - a field
        hook(event)
    assert len(stream.getvalue().splitlines()) == written


def test_a_dumb_terminal_gets_no_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    logs.structured(stream)(Lifecycle("w1", "started"))
    assert "\x1b" not in stream.getvalue()


def test_records_of_pythons_own_log_are_written_in_the_same_form() -> None:
    stream = io.StringIO()
    handler = logs.Records(stream, level="warning")
    log = logging.getLogger("postroom.test")
    log.addHandler(handler)
    log.propagate = False
    try:
        log.info("not this")
        log.error("%s failed", "it", exc_info=ValueError("no"))
    finally:
        log.removeHandler(handler)
        log.propagate = True
    [line] = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert (line["level"], line["event"], line["logger"], line["message"], line["exception"]) == (
        *("error", "log", "postroom.test", "it failed"),
        "ValueError: no",
    )


@pytest.mark.parametrize(
    ("wanted", "on_terminal", "written"), [(True, False, 1), (None, True, 1), (None, False, 0), (False, True, 0)]
)
async def test_V_2_a_consumer_in_code_writes_tracebacks_to_pythons_log(
    wanted: bool | None,  # noqa: FBT001 - a parameter of the test
    on_terminal: bool,  # noqa: FBT001 - a parameter of the test
    written: int,
    postroom_database: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: on_terminal, raising=False)
    broker = MemoryBroker()
    consumer = Consumer("billing", broker, database=postroom_database, tracebacks=wanted)

    @consumer.handler("orders.created", attempts=1)
    def bill(message: Message) -> None:
        failing(message)

    await broker.publish([Message.new("orders.created", {})], timeout=1)
    assert (await consumer.run_once()).dead == 1
    found = [record.getMessage() for record in caplog.records if record.name == "postroom"]
    assert len(found) == written
    for text in found:
        assert "failed: consumer=billing message_id=" in text
        assert "in failing" in text
        assert "Traceback" in text


def test_tracebacks_are_written_once() -> None:
    assert logs.with_tracebacks(None, False) is None  # noqa: FBT003 - a setting
    writes = logs.structured(io.StringIO(), tracebacks=True)
    assert logs.with_tracebacks(writes, True) is writes  # noqa: FBT003 - a setting


def test_a_log_that_was_told_to_have_no_tracebacks_has_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    without = logs.structured(io.StringIO(), tracebacks=False)
    assert logs.with_tracebacks(without, None) is without
    assert logs.with_tracebacks(without, True) is not without  # noqa: FBT003 - a setting
