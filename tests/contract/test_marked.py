"""Transactions that begin with a mark, on connections of PostgreSQL's drivers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import asyncpg
import pytest

from postroom.store.connections import marked
from tests.contract.connection_kinds import libpq

if TYPE_CHECKING:
    from tests.contract.write_support import Databases


async def test_a_transaction_whose_beginning_was_cancelled_is_rolled_back(databases: Databases) -> None:
    """Left open, it would take its mark into the next one: that message would count as handled, and be lost."""
    connection = await asyncpg.connect(libpq(databases["postgresql"].url))
    try:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(marked.abegin(connection, "BEGIN; SELECT pg_sleep(60)"), 0.05)
        await marked.aroll_back(connection)
        assert not connection.is_in_transaction()
        assert await marked.abegin(connection, "BEGIN; CREATE TEMP TABLE next ON COMMIT DROP AS SELECT 1")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(marked.aroll_back(_Hanging(connection)), 0.05)
        assert connection.is_closed()
    finally:
        connection.terminate()


class _Hanging:
    """A connection whose server does not answer."""

    def __init__(self, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        self.terminate = connection.terminate

    async def execute(self, statement: str) -> None:
        assert statement == "ROLLBACK"
        await asyncio.Event().wait()
