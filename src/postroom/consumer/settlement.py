"""Settles a parked message in its handler's own transaction: the effect and the settlement commit together."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from postroom.store.connections.async_kinds import SQLAlchemyAsyncSession
from postroom.store.connections.kinds import async_kind, sync_kind
from postroom.store.connections.sync_kinds import SQLAlchemySession
from postroom.store.outbox.leases import Sent
from postroom.store.sql.db_errors import is_denied, is_missing_table, is_undone
from postroom.store.sql.steps import arun, run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postroom.store.outbox.leases import Claimed
    from postroom.store.outbox.parking import Parking
    from postroom.store.outbox.settlements import SettlementWriter
    from postroom.store.sql.steps import Steps


class LeaseNotHeld(Exception):
    """Somebody else has the delivery, or will: the handler's effect must be rolled back."""


class NotSettledHere(Exception):
    """The handler's transaction cannot carry the settlement, and must be rolled back."""

    def __init__(self, *, only_this_time: bool) -> None:
        """`only_this_time`: the next can. None can, if handlers write to another database or lack a privilege."""
        super().__init__("the handler's transaction cannot settle the delivery")
        self.only_this_time = only_this_time


class DeliverySettlement:
    """The settlement of one claimed delivery, to be written as the last thing before a handler's transaction commits.

    `run` and `arun` return whether the lease was held, and the delivery is settled. They raise `NotSettledHere`.
    """

    def __init__(self, claimed: Claimed, settlements: SettlementWriter, parking: Parking) -> None:
        self._claimed = claimed
        self._settlements = settlements
        self._parking = parking

    def run(self, connection: Any) -> bool:
        """Settle in the transaction that is open on this connection."""
        kind = sync_kind(connection, "inbox.first_times")
        if isinstance(kind, SQLAlchemySession):
            connection.flush()  # else its writes could wait for locks while others wait for ours
        with _explaining():
            return run(self._steps(kind.dialect), kind.execute)

    async def arun(self, connection: Any) -> bool:
        """`run` for an async connection."""
        kind = await async_kind(connection, "inbox.afirst_times")
        if isinstance(kind, SQLAlchemyAsyncSession):
            await connection.flush()
        with _explaining():
            return await arun(self._steps(kind.dialect), kind.execute)

    def _steps(self, dialect: str) -> Steps[bool]:
        if dialect != self._settlements.sql.names.dialect:
            raise NotSettledHere(only_this_time=False)
        written = yield from self._settlements.in_transaction([Sent(self._claimed)])
        if written.lost and not (yield from self._parking.is_parked(self._claimed.message.id)):
            raise NotSettledHere(only_this_time=False)  # another database: not even the message is there
        return not written.lost


@contextmanager
def _explaining() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if is_undone(error):  # above READ COMMITTED, PostgreSQL does that whenever a heartbeat came in between
            raise NotSettledHere(only_this_time=True) from error
        if is_denied(error) or is_missing_table(error):
            raise NotSettledHere(only_this_time=False) from error
        raise
