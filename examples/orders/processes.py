"""The programs, each a process of its own with a port of its own: service, exchange and relays."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import httpx

from examples.orders import adapter, exchange, service
from examples.shutdown import signals_deferred, start
from examples.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from examples.shutdown import Process

ROOT = Path(__file__).parents[2]
TIMEOUT = 60.0
FAST = {
    "OUTBOX_POLL_INTERVAL_SEC": "0.05",
    "OUTBOX_LOCK_LEASE_SEC": "1",
    "OUTBOX_BACKOFF_SEC": "0.2",
    "OUTBOX_MAX_ATTEMPTS": "3",
    "BROKER_TIMEOUT_MS": "1000",
}
"""To make the example quick; a real service keeps the defaults."""


class OrderSystem:
    """Runs service and exchange on one database, and relays on demand; all of them end with the block.

    The output of the processes is in files in the directory.
    """

    def __init__(self, directory: Path, database: str, find_port: Callable[[], int] | None = None) -> None:
        self.database = database
        self._directory = directory
        self._stack = ExitStack()
        self._ports = {name: (find_port or free_port)() for name in ("service", "exchange")}
        self.service = self._stack.enter_context(httpx.Client(base_url=self.url("service"), timeout=TIMEOUT))
        self.exchange = self._stack.enter_context(httpx.Client(base_url=self.url("exchange"), timeout=TIMEOUT))

    def __enter__(self) -> Self:
        try:
            with signals_deferred():
                service.set_up(self.database)
            started, self._exchange = self._serve("service"), self._serve("exchange")
            self._await_answer("service", started)
            self._await_answer("exchange", self._exchange)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def url(self, name: str) -> str:
        """The URL of the service or the exchange."""
        return f"http://127.0.0.1:{self._ports[name]}"

    def start_exchange_again(self) -> None:
        """Wait until the exchange has died, and start it again; it reads its book."""
        self._exchange.wait(TIMEOUT)
        self._exchange = self._serve("exchange")
        self._await_answer("exchange", self._exchange)

    def start_relay(self, name: str, **settings: str) -> Process:
        """Start a relay: just ``postroom relay``, with settings as environment variables."""
        broker = f"python:{adapter.__name__}:{adapter.send.__name__}"
        return self._start(
            name, ["-m", "postroom", "relay", "--broker", broker, "--worker", name], {**FAST, **settings}
        )

    def order(self, key: str, symbol: str = "ACME", quantity: int = 1) -> httpx.Response:
        """Ask the service to buy something."""
        wish = {"symbol": symbol, "side": "buy", "quantity": quantity}
        return self.service.post("/do/order", json=wish, headers={"Idempotency-Key": key})

    def outcome(self, key: str) -> dict[str, Any]:
        """What the service says about an order."""
        outcome: dict[str, Any] = self.service.get(f"/do/order/{key}").raise_for_status().json()
        return outcome

    def set_mood(self, mood: exchange.Mood) -> None:
        """Change the exchange's mood."""
        self.exchange.put(f"/mood/{mood}").raise_for_status()

    def calls(self, key: str) -> int:
        """How often the exchange received this order."""
        calls: list[str] = self._book()["calls"]
        return calls.count(f"demo/{key}")

    def trades(self) -> dict[str, Any]:
        """The trades of the exchange, by key."""
        trades: dict[str, Any] = self._book()["trades"]
        return {key.removeprefix("demo/"): trade for key, trade in trades.items()}

    def _book(self) -> dict[str, Any]:
        book: dict[str, Any] = self.exchange.get("/book").raise_for_status().json()
        return book

    def _serve(self, name: str) -> Process:
        place = ["--host", "127.0.0.1", "--port", str(self._ports[name]), "--timeout-graceful-shutdown", "1"]
        return self._start(name, ["-m", "uvicorn", f"examples.orders.{name}:app", *place, "--log-level", "warning"], {})

    def _start(self, name: str, arguments: list[str], settings: Mapping[str, str]) -> Process:
        environment = {
            **os.environ,
            "POSTROOM_DATABASE": self.database,
            adapter.EXCHANGE: self.url("exchange"),
            exchange.BOOK: str(self._directory / "exchange.book"),
            **settings,
        }
        with self._log(name).open("ab") as log:
            outlets: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            return start(self._stack, [sys.executable, *arguments], cwd=ROOT, env=environment, **outlets)

    def _await_answer(self, name: str, process: Process) -> None:
        def answers() -> bool:
            if process.poll() is not None:
                raise SystemExit(f"the {name} does not start:\n{self._log(name).read_text()}")
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self._ports[name])) == 0

        wait_until(answers, f"the {name} answers")

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.log"


def kill(process: Process) -> None:
    """Kill a process, as a crash would."""
    process.send_signal(signal.SIGKILL)
    process.wait()


def free_port() -> int:
    """A port of this machine on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
