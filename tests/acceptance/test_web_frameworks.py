"""Relays inside web applications, in real servers: under load, and stopped in the middle of it."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Self

import httpx
import pytest

from postroom import Consumer, Message, Relay
from postroom.brokers.memory import MemoryBroker
from postroom.errors import InvalidSetting
from postroom.web.background import Background
from postroom.web.lifespan import running
from tests.acceptance.service import Service
from tests.acceptance.waiting import wait_for
from tests.acceptance.web_program import FRAMEWORKS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import FreshDatabase

CLIENTS = 8


async def keep_asking(address: str, client: int, answered: list[int], stopping: asyncio.Event) -> None:
    async with httpx.AsyncClient(base_url=address, timeout=30) as http:
        number = client
        while not stopping.is_set():
            try:
                response = await http.post(f"/orders/{number}")
            except httpx.TransportError:  # it is gone
                return
            if response.is_success:
                assert "open" in response.text
                answered.append(number)
            number += CLIENTS


@pytest.mark.parametrize(
    ("framework", "kind"),
    [(framework, "postgresql" if framework in {"fastapi", "flask"} else "sqlite") for framework in FRAMEWORKS],
)
async def test_a_relay_in_an_application_sends_all_and_ends_with_it(
    framework: str, kind: str, ready_database: FreshDatabase, tmp_path: Path
) -> None:
    if framework == "quart":
        pytest.importorskip("quart")
    sent = tmp_path / "sent"
    with closing(Service(ready_database(kind))) as service:
        service.execute("CREATE TABLE shop_order (number INTEGER)")
        program = [sys.executable, "-m", "tests.acceptance.web_program", framework, service.url, str(sent)]
        with await asyncio.to_thread(partial(subprocess.Popen, program, stdout=subprocess.PIPE, text=True)) as process:
            assert process.stdout is not None
            address = (await asyncio.to_thread(process.stdout.readline)).strip()
            assert address
            answered: list[int] = []
            stopping = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                for client in range(CLIENTS):
                    group.create_task(keep_asking(address, client, answered, stopping))
                await wait_for(lambda: sent.exists() and len(sent.read_text().splitlines()) >= 40)
                process.send_signal(signal.SIGTERM)
                await wait_for(lambda: process.poll() is not None)
                stopping.set()
            assert process.returncode in {0, -signal.SIGTERM}  # uvicorn sends itself the signal when all is done
        # What was in flight was finished or given back: no lease keeps the rest from leaving now.
        rest: list[int] = []
        await Relay(service.url, lambda messages: rest.extend(one.json() for one in messages)).run_until_empty()
        written = [int(line) for line in sent.read_text().splitlines()]
        orders = sorted(int(str(number)) for [number] in service.rows("SELECT number FROM shop_order"))
        assert sorted(written + rest) == orders
        assert {*answered} <= {*orders}


def test_only_relays_and_consumers_run_in_an_application() -> None:
    relay = Relay("sqlite://", print)
    for wrong in ([], [print], [relay, relay]):
        with pytest.raises(InvalidSetting):
            running(*wrong)
        with pytest.raises(InvalidSetting):
            Background(*wrong)


async def test_an_application_does_not_start_if_a_part_cannot(tmp_path: Path) -> None:
    consumer = Consumer("billing", MemoryBroker(), database=f"sqlite:///{tmp_path}/gone.db")

    @consumer.handler("orders")
    def handle(message: object) -> None: ...

    with pytest.raises(Exception, match=r"gone\.db"):
        async with running(consumer)(None):
            pass


async def test_a_thread_tries_again_until_a_part_can_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    background = Background(Relay(f"sqlite:///{tmp_path}/later.db", print))
    background.start()
    background.start()
    await wait_for(lambda: "cannot start, and is tried again" in caplog.text)
    background.stop()
    background.stop()


async def test_a_part_that_cannot_start_for_whatever_reason_stops_no_other(
    ready_database: FreshDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Relay):
        async def __aenter__(self) -> Self:
            raise ZeroDivisionError

    sent: list[Message] = []

    async def publish(messages: list[Message]) -> None:
        sent.extend(messages)

    url = ready_database("sqlite")
    background = Background(Broken(url, print), Relay(url, publish))
    background.start()
    try:
        with closing(Service(url)) as service:
            service.commit(Message.new("orders", 7))
            await wait_for(lambda: len(sent) == 1)
        assert "Broken cannot start, and is tried again" in caplog.text
    finally:
        background.stop()


ENDS = """
import sys, threading
from postroom import Relay
from postroom.web.background import Background

asked = threading.Event()

class Asked(Relay):
    async def __aenter__(self):
        await super().__aenter__()
        asked.set()
        return self

background = Background(Asked(sys.argv[1], print))
background.start()
assert asked.wait(30)
background.stop()
asked.clear()
background.start()
assert asked.wait(30)
"""


def test_a_process_that_ends_ends_the_thread_without_a_word(ready_database: FreshDatabase) -> None:
    # Not at `atexit`: by then the executors, in which SQLite works, take nothing more.
    program = [sys.executable, "-X", "dev", "-c", ENDS, ready_database("sqlite")]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
