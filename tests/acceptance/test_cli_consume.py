"""``postroom consume``: a consumer as a program of its own, with a real broker."""

from __future__ import annotations

import json
import os
import pty
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from postroom import Message, Relay
from postroom.cli import main
from tests.acceptance.service import Service
from tests.services.databases import need
from tests.services.nats import Nats
from tests.services.pauses import pause

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conftest import FreshDatabase

PATIENCE = 60

APPLICATION = """
import time
from pathlib import Path
from postroom import Consumer

consumer = Consumer("billing", {broker!r}, database={database!r}, poll_interval_sec=0.02)
nothing = 7

@consumer.handler({topic!r}, delays=[0.05])
def bill(connection, message):
    if message.json()["n"] == 13 and not Path("failed").exists():
        Path("failed").touch()
        raise RuntimeError("secret-payload")
    connection.exec_driver_sql("INSERT INTO bill VALUES (?)", (message.json()["n"],))
    if message.json()["n"] == 99:
        Path("began").touch()
        while not Path("go-on").exists():
            time.sleep(0.01)
"""


class Shop:
    """A service's folder: its database, its application, and a topic of its own at the broker."""

    def __init__(self, folder: Path, nats: Nats) -> None:
        self.folder = folder
        self.database = f"sqlite:///{folder}/shop.db"
        self.topic = f"orders-{uuid4().hex}"
        self.broker = f"nats://127.0.0.1:{nats.port}?declare=true&stream={self.topic}&subjects={self.topic}&ack_wait=2"
        self.service = Service(self.database)
        self.service.execute("CREATE TABLE bill (number INTEGER)")
        text = APPLICATION.format(broker=self.broker, database=self.database, topic=self.topic)
        (folder / "application.py").write_text(text)

    async def send(self, *numbers: int) -> None:
        self.service.commit(*(Message.new(self.topic, {"n": n}, key="k") for n in numbers))
        await Relay(self.database, self.broker).run_until_empty()

    def bills(self) -> list[int]:
        with closing(sqlite3.connect(self.folder / "shop.db")) as connection:
            return sorted(number for [number] in connection.execute("SELECT number FROM bill"))

    def start(self, *options: str, errors_to: int = subprocess.PIPE) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "postroom", "consume", "--app", "application:consumer", *options]
        return subprocess.Popen(
            command, cwd=self.folder, stdout=subprocess.PIPE, stderr=errors_to, text=True, env=plain_environment()
        )


def plain_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("POSTROOM_", "OUTBOX_"))}


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path, need(Nats))
    with closing(shop.service):
        yield shop


def wait_until(condition: Callable[[], object]) -> None:
    asked = time.monotonic()
    deadline = asked + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(pause(asked, 0.02))
        asked = time.monotonic()


async def test_I_2_a_consumer_process_handles_until_it_is_told_to_stop(shop: Shop) -> None:
    await shop.send(*range(20))
    process = shop.start()
    wait_until(lambda: shop.bills() == list(range(20)))
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (0, "")
    lines = [json.loads(line) for line in err.splitlines()]
    told = [line["event"] for line in lines]
    assert (told[0], told[-1]) == ("consumer_started", "consumer_stopped")
    [parked] = [line for line in lines if line["event"] == "message_parked" and "reason_code" in line]
    assert (parked["consumer"], parked["topic"], parked["reason_code"]) == ("billing", shop.topic, "INTERNAL_ERROR")
    assert "secret-payload" not in err
    [failed] = [line for line in lines if line["event"] == "handler_failed"]
    assert (failed["function"], failed["error"], failed["where"]) == (
        "bill",
        "RuntimeError",
        "application.py:13, in bill",
    )


async def test_I_2_a_failing_handler_s_traceback_is_logged_where_it_is_asked_for(shop: Shop) -> None:
    await shop.send(13)
    process = shop.start("--once", "--tracebacks", "--log-level", "warning", "--log-format", "json")
    _, err = process.communicate(timeout=PATIENCE)
    failed, parked = (json.loads(line) for line in err.splitlines())
    assert failed["exception"].splitlines()[0] == "Traceback (most recent call last):"
    assert failed["exception"].splitlines()[-1] == "RuntimeError: secret-payload"
    assert "postroom/consumer" not in failed["exception"]
    assert parked["event"] == "message_parked"
    command = [sys.executable, "-m", "postroom", "messages", "show", parked["outbox_id"], "--json"]
    found = subprocess.run([*command, "--database", shop.database], capture_output=True, text=True, check=True)  # noqa: ASYNC221 - a test waits
    shown = json.loads(found.stdout)
    assert (shown["id"], shown["queue"]) == (parked["outbox_id"], "handler:billing")


