"""A bank over several databases, whose transfers die or stop, on demand, before or after any statement of theirs."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time
import traceback
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import asyncmy.errors
import asyncpg
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from postroom import TwoPhaseCommit
from postroom.errors import DatabaseUnreachable, Refused, TransactionAborted, TransactionInDoubt
from postroom.store.sql import steps
from postroom.twophase import errands, parts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from postroom.twophase import Transaction

SUM = 100
ACCOUNTS = 20
LONGEST_LIFE = 250
"""Statements."""
TIMEOUT = 2.0
"""Seconds until recovery may roll back what nobody has decided."""
FAILURES = (
    *(TransactionAborted, TransactionInDoubt, DatabaseUnreachable, DBAPIError, OSError),
    # A server closes what was idle for too long, as while this process was stopped.
    *(asyncmy.errors.MySQLError, asyncpg.PostgresError, asyncpg.InterfaceError),
)
"""What may become of a transfer."""
TAKE = text("UPDATE account SET balance = balance - 1 WHERE id = :id")
GIVE = text("UPDATE account SET balance = balance + 1 WHERE id = :id")


@dataclass
class Fate:
    """What a process does to itself at its nth statement, or just after it."""

    nth: int = -1
    after: bool = False
    signal: signal.Signals = signal.SIGKILL
    met: int = field(default=0, init=False)
    _lock: Any = field(default_factory=threading.Lock, init=False)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def begin(self) -> int:
        """A statement is about to run: returns its number."""
        with self._lock:
            number, self.met = self.met, self.met + 1
        if number == self.nth and not self.after:
            signal.raise_signal(self.signal)
        return number

    def end(self, number: int) -> None:
        if number == self.nth and self.after:
            signal.raise_signal(self.signal)

    def run(self, operation: Any, execute: Callable[[Any], Any]) -> Any:
        def met(query: Any) -> Any:
            number = self.begin()
            result = execute(query)
            self.end(number)
            return result

        return steps.run(operation, met)

    async def arun(self, operation: Any, execute: Callable[[Any], Awaitable[Any]]) -> Any:
        async def met(query: Any) -> Any:
            number = self.begin()
            result = await execute(query)
            self.end(number)
            return result

        return await steps.arun(operation, met)


class Vault:
    """A resource of the bank's own: files. It cannot say which of them are in doubt."""

    def __init__(self, directory: Path, account: int = 0, fate: Fate | None = None) -> None:
        self._directory = directory
        self._account = account
        self._fate = fate or Fate()

    def prepare(self, id: str) -> None:
        number = self._fate.begin()
        self._path(id, "prepared").write_text(str(self._account))
        self._fate.end(number)

    def commit(self, id: str) -> None:
        number = self._fate.begin()
        if self._path(id, "prepared").exists():
            self._path(id, "prepared").rename(self._path(id, "committed"))
        assert self._path(id, "committed").exists(), id
        self._fate.end(number)

    def abort(self, id: str) -> None:
        assert not self._path(id, "committed").exists(), id
        self._path(id, "prepared").unlink(missing_ok=True)

    def accounts(self, state: str = "committed") -> list[int]:
        return [int(one.read_text()) for one in self._directory.glob(f"*.{state}")]

    def _path(self, id: str, state: str) -> Path:
        return self._directory / f"{id}.{state}"


class Till:
    """A resource that cannot prepare: it does its work, or is told never to, and whoever is first decides."""

    def __init__(self, directory: Path, account: int = 0, fate: Fate | None = None) -> None:
        self._directory = directory
        self._account = account
        self._fate = fate or Fate()

    def commit(self, id: str) -> None:
        number = self._fate.begin()
        if not self._first(id, f"{self._account}"):
            raise Refused("ABORTED")
        self._fate.end(number)

    def abort(self, id: str) -> bool:
        return self._first(id, "never") or (self._directory / f"{id}.till").read_text() == "never"

    def accounts(self) -> list[int]:
        said = [one.read_text() for one in self._directory.glob("*.till")]
        return [int(one) for one in said if one != "never"]

    def _first(self, id: str, what: str) -> bool:
        draft = self._directory / f"{id}.{os.getpid()}.{threading.get_ident()}.draft"
        draft.write_text(what)
        try:
            (self._directory / f"{id}.till").hardlink_to(draft)
        except FileExistsError:
            return False
        finally:
            draft.unlink()
        return True


