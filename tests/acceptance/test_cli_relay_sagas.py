"""``postroom relay --app``: sagas run by a program of its own."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from postroom.cli import main
from postroom.saga.messages import queue_of_saga
from tests.acceptance.probing import PATIENCE, plain_environment, wait_until
from tests.acceptance.saga_support import Sagas
from tests.acceptance.service import Service

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import FreshDatabase

APPLICATION = """
import asyncio, time
from pathlib import Path
from postroom import Consumer, Saga
from sqlalchemy import text

place_order, cancel_order, slow, deaf = Saga("place_order"), Saga("cancel_order"), Saga("slow"), Saga("deaf")
shipping = Saga("shipping")
several = [place_order, cancel_order]
consumer = Consumer("billing")
nothing = []

def write(saga):
    saga.connection.execute(text("INSERT INTO effect VALUES (:what)"), {"what": f"{saga.name} {saga.id}"})

record = place_order.step(write)
cancel_order.step(write)

@slow.step
def wait(saga):
    saga.connection.execute(text("INSERT INTO effect VALUES (:what)"), {"what": saga.id})
    Path(f"began-{saga.id}").touch()
    while not Path("go-on").exists():
        time.sleep(0.01)

@slow.step
def after(saga):
    raise AssertionError("nobody should run this here")

@shipping.call
async def load(saga):
    Path(f"began-{saga.id}").touch()
    while not Path("go-on").exists():
        await asyncio.sleep(0.01)

shipping.step(write, name="deliver")

@deaf.call(timeout=0.3)
async def ignore(saga):
    while True:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            pass

@deaf.call(timeout=0.3)
def sleep(saga):
    time.sleep(1000)
"""


class Shop:
    """A service's folder, with its database and its application."""

    def __init__(self, folder: Path, service: Service) -> None:
        self.folder = folder
        self.service = service
        self.sagas = Sagas(service)
        service.execute("CREATE TABLE effect (what VARCHAR(100))")
        (folder / "application.py").write_text(APPLICATION)
        self._namespace: dict[str, Any] = {}
        exec(APPLICATION, self._namespace)  # noqa: S102 - the same application, to start its sagas

    def start(self, saga: str, *ids: str) -> None:
        with self.service.engine.begin() as connection:
            for one in ids:
                self._namespace[saga].start(connection, {}, id=one)

    def effects(self) -> list[str]:
        with self.service.engine.begin() as connection:
            return sorted(what for (what,) in connection.execute(text("SELECT what FROM effect")))

    def command(self, *options: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "postroom", "relay", "--database", self.service.url, *options],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=plain_environment(),
        )

    def ended(self, *options: str) -> tuple[int, str, str]:
        process = self.command(*options)
        out, err = process.communicate(timeout=PATIENCE)
        return process.returncode, out, err


@pytest.fixture(params=["postgresql"])
def shop(request: pytest.FixtureRequest, tmp_path: Path, ready_database: FreshDatabase) -> Iterator[Shop]:
    with closing(Service(ready_database(request.param))) as service:
        yield Shop(tmp_path, service)


@pytest.mark.parametrize("shop", ["sqlite", "postgresql"], indirect=True)
def test_S_1_the_command_runs_one_saga_or_a_list_of_them(shop: Shop) -> None:
    shop.start("place_order", "1", "2")
    shop.start("cancel_order", "3")
    code, out, err = shop.ended("--app", "application:place_order", "--until-empty", "--json")
    assert code == 0, err
    assert (json.loads(out)["completed"], shop.effects()) == (2, ["place_order 1", "place_order 2"]), err
    code, out, err = shop.ended("--app", "application:several", "--once", "--json", "--saga-concurrency", "2")
    assert code == 0, err
    assert (json.loads(out)["completed"], shop.effects()[0]) == (1, "cancel_order 3")


