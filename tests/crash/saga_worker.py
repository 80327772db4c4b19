"""Sagas in processes of their own, which die or stop, on demand, at a named point.

The points are met in the saga's functions and around the store's operations; the code that runs sagas knows none.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Self
from unittest.mock import patch

import msgspec
from sqlalchemy import text

from postroom import Admin, Inbox, Relay, RetryPolicy, Saga
from postroom.rules.saga_plan import Direction
from postroom.store.outbox import workers
from postroom.store.saga.saga_store import SagaStore
from tests.contract.schema_support import engine_for
from tests.crash.places import append
from tests.crash.relay_worker import QUICK, SILENT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from postroom.saga.context import SagaContext
    from postroom.store.saga.values import Entry

NAME = "place_order"
PACKED = "packed"
STEPS = ("reserve", "charge", "pack", "invoice", "label", "ship")
"""All of them, in the order of the plan; invoice and label are a group."""
BANK = Inbox("bank")
INSERT = text("INSERT INTO effect (saga, step, direction, worker) VALUES (:saga, :step, :direction, :worker)")
SOON = RetryPolicy.table([0.05], max_attempts=3)
OPERATIONS = ("log", "log_many", "turn", "wait", "receive", "park")
"""Operations of the store around which a process can die."""


class Order(msgspec.Struct):
    """What a saga is started with."""

    fails_at: str = ""
    """The step that fails, for good."""
    parks_at: str = ""
    """The step whose compensation fails until the file `mended` is there."""
    kills_at: str = ""
    """The step that kills its worker, whenever it is tried."""


@dataclass
class Fate:
    """What a process does to itself when it comes to a point for the nth time."""

    point: str
    nth: int = 1
    signal: signal.Signals = signal.SIGKILL
    _met: int = field(default=0, init=False)

    def meet(self, point: str) -> None:
        """Here is the point."""
        if point == self.point:
            self._met += 1
            if self._met == self.nth:
                signal.raise_signal(self.signal)  # to this thread, which so does not run on for a moment


NOTHING = Fate("")


def run(name: str, url: str, directory: Path, fate: Fate = NOTHING, **settings: Any) -> None:
    """Run sagas until SIGTERM."""
    quick = {name: value for name, value in QUICK.items() if name not in {"backoff_sec", "batch"}}
    with ExitStack() as stack:
        stack.enter_context(patch.object(workers, "ALIVE_SECONDS", SILENT))
        stack.enter_context(patch.object(SagaStore, "__init__", _met_around_operations(fate)))
        saga = stack.enter_context(_Shop(name, url, directory, fate)).saga()
        relay = Relay(url, sagas=[saga], worker=name, **{**quick, **settings})
        asyncio.run(_until_told(relay))


def begin(name: str, url: str, fate: Fate = NOTHING) -> None:
    """Start a saga in the transaction of its order, as a service does."""
    with engine_for(url) as engine, engine.begin() as connection:
        connection.execute(INSERT, {"saga": "1", "step": "order", "direction": "do", "worker": "web"})
        saga().start(connection, Order(), id="1")
        fate.meet("start")
    fate.meet("started")


def resume(name: str, url: str, fate: Fate = NOTHING) -> None:
    """Resume a parked saga, as an operator does."""
    with patch.object(SagaStore, "__init__", _met_around_operations(fate)), Admin(url) as admin:
        fate.meet("resume begins")
        admin.resume_saga(NAME, "1", actor=name)
        fate.meet("resume ended")


def saga() -> Saga[Order]:
    """The saga as those see it who only start and signal."""
    return _Shop("", "", None, NOTHING).saga()


class _Shop:
    """The functions of the saga: order, payment, parcel, papers, shipping; every kind of step."""

    def __init__(self, worker: str, url: str, directory: Path | None, fate: Fate) -> None:
        self._worker = worker
        self._url = url
        self._directory = directory
        self._fate = fate
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._engine = self._stack.enter_context(engine_for(self._url))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def saga(self) -> Saga[Order]:
        saga = Saga(NAME, data=Order)
        saga.step(name="reserve", retry=SOON)(self._step).compensation(retry=SOON)(self._step)
        saga.call(name="charge", retry=SOON)(self._call).compensation(retry=SOON)(self._call)
        saga.wait(PACKED, name="pack", timeout=120, retry=SOON)(self._wait).compensation(retry=SOON)(self._step)
        for name in ("invoice", "label"):
            saga.step(name=name, group="papers", retry=SOON)(self._step).compensation(retry=SOON)(self._step)
        saga.step(name="ship", retry=SOON)(self._step).compensation(retry=SOON)(self._step)
        return saga

    def _step(self, saga: SagaContext[Order]) -> dict[str, str]:
        """An effect in the service's own database."""
        self._called(saga)
        saga.connection.execute(INSERT, self._effect(saga))
        self._fate.meet(f"in {_doing(saga)}")
        return {"by": self._worker}

    def _wait(self, saga: SagaContext[Order], event: Any) -> dict[str, str]:
        assert event == {"weight": 7}
        return self._step(saga)

    def _call(self, saga: SagaContext[Order]) -> dict[str, str]:
        """An effect elsewhere: the bank has a transaction of its own, behind the barrier."""
        self._called(saga)
        with self._engine.begin() as connection:
            if BANK.barrier(connection, saga.headers):
                connection.execute(INSERT, self._effect(saga))
        self._fate.meet(f"in {_doing(saga)}")
        return {"by": self._worker}

    def _called(self, saga: SagaContext[Order]) -> None:
        assert self._directory is not None
        append(self._directory / "calls", f"{saga.id} {_doing(saga)}".encode())
        self._fate.meet(_doing(saga))
        if saga.direction is Direction.FORWARD and saga.data.kills_at == saga.step:
            signal.raise_signal(signal.SIGKILL)
        if saga.direction is Direction.FORWARD and saga.data.fails_at == saga.step:
            raise ValueError("not in this life")
        if saga.direction is Direction.BACK:
            assert saga.data.parks_at != saga.step or (self._directory / "mended").exists(), "not yet"

    def _effect(self, saga: SagaContext[Order]) -> dict[str, str]:
        direction = "do" if saga.direction is Direction.FORWARD else "undo"
        return {"saga": saga.id, "step": saga.step, "direction": direction, "worker": self._worker}


def _doing(saga: SagaContext[Order]) -> str:
    return f"{'do' if saga.direction is Direction.FORWARD else 'undo'} {saga.step}"


def _written(entries: Sequence[Entry]) -> str:
    return ", ".join(f"{'do' if one.direction is Direction.FORWARD else 'undo'} {one.step}" for one in entries)


def _met_around_operations(fate: Fate) -> Callable[..., None]:
    real = SagaStore.__init__

    def init(self: SagaStore, *args: Any, **kwargs: Any) -> None:
        real(self, *args, **kwargs)
        for name in OPERATIONS:
            setattr(self, name, _meeting(fate, name, getattr(self, name)))

    return init


def _meeting(fate: Fate, name: str, operation: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        of = f" {_written(args[1])}" if name == "log" else ""
        fate.meet(f"{name} begins{of}")
        result = yield from operation(*args, **kwargs)
        fate.meet(f"{name} ended{of}")
        return result

    return wrapped


async def _until_told(relay: Relay) -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, partial(relay.stop))
    await relay.run()