@dataclass(frozen=True)
class Bank:
    """Where the money is: in two databases; or in one, and in files."""

    log: str
    participants: dict[str, str]
    """Name → URL; the empty URL is the vault's."""
    directory: Path
    has_last: bool = False
    asynchronous: bool = False

    def two_phase_commit(self, account: int = 0, fate: Fate | None = None, timeout: float = TIMEOUT) -> TwoPhaseCommit:
        vault, till = Vault(self.directory, account, fate), Till(self.directory, account, fate)
        participants = {name: url or vault for name, url in self.participants.items()}
        return TwoPhaseCommit(self.log, participants, last=till if self.has_last else None, timeout=timeout)


def transfer(name: str, bank: Bank, account: int, fate: Fate) -> None:
    """Move one coin of this account from the first participant to the second."""
    with _watched_by(fate):
        two_phase_commit = bank.two_phase_commit(account, fate)
        if bank.asynchronous:
            asyncio.run(_move_async(bank, two_phase_commit, account))
        else:
            _move(bank, two_phase_commit, account)
    (bank.directory / f"{name}.met").write_text(str(fate.met))


def _move(bank: Bank, two_phase_commit: TwoPhaseCommit, account: int) -> None:
    with two_phase_commit as transaction:
        for statement, (name, url) in zip((TAKE, GIVE), bank.participants.items(), strict=False):
            if url:
                transaction[name].execute(statement, {"id": account})


async def _move_async(bank: Bank, two_phase_commit: TwoPhaseCommit, account: int) -> None:
    async with two_phase_commit as transaction:
        await _move_in(transaction, bank, account)


async def _move_in(transaction: Transaction, bank: Bank, account: int) -> None:
    for statement, (name, url) in zip((TAKE, GIVE), bank.participants.items(), strict=False):
        if url:
            await transaction[name].execute(statement, {"id": account})


def recover(name: str, bank: Bank, fate: Fate, until: Path) -> None:
    """Recover again and again, until the file is there."""
    del name
    with ExitStack() as stack:
        stack.enter_context(patch.object(errands, "run", fate.run))
        two_phase_commit = bank.two_phase_commit()
        while not until.exists():
            two_phase_commit.recover()
        two_phase_commit.close()


def tell(name: str, bank: Bank, seed: int, transfers: int) -> None:
    """Make many transfers, in processes that are killed, or stopped past a deadline, one after another."""
    chance = random.Random(seed)  # noqa: S311 - for repeatable tests
    said = bank.directory / f"{name}.said"
    said.touch()
    while said.stat().st_size < transfers:
        fate, choices = _fate(chance), random.Random(chance.random())  # noqa: S311 - as above
        child = os.fork()
        if not child:
            os._exit(_status(bank, fate, choices, said, transfers))
        _, status = os.waitpid(child, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            time.sleep(chance.uniform(0, 1.5 * TIMEOUT))
            os.kill(child, signal.SIGCONT)
            _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        assert code in {0, -signal.SIGKILL}, (code, fate)


def _fate(chance: random.Random) -> Fate:
    signals = [signal.SIGSTOP, *[signal.SIGKILL] * 7]
    return Fate(chance.randrange(LONGEST_LIFE), chance.random() < 0.5, chance.choice(signals))


def _status(bank: Bank, fate: Fate, choices: random.Random, said: Path, transfers: int) -> int:
    try:
        asyncio.run(_move_often(bank, fate, choices, said, transfers))
    except BaseException:  # noqa: BLE001 - the child must end here, and the teller reports it
        traceback.print_exc()
        return 2
    return 0


async def _move_often(bank: Bank, fate: Fate, choices: random.Random, said: Path, transfers: int) -> None:
    """Write a letter for each transfer: c if it was committed, a if not."""
    with said.open("a") as letters, _watched_by(fate):
        two_phase_commit = bank.two_phase_commit()
        while letters.tell() < transfers:
            try:
                async with two_phase_commit.begin() as transaction:
                    await _move_in(transaction, bank, choices.randrange(ACCOUNTS))
                letters.write("c")
            except FAILURES:
                letters.write("a")
            letters.flush()
        await two_phase_commit.aclose()


@contextmanager
def _watched_by(fate: Fate) -> Iterator[None]:
    with ExitStack() as stack:
        for module in (parts, errands):
            stack.enter_context(patch.object(module, "run", fate.run))
            stack.enter_context(patch.object(module, "arun", fate.arun))
        yield
