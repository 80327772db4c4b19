"""Recovery of two-phase commits in a relay: it looks for transactions in doubt, and delivers each to its end."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from postroom.delivery.queue import Queue
from postroom.errors import InvalidSetting
from postroom.rules.lifecycle import NEVER_DEAD
from postroom.rules.naming import TWOPHASE_QUEUE
from postroom.rules.twophase_settling import RECOVERY_RETRY
from postroom.store.connections.reconnecting import Outage
from postroom.store.sql.db_errors import is_of_database, reason
from postroom.store.twophase.log import TwoPhaseLog
from postroom.store.twophase.recovery_queue import RecoveryQueue
from postroom.telemetry.transaction_events import TransactionsInDoubt
from postroom.twophase.destination import TransactionDestination
from postroom.twophase.recovery import recovery_of
from postroom.twophase.rounds import adrive
from postroom.twophase.two_phase_commit import TwoPhaseCommit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.settings import Settings
    from postroom.store.connections.reconnecting import Database, ReconnectingConnection
    from postroom.telemetry.events import Hook
    from postroom.twophase.findings import Listing
    from postroom.twophase.recovery import Recovery

EVERY = 10.0
"""Seconds between two scans."""
FINISHING = 60.0
"""Seconds for a batch of transactions, whose calls have time limits of their own."""
BATCH = 100
PAGES = 10
"""How much of what is not settled a scan reads beyond the first page; the next one goes on from there."""


def check_transactions(given: object, settings: Settings) -> Sequence[TwoPhaseCommit]:
    """The two-phase commits that a relay with these settings was given. Raises `InvalidSetting`."""
    found: list[TwoPhaseCommit] = []
    for one in given if isinstance(given, list | tuple) else [given]:
        if not isinstance(one, TwoPhaseCommit):
            raise InvalidSetting(
                f"transactions has a {type(one).__name__}: give TwoPhaseCommit objects, as in transactions=[transfers]"
            )
        if one.place != (settings.schema, settings.table_prefix):
            raise InvalidSetting(
                "a TwoPhaseCommit and the relay that recovers it must have the same schema and table_prefix"
            )
        found.append(one)
    recovery_of(found, asynchronous=True)  # raises for participants of the same name
    return found


async def open_recovery(
    transactions: Sequence[TwoPhaseCommit], database: Database, settings: Settings, hook: Hook
) -> tuple[Queue, Scanner]:
    """The queue of transactions in doubt, and what finds them.

    Raises `InvalidSetting` if the log of one is not in the relay's database.
    """
    recovery = recovery_of(transactions, asynchronous=True)
    names = database.store.names
    connection = database.connect()
    await _check_log(transactions, connection, TwoPhaseLog(names))
    queue = Queue(
        name=TWOPHASE_QUEUE,
        destination=TransactionDestination(recovery, hook),
        timeout=FINISHING,
        policy=RECOVERY_RETRY,
        keyed=False,
        batch=BATCH,
        concurrency=1,
        claim_limits=NEVER_DEAD,
        hook=hook,
    )
    notify = settings.notify and names.dialect == "postgresql"
    return queue, Scanner(recovery, connection, RecoveryQueue(names, notify=notify), hook)


class Scanner:
    """Looks for transactions in doubt, at the start and then at intervals. Several relays may do it at once."""

    def __init__(
        self, recovery: Recovery, connection: ReconnectingConnection, queue: RecoveryQueue, hook: Hook
    ) -> None:
        self._recovery = recovery
        self._connection = connection
        self._queue = queue
        self._hook = hook
        self._after = ""

    async def run(self) -> None:
        """Scan until cancelled. A participant or a log that is away is asked again the next time."""
        while True:
            await self.scan()
            await asyncio.sleep(EVERY)

    async def scan(self) -> None:
        """Look once, if the relay's database is there."""
        with suppress(Outage):
            await self._scan()

    async def _scan(self) -> None:
        try:
            pages = await self._pages()
        except Exception as error:
            if not is_of_database(error):
                raise
            self._hook(TransactionsInDoubt(0, 0.0, {"log": reason(error)}))
            return
        in_doubt = {tx: page.age(tx) for page in pages for tx in self._recovery.in_doubt(page)}
        late = [age for age in in_doubt.values() if age > 0]
        self._hook(TransactionsInDoubt(len(late), max(late, default=0.0), pages[0].unreachable))
        if in_doubt:
            await self._connection.attempt(self._queue.add(in_doubt))

    async def _pages(self) -> list[Listing]:
        """All that is listed, and a part of a long log: those that cannot be settled must not hide those behind."""
        first = await adrive(self._recovery.look())
        pages, after = [first], self._after or first.after
        while after and len(pages) <= PAGES:
            pages.append(await adrive(self._recovery.look_on(after, first.unreachable)))
            after = pages[-1].after
        self._after = after
        return pages


async def _check_log(
    transactions: Sequence[TwoPhaseCommit], connection: ReconnectingConnection, log: TwoPhaseLog
) -> None:
    scope: Any = await connection.attempt(log.scope())
    for one in transactions:
        if await one.scope() != scope:
            raise InvalidSetting(
                "the log of a TwoPhaseCommit is not in the relay's database: run a relay on the database that is given "
                "as log=…"
            )