def test_S_1_the_command_runs_several_apps_in_several_processes_beside_a_broker(shop: Shop) -> None:
    shop.start("place_order", *(str(number) for number in range(20)))
    shop.start("cancel_order", "x")
    with shop.service.engine.begin() as connection:
        from postroom import Outbox

        Outbox().add(connection, "orders", {"n": 1})
    apps = ("--app", "application:place_order", "--app", "application:cancel_order")
    code, out, err = shop.ended(*apps, "--broker", "stdout:", "--processes", "2", "--until-empty")
    assert code == 0, err
    assert len(shop.effects()) == 21
    assert [json.loads(line)["payload"] for line in out.splitlines()] == [{"n": 1}]


def test_S_1_sigterm_finishes_the_step_and_gives_the_saga_back(shop: Shop) -> None:
    shop.start("slow", "7")
    process = shop.command("--app", "application:slow")
    wait_until((shop.folder / "began-7").exists)
    process.send_signal(signal.SIGTERM)
    (shop.folder / "go-on").touch()
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    assert shop.effects() == ["7"]
    assert shop.sagas.steps("7") == [("forward", "wait", "done")]
    delivery = shop.service.table("delivery")
    [leased] = shop.service.rows(f"SELECT leased_until > now() FROM {delivery} WHERE queue = '{queue_of_saga('slow')}'")
    assert not leased[0]


@pytest.mark.parametrize("shop", ["sqlite"], indirect=True)
def test_S_1_a_disk_that_was_full_is_reported_once_and_sagas_go_on_as_soon_as_it_has_room(shop: Shop) -> None:
    ids = ["1", "2", "3", "4"]
    shop.start("shipping", *ids)
    told: list[str] = []
    with shop.command("--app", "application:shipping") as process, ExitStack() as stack:
        reader = threading.Thread(target=lambda: told.extend(process.stderr or ()))
        reader.start()
        stack.callback(reader.join, PATIENCE)
        stack.callback(process.kill)
        for one in ids:
            wait_until((shop.folder / f"began-{one}").exists)
        _, most = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, most))
        (shop.folder / "go-on").touch()
        wait_until(lambda: any("disk" in line for line in told))
        time.sleep(2)  # for as long as it takes to give up what cannot be written
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (most, most))
        wait_until(lambda: set(shop.sagas.outcomes().values()) == {"completed"})
        process.terminate()
        assert process.wait(PATIENCE) == 0, told
    assert shop.effects() == [f"shipping {one}" for one in ids]
    assert len([line for line in told if "disk" in line]) == 1, told
    assert {str(row[0]) for row in shop.service.rows(f"SELECT attempts FROM {shop.service.table('saga_step')}")} == {
        "1"
    }


def test_S_1_calls_that_never_end_do_not_keep_the_process(shop: Shop) -> None:
    shop.start("deaf", "7")
    process = shop.command("--app", "application:deaf", "--until-empty", "--json")
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    assert json.loads(out)["completed"] == 0


@pytest.mark.parametrize("shop", ["sqlite"], indirect=True)
def test_S_1_an_app_that_is_no_saga_is_refused(
    shop: Shop, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shop.folder)
    monkeypatch.syspath_prepend(str(shop.folder))
    monkeypatch.delitem(sys.modules, "application", raising=False)
    monkeypatch.setattr("os.environ", plain_environment())
    for app, problem in {
        "application": "does not name an object: write module:object",
        "nowhere:saga": "No module named 'nowhere', neither in the working directory nor installed",
        "application:missing": "has no attribute 'missing'",
        "application:nothing": "is a list: give a Saga, a TwoPhaseCommit, or a list of them",
        "application:record": "is a Step",
        "application:consumer": "consumers are run by `postroom consume`",
    }.items():
        assert main(["relay", "--app", app, "--once", "--database", shop.service.url]) == 2
        assert problem in capsys.readouterr().err
    assert main(["relay", "--app", "application:slow", "--app", "application:slow", "--once"]) == 2
    assert "saga 'slow' is given twice" in capsys.readouterr().err
