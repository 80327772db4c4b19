"""What the tests of branches share: a participant's own connection, on every driver that can prepare."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from postroom.rules.twophase_ids import BranchId, transaction_id
from postroom.store.connections.kinds import driver_kind
from postroom.store.sql.steps import Query, Steps, arun, run
from postroom.store.twophase.branch_kinds import BRANCHES
from tests.contract.connection_kinds import ACONNECT, CONNECT
from tests.contract.write_support import business_row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postroom.store.sql.steps import Row
    from postroom.store.twophase.branches import Branches
    from tests.contract.write_support import Database, Databases

T = TypeVar("T")

POSTGRESQL = ("psycopg", "psycopg2", "psycopg async", "asyncpg")
MARIADB = ("PyMySQL", "asyncmy", "aiomysql")
KINDS = dict.fromkeys(POSTGRESQL, "postgresql") | dict.fromkeys(MARIADB, "mariadb")
on_every_driver = pytest.mark.parametrize("driver", KINDS)
on_postgresql = pytest.mark.parametrize("driver", POSTGRESQL)
on_each_database = pytest.mark.parametrize("driver", ["psycopg", "asyncpg", "PyMySQL"])
SCOPE, OTHER_SCOPE = "0badcafe", "0badcaff"
_NUMBERS = itertools.count(1)


def new_branch(participant: str = "bank", scope: str = SCOPE) -> BranchId:
    return BranchId(scope, transaction_id(1_800_000_000_000, f"{next(_NUMBERS):012x}"), participant)


class Wire:
    """A connection in autocommit, as a line has it."""

    def __init__(self, driver: str, database: Database) -> None:
        self._runner = asyncio.Runner() if driver in ACONNECT else None
        self.connection: Any = self._opened(driver, database)
        self._kind = driver_kind(self.connection)
        self.branches: Branches = self.run(BRANCHES[self._kind.dialect].check(database.store.names))

    def _opened(self, driver: str, database: Database) -> Any:
        if self._runner is None:
            connection = CONNECT[driver](database.url)
            if driver == "PyMySQL":
                connection.autocommit(True)  # noqa: FBT003 - PyMySQL's own
            else:
                connection.autocommit = True
            return connection
        options = {} if driver == "asyncpg" else {"autocommit": True}
        return self._runner.run(_awaited(ACONNECT[driver](database.url, **options)))

    def run(self, steps: Steps[T]) -> T:
        if self._runner is None:
            return run(steps, self._kind.execute)
        return self._runner.run(arun(steps, self._kind.execute))

    def sql(self, text: str, *, script: bool = False) -> list[Row]:
        """A statement of the code inside the block."""
        return self.run(_rows(Query(text, script=script)))

    def close(self) -> None:
        if self._runner is None:
            self.connection.close()
            return
        closing = self._runner.run(_called(self.connection.close))
        assert closing is None
        self._runner.close()


def _rows(query: Query) -> Steps[list[Row]]:
    return [tuple(row) for row in (yield query).rows]


async def _awaited(connecting: Any) -> Any:
    return await connecting


async def _called(function: Any) -> None:
    result = function()
    if result is not None:
        await result


@contextmanager
def wires(driver: str, database: Database, count: int) -> Iterator[list[Wire]]:
    """Several connections to the same database."""
    with ExitStack() as stack:
        opened = []
        for _ in range(count):
            wire = Wire(driver, database)
            stack.callback(wire.close)
            opened.append(wire)
        yield opened


def begun_with_a_row(wire: Wire, participant: str = "bank") -> tuple[str, str]:
    """A branch that has written a business row: its id, and the row's."""
    branch = wire.run(wire.branches.begin(new_branch(participant), 30))
    statement, row = business_row()
    wire.sql(statement)
    return branch, row


@contextmanager
def swept(driver: str, databases: Databases) -> Iterator[Database]:
    """The driver's database; afterwards, what a failed test has left there is rolled back."""
    database = databases[KINDS[driver]]
    yield database
    with closing(Wire("psycopg" if KINDS[driver] == "postgresql" else "PyMySQL", database)) as wire:
        for scope in (SCOPE, OTHER_SCOPE):
            for found in wire.run(wire.branches.listed(scope)):
                with suppress(Exception):
                    wire.run(wire.branches.roll_back_prepared(found.id))