@pytest.mark.parametrize(("options", "shows"), [([], 1), (["--tracebacks"], 1), (["--no-tracebacks"], 0)])
async def test_I_2_on_a_terminal_a_failing_handler_s_traceback_is_shown_once_unless_told_otherwise(
    shop: Shop, options: list[str], shows: int
) -> None:
    await shop.send(13)
    ours, terminal = pty.openpty()
    process = shop.start("--once", *options, errors_to=terminal)
    os.close(terminal)
    shown = bytearray()
    with suppress(OSError):  # how Linux says that the other side of a terminal has gone
        while part := os.read(ours, 4096):
            shown += part
    os.close(ours)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert shown.count(b"Traceback (most recent call last):") == shows
    assert shown.count(b"RuntimeError: secret-payload") == shows
    assert b"application.py:13, in bill" in shown


async def test_a_stop_lets_the_handler_end_and_a_second_one_does_not(shop: Shop) -> None:
    await shop.send(99)
    process = shop.start()
    wait_until((shop.folder / "began").exists)
    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.5)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=PATIENCE) == 128 + signal.SIGINT
    process.communicate()
    assert shop.bills() == []
    (shop.folder / "go-on").touch()
    process = shop.start()
    wait_until(lambda: shop.bills() == [99])
    process.terminate()
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 0


async def test_R_8_once_handles_what_is_there_and_reports(shop: Shop) -> None:
    await shop.send(1, 2, 3)
    process = shop.start("--once", "--json")
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    assert json.loads(out) == {"billing": {"handled": 3, "duplicates": 0, "parked": 0, "dead": 0, "skipped": 0}}
    assert shop.bills() == [1, 2, 3]


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("application", "write module:object"),
        ("no_such_module:consumer", "'no_such_module', neither in the working directory nor installed\n"),
        ("no_such_module:consumer", "cannot be loaded: ModuleNotFoundError"),
        ("application:no_such", "cannot be loaded: AttributeError"),
        ("application:nothing", "is a int: give a Consumer, or a list of them"),
    ],
)
def test_a_wrong_address_is_told(
    shop: Shop, address: str, problem: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(shop.folder)
    monkeypatch.syspath_prepend(str(shop.folder))
    monkeypatch.delitem(sys.modules, "application", raising=False)
    assert main(["consume", "--app", address]) == 2
    assert problem in capsys.readouterr().err


def test_a_consumer_without_a_broker_is_told_to_have_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "brokerless.py").write_text('from postroom import Consumer\nconsumer = Consumer("billing")\n')
    assert main(["consume", "--app", "brokerless:consumer"]) == 2
    assert "the consumer 'billing' has no broker" in capsys.readouterr().err


HANGING = """
import asyncio, time
from postroom import Consumer, Message
from postroom.brokers.memory import MemoryBroker

broker = MemoryBroker()
broker.messages.append(Message.new("orders", {{}}))
consumer = Consumer("billing", broker, database={database!r})

@consumer.handler("orders", timeout=0.5, delays=[3600])
{handler}
"""
SYNC = """
def bill(connection, message):
    time.sleep(1000)
"""
DEAF = """
async def bill(connection, message):
    while True:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            pass
"""


@pytest.mark.parametrize("handler", [SYNC, DEAF], ids=["sync", "async"])
def test_a_handler_that_never_ends_does_not_keep_the_process(
    tmp_path: Path, fresh_database: FreshDatabase, handler: str
) -> None:
    """Python waits for tasks at its end: the process would stay until it is killed."""
    database = fresh_database("postgresql")
    with closing(Service(database)) as service:
        (tmp_path / "application.py").write_text(HANGING.format(database=database, handler=handler.strip()))
        command = [sys.executable, "-m", "postroom", "consume", "--app", "application:consumer", "--once", "--json"]
        ended = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, env=plain_environment(), timeout=PATIENCE, check=True
        )
        assert json.loads(ended.stdout)["billing"]["parked"] == 1
        assert len(service.rows(f"SELECT position FROM {service.table('delivery')} WHERE state = 2")) == 1
