"""``postroom relay`` as a program: how it ends, and what it says when it cannot begin."""

from __future__ import annotations

import json
import os
import signal
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import psutil
import pytest

from postroom import Message
from postroom.cli import main
from tests.crash.processes import wait_until
from tests.crash.program import Program
from tests.crash.shop import check
from tests.services.ports import free_port

if TYPE_CHECKING:
    from pathlib import Path

    from tests.crash.places import Places
    from tests.crash.shop import Shop

SQLITE = pytest.mark.parametrize("kind", ["sqlite"])
POSTGRESQL = pytest.mark.parametrize("kind", ["postgresql"])
BOTH = pytest.mark.parametrize("kind", ["sqlite", "postgresql"])


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(("POSTROOM_", "OUTBOX_")):
            monkeypatch.delenv(name)


def orders(count: int) -> list[Message]:
    return [Message.new("orders.created", {"n": n}, key=f"key-{n % 20}" if n % 2 else None) for n in range(count)]


@pytest.mark.parametrize(
    ("kind", "number"), [("sqlite", signal.SIGTERM), ("sqlite", signal.SIGINT), ("postgresql", signal.SIGTERM)]
)
def test_R_4_a_signal_ends_it_with_0_and_nothing_leased(
    shop: Shop, places: Places, kind: str, number: signal.Signals
) -> None:
    del kind
    shop.commit(*orders(2000))
    with Program(places, shop.url, "--worker", "relay") as program:
        wait_until(places.lines, "it delivers")
        program.signal(number)
        assert program.ended() == 0
        assert "Traceback" not in program.log
    assert shop.leases_of("relay") == 0
    assert shop.workers() == set()
    status = shop.status()
    assert (status.sending, status.sent + status.pending) == (0, 2000)
    assert status.sent == len(places.lines())


@SQLITE
def test_R_4_a_second_signal_ends_it_at_once(shop: Shop, places: Places, kind: str) -> None:
    del kind
    shop.commit(*orders(10))
    places.stuck.touch()
    with Program(places, shop.url, "--broker-timeout-ms", "600000") as program:
        wait_until(places.lines, "it sends")
        program.signal(signal.SIGTERM)
        program.signal(signal.SIGINT)
        assert program.ended() in {128 + signal.SIGTERM, 128 + signal.SIGINT}
        assert "Traceback" not in program.log
    assert shop.status().sent == 0


@POSTGRESQL
def test_several_processes_deliver_are_replaced_when_they_die_and_end_together(
    shop: Shop, places: Places, kind: str
) -> None:
    del kind
    with Program(places, shop.url, "--processes", "2", "--worker", "relay") as program:
        wait_until(lambda: shop.lanes() == {"relay-1": 8, "relay-2": 8}, "both have their share")
        shop.commit(*orders(500))
        wait_until(lambda: not shop.unsent(), "all is sent")
        victim, other = program.children()
        victim.kill()
        wait_until(lambda: "was killed: started again" in program.log, "it is replaced")
        shop.commit(*orders(500))
        wait_until(lambda: not shop.unsent(), "all is sent")
        wait_until(lambda: shop.worker_pids() == {one.pid for one in program.children()}, "the new one is at work")
        program.signal(signal.SIGTERM)
        assert program.ended() == 0
        assert "Traceback" not in program.log
        assert program.log.count("was killed: started again") == 1
        assert not other.is_running()
    assert shop.workers() == set()
    assert shop.lanes() == {}
    check(shop, places)


@SQLITE
def test_processes_do_not_outlive_the_one_that_minds_them(shop: Shop, places: Places, kind: str) -> None:
    del kind
    with Program(places, shop.url, "--processes", "2", "--worker", "relay") as program:
        wait_until(lambda: shop.workers() == {"relay-1", "relay-2"}, "both are at work")
        children = program.children()
        program.signal(signal.SIGKILL)
        wait_until(lambda: not any(map(psutil.Process.is_running, children)), "they end too")
        assert "Traceback" not in program.log
    assert shop.workers() == set()
    assert shop.lanes() == {}


@BOTH
def test_until_empty_ends_when_nothing_is_left_that_could_be_sent(shop: Shop, places: Places, kind: str) -> None:
    del kind
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    shop.commit(Message.new("t", key="poison"), Message.new("t", key="poison"), Message.new("t", deliver_at=tomorrow))
    shop.select("UPDATE {delivery} SET state = 3 WHERE position = 1")
    shop.commit(*orders(200))
    with Program(places, shop.url, "--until-empty", "--json") as program:
        assert program.ended() == 0
        assert json.loads(program.output)["sent"] == 200
    status = shop.status()
    assert (status.sent, status.dead, status.held, status.pending, status.waiting) == (200, 1, 1, 1, 1)
    assert shop.workers() == set()


@SQLITE
def test_R_8_once_sends_what_can_be_sent_now(shop: Shop, places: Places, kind: str) -> None:
    del kind
    shop.commit(*orders(200))
    with Program(places, shop.url, "--once", "--json") as program:
        assert program.ended() == 0
        assert json.loads(program.output)["sent"] == 200
    check(shop, places)


@SQLITE
def test_R_1_a_relay_that_is_switched_off_says_so_and_ends_with_0(shop: Shop, places: Places, kind: str) -> None:
    del kind
    shop.commit(*orders(1))
    with Program(places, shop.url, OUTBOX_ENABLED="false") as program:
        assert program.ended() == 0
        assert "the relay is switched off (OUTBOX_ENABLED): messages are recorded, and wait\n" in program.log
    assert shop.unsent() == 1


WRONG = pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--batch", "0"], "batch = 0 is not valid"),
        (["--broker", "pigeon:"], "pigeon: is not a broker that Postroom knows"),
        (["--broker", "python:tests.crash.program:nothing"], "cannot be loaded"),
        (["--database", "sqlite:///nowhere.db"], "there is no database file nowhere.db"),
        (["--database", "sqlite:///empty.db"], "run `postroom init`"),
        (["--database", "postgresql://127.0.0.1:{port}/shop"], "cannot be reached"),
    ],
)


@SQLITE
@WRONG
def test_what_is_wrong_at_the_start_is_one_line(
    shop: Shop,
    tmp_path: Path,
    kind: str,
    wrong: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    del kind
    (tmp_path / "empty.db").touch()
    monkeypatch.chdir(tmp_path)
    sound = ["--database", shop.url, "--broker", "python:tests.crash.program:publish"]
    assert main(["relay", *sound, *(one.format(port=free_port()) for one in wrong)]) in {1, 2}
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("postroom: ")
    assert said in line


@SQLITE
@WRONG
def test_what_is_wrong_at_the_start_is_one_line_of_each_process_and_no_loop(
    shop: Shop, places: Places, tmp_path: Path, kind: str, wrong: list[str], said: str
) -> None:
    del kind
    (tmp_path / "empty.db").touch()
    arguments = [one.format(port=free_port()) for one in wrong]
    with Program(places, shop.url, *arguments, "--processes", "2") as program:
        assert program.ended() in {1, 2}
        lines = program.log.splitlines()
        [line] = set(lines)
        assert line.startswith("postroom: ")
        assert said in line
        assert len(lines) <= 2
