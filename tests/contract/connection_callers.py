"""What an application does with its connection, written once for every kind: begin, write, add, commit, roll back.

Async connections are driven from sync tests by an event loop of their own, so that each test is written once too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import transaction as django_transaction

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from postroom import Inbox, Message, Outbox
    from postroom.idempotency import Ledger

SAVEPOINT = "before_adding"


class Caller:
    """An application's connection. `runner` drives an async one; None: it is a sync one."""

    def __init__(self, connection: Any, runner: asyncio.Runner | None = None) -> None:
        self.connection = connection
        self.runner = runner

    def add(self, outbox: Outbox, *args: Any, **fields: Any) -> Message:
        method: Callable[..., Any] = outbox.aadd if self.runner else outbox.add
        message: Message = self.wait(method(self.connection, *args, **fields))
        return message

    def add_many(self, outbox: Outbox, messages: list[Message]) -> list[Message]:
        method: Callable[..., Any] = outbox.aadd_many if self.runner else outbox.add_many
        recorded: list[Message] = self.wait(method(self.connection, messages))
        return recorded

    def first_time(self, inbox: Inbox, message_id: Any) -> bool:
        method: Callable[..., Any] = inbox.afirst_time if self.runner else inbox.first_time
        first: bool = self.wait(method(self.connection, message_id))
        return first

    def first_times(self, inbox: Inbox, message_ids: list[Any]) -> list[bool]:
        method: Callable[..., Any] = inbox.afirst_times if self.runner else inbox.first_times
        first: list[bool] = self.wait(method(self.connection, message_ids))
        return first

    def inbox(self, inbox: Inbox, method: str, *args: Any, **options: Any) -> Any:
        """Call one of the inbox's methods, or its async twin."""
        return self.wait(getattr(inbox, f"a{method}" if self.runner else method)(self.connection, *args, **options))

    def ledger(self, ledger: Ledger, method: str, *args: Any, **options: Any) -> Any:
        """Call one of the ledger's methods, or its async twin."""
        return self.wait(getattr(ledger, f"a{method}" if self.runner else method)(self.connection, *args, **options))

    def wait(self, result: Any) -> Any:
        """The result of a call, which an async connection gives as an awaitable."""
        return result if self.runner is None else self.runner.run(_awaited(result))

    def begin(self) -> None:
        """Open a transaction, where the kind does not do it by itself."""

    def commit(self) -> None:
        self.wait(self.connection.commit())

    def rollback(self) -> None:
        self.wait(self.connection.rollback())

    def sql(self, statement: str) -> None:
        """Execute a statement of the application's own."""
        raise NotImplementedError

    def savepoint(self) -> None:
        self.sql(f"SAVEPOINT {SAVEPOINT}")

    def rollback_to_savepoint(self) -> None:
        self.sql(f"ROLLBACK TO SAVEPOINT {SAVEPOINT}")


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result


class DriverCaller(Caller):
    """A connection of the Python database API, or of its async look-alikes."""

    def sql(self, statement: str) -> None:
        if self.runner:
            self.runner.run(self._asql(statement))
            return
        cursor = self.connection.cursor()
        cursor.execute(statement)
        cursor.close()

    async def _asql(self, statement: str) -> None:
        async with self.connection.cursor() as cursor:
            await cursor.execute(statement)


class AsyncpgCaller(Caller):
    """Transactions of asyncpg are objects, and nest."""

    transactions: list[Any]

    def begin(self) -> None:
        self.transactions = []
        self.savepoint()

    def commit(self) -> None:
        self.wait(self.transactions[0].commit())

    def rollback(self) -> None:
        self.wait(self.transactions[0].rollback())

    def sql(self, statement: str) -> None:
        self.wait(self.connection.execute(statement))

    def savepoint(self) -> None:
        transaction = self.connection.transaction()
        self.wait(transaction.start())
        self.transactions.append(transaction)

    def rollback_to_savepoint(self) -> None:
        self.wait(self.transactions.pop().rollback())


class DjangoCaller(Caller):
    """`transaction.atomic`, entered and left by hand; one inside another is a savepoint."""

    atomics: list[Any]

    @property
    def alias(self) -> str:
        return str(self.connection.alias)

    def begin(self) -> None:
        self.atomics = []
        self.savepoint()

    def commit(self) -> None:
        self.atomics.pop().__exit__(None, None, None)

    def rollback(self) -> None:
        django_transaction.set_rollback(True, using=self.alias)
        self.commit()

    def sql(self, statement: str) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(statement)

    def savepoint(self) -> None:
        atomic = django_transaction.atomic(using=self.alias)
        atomic.__enter__()
        self.atomics.append(atomic)

    def rollback_to_savepoint(self) -> None:
        self.rollback()


class SQLAlchemyCaller(Caller):
    """SQLAlchemy's connections, which begin by themselves."""

    nested: Any

    def sql(self, statement: str) -> None:
        self.wait(self.connection.exec_driver_sql(statement))

    def savepoint(self) -> None:
        self.nested = self.wait(self.connection.begin_nested())

    def rollback_to_savepoint(self) -> None:
        self.wait(self.nested.rollback())


class SessionCaller(SQLAlchemyCaller):
    """SQLAlchemy's sessions, also scoped ones and SQLModel's."""

    def sql(self, statement: str) -> None:
        connection = self.wait(self.connection.connection())
        self.wait(connection.exec_driver_sql(statement))
