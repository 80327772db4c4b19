"""Idempotency keys: run a keyed request once, then replay its recorded response."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from postroom import encoding
from postroom.errors import InvalidEntry, LeaseLost
from postroom.rules.ledger_entries import (
    MOST_CHARACTERS,
    checked_digest,
    checked_key,
    checked_response,
    checked_scope,
    scope_of,
)
from postroom.rules.replay import (
    Conflict,
    Decision,
    Entry,
    InProgress,
    Recorded,
    Replay,
    Response,
    Run,
    Start,
    Status,
)
from postroom.settings import HOUR, MOST_DAYS, Settings
from postroom.store.connections.kinds import async_kind, sync_kind
from postroom.store.ledger import handover
from postroom.store.ledger.entries import LEDGER_ENTRIES, LedgerEntries, Terms
from postroom.store.outbox.leases import new_token
from postroom.store.sql.db_errors import explained
from postroom.store.sql.names import Names
from postroom.store.sql.steps import Steps, arun, run

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "MOST_CHARACTERS",
    "Conflict",
    "Decision",
    "Entry",
    "InProgress",
    "Ledger",
    "Recorded",
    "Replay",
    "Response",
    "Run",
    "Start",
    "Status",
    "digest_of",
    "entry_of",
    "scope_of",
]

MOST_SECONDS = MOST_DAYS * 24 * HOUR
NO_DIGEST = "0" * 64
"""The digest for looking up an entry without a request to compare it with."""
T = TypeVar("T")


class Ledger:
    """The idempotency ledger: each keyed request runs once, and repetitions get the same response.

    ``lease_seconds``: how long a run holds its key unless it renews. Keep it short: after a crash, the key is free
    only when the lease ends. ``keep_seconds``: how long a response can be replayed. ``replay_failures``: replay the
    failure of a request that ended in an exception, instead of running it again. These, ``schema`` and
    ``table_prefix`` default to the settings.
    """

    def __init__(
        self,
        *,
        schema: str | None = None,
        table_prefix: str | None = None,
        lease_seconds: float | None = None,
        keep_seconds: float | None = None,
        replay_failures: bool | None = None,
    ) -> None:
        self._settings = Settings.load(
            schema=schema,
            table_prefix=table_prefix,
            idempotency_lease_sec=lease_seconds,
            idempotency_keep_sec=keep_seconds,
            replay_failures=replay_failures,
        )
        Names.of("postgresql", self._settings.schema, self._settings.table_prefix)  # raises for an invalid identifier
        self._terms = Terms(self._settings.idempotency_lease_sec, self._settings.idempotency_keep_sec)
        self._by_dialect: dict[str, LedgerEntries] = {}

    @property
    def lease_seconds(self) -> float:
        """How long a run holds its key. Renew after half of it at the latest."""
        return self._terms.lease

    def begin(self, connection: object, key: str, digest: str, *, scope: str = "") -> Decision:
        """Claim the key for this request in the connection's open transaction, or say why the request must not run.

        `Run`: do the work, then call `finish` or `fail` with its `entry`. `Replay`: return the response of an earlier
        run. `Conflict`: the key was used for a request with another digest. `InProgress`: another run holds the key.

        Scope and key together identify the request. If several transactions begin the same key at once, exactly one
        gets `Run`; the others wait until its transaction ends. Either commit before the work starts, so that
        repetitions are told at once that the request is in progress; or do everything in one transaction, and they
        wait.

        Raises `InvalidEntry` or `UnusableConnection`; then nothing was written. Errors of the database itself are
        raised unchanged: roll back.
        """
        entry = entry_of(scope, key, digest)
        kind = sync_kind(connection, "ledger.begin")
        return run(explained(self._begin(kind.dialect, entry)), kind.execute)

    async def abegin(self, connection: object, key: str, digest: str, *, scope: str = "") -> Decision:
        """`begin` for an async connection."""
        entry = entry_of(scope, key, digest)
        kind = await async_kind(connection, "ledger.abegin")
        return await arun(explained(self._begin(kind.dialect, entry)), kind.execute)

    def look(self, connection: object, key: str, *, scope: str = "") -> Recorded | None:
        """Look up what the ledger holds for a key: its status, and the response that repetitions get.

        Writes nothing and waits for nobody. Returns None if there is no entry; `expired` is set if its retention period
        is over. Raises `InvalidEntry` or `UnusableConnection`.
        """
        entry = entry_of(scope, key, NO_DIGEST)
        kind = sync_kind(connection, "ledger.look")
        return run(explained(self._look(kind.dialect, entry)), kind.execute)

    async def alook(self, connection: object, key: str, *, scope: str = "") -> Recorded | None:
        """`look` for an async connection."""
        entry = entry_of(scope, key, NO_DIGEST)
        kind = await async_kind(connection, "ledger.alook")
        return await arun(explained(self._look(kind.dialect, entry)), kind.execute)

    def finish(self, connection: object, entry: Entry, response: Response) -> None:
        """Record the response in the transaction of the work, so that effect and response commit together.

        Raises `LeaseLost` if the request no longer belongs to this run, because its lease ended and another run took
        over, or because it is already finished: roll back. A lease that has ended does no harm if nobody took over.
        Also raises `LeaseLost` if the request was handed to a message by ``add(ledger=entry)``: then the message
        decides its outcome, and `hand_over` records a response for the meantime. Raises `InvalidEntry` for a response
        that cannot be kept.
        """
        answer = checked_response(response)
        if not self._call(connection, "ledger.finish", lambda entries: self._finish(entries, entry, answer)):
            raise LeaseLost(_lost(entry))

    async def afinish(self, connection: object, entry: Entry, response: Response) -> None:
        """`finish` for an async connection."""
        answer = checked_response(response)
        if not await self._acall(connection, "ledger.afinish", lambda entries: self._finish(entries, entry, answer)):
            raise LeaseLost(_lost(entry))

    def fail(self, connection: object, entry: Entry, response: Response | None = None) -> bool:
        """Record that the work failed. It may run again at once, unless a response is given, which is then replayed.

        Call it after the work's own transaction was rolled back. Returns False, and writes nothing, if the request no
        longer belongs to this run; there is nothing to do then.
        """
        answer = None if response is None else checked_response(response)
        return self._call(connection, "ledger.fail", lambda entries: self._fail(entries, entry, answer))

    async def afail(self, connection: object, entry: Entry, response: Response | None = None) -> bool:
        """`fail` for an async connection."""
        answer = None if response is None else checked_response(response)
        return await self._acall(connection, "ledger.afail", lambda entries: self._fail(entries, entry, answer))

    def renew(self, connection: object, entry: Entry, seconds: float | None = None) -> bool:
        """Extend the lease to end that many seconds from now; the default is the lease's length.

        Returns False if the request no longer belongs to this run: stop the work, because `finish` would refuse it.
        """
        return self._call(connection, "ledger.renew", lambda entries: self._renew(entries, entry, seconds))

    async def arenew(self, connection: object, entry: Entry, seconds: float | None = None) -> bool:
        """`renew` for an async connection."""
        return await self._acall(connection, "ledger.arenew", lambda entries: self._renew(entries, entry, seconds))

    def hand_over(self, connection: object, entry: Entry, response: Response | None = None) -> Entry:
        """Leave the rest of the work to others, and record a response for the meantime, such as a 202.

        ``add(ledger=entry)`` already hands the request to a message. Call this in the same transaction to choose what
        repetitions get until the relay confirms the entry: succeeded when the message is sent, failed when it is dead.
        Without a response they are told that the request is in progress. This run can no longer finish the request;
        only the returned entry can. Raises `LeaseLost` if the request no longer belongs to this run: roll back.
        """
        operation = self._hand_over(entry, response)
        return _handed_over(entry, self._call(connection, "ledger.hand_over", operation))

    async def ahand_over(self, connection: object, entry: Entry, response: Response | None = None) -> Entry:
        """`hand_over` for an async connection."""
        operation = self._hand_over(entry, response)
        return _handed_over(entry, await self._acall(connection, "ledger.ahand_over", operation))

    def _call(self, connection: object, method: str, operation: Callable[[LedgerEntries], Steps[T]]) -> T:
        kind = sync_kind(connection, method)
        return run(explained(operation(self._entries(kind.dialect))), kind.execute)

    async def _acall(self, connection: object, method: str, operation: Callable[[LedgerEntries], Steps[T]]) -> T:
        kind = await async_kind(connection, method)
        return await arun(explained(operation(self._entries(kind.dialect))), kind.execute)

    def _begin(self, dialect: str, entry: Entry) -> Steps[Decision]:
        return self._entries(dialect).begin(entry, self._terms, replay_failures=self._settings.replay_failures)

    def _look(self, dialect: str, entry: Entry) -> Steps[Recorded | None]:
        found = (yield from self._entries(dialect).select(entry.scope, [entry.key])).get(entry.key)
        return None if found is None else found.recorded

    def _finish(self, entries: LedgerEntries, entry: Entry, response: Response) -> Steps[bool]:
        if (yield from entries.end(_checked(entry), Status.SUCCEEDED, response, self._terms.keep)):
            return True
        if (yield from handover.has_message(entries, entry)):
            raise LeaseLost(
                f"the request with the idempotency key {entry.key!r} was handed to a message by add(ledger=…), which "
                "decides its outcome: roll back, and call hand_over with the response instead of finish, or add the "
                "message without ledger=…"
            )
        return False

    def _fail(self, entries: LedgerEntries, entry: Entry, response: Response | None) -> Steps[bool]:
        return entries.end(_checked(entry), Status.FAILED, response, self._terms.keep)

    def _renew(self, entries: LedgerEntries, entry: Entry, seconds: float | None) -> Steps[bool]:
        if seconds is not None and not 0 < seconds <= MOST_SECONDS:
            raise InvalidEntry(
                f"a lease of {seconds!r} seconds is not possible: give more than 0, up to {MOST_SECONDS:,}"
            )
        return entries.renew(_checked(entry), self._terms.lease if seconds is None else seconds)

    def _hand_over(self, entry: Entry, response: Response | None) -> Callable[[LedgerEntries], Steps[Entry | None]]:
        answer = None if response is None else checked_response(response)
        return lambda entries: handover.hand_over(entries, _checked(entry), answer)

    def _entries(self, dialect: str) -> LedgerEntries:
        if dialect not in self._by_dialect:
            names = Names.of(dialect, self._settings.schema, self._settings.table_prefix)
            self._by_dialect[dialect] = LEDGER_ENTRIES[dialect](names)
        return self._by_dialect[dialect]


def _checked(entry: object) -> Entry:
    if not isinstance(entry, Entry):
        raise InvalidEntry(f"the entry must be that of the Run that begin returned, not {type(entry).__name__}")
    return entry


def _handed_over(entry: Entry, successor: Entry | None) -> Entry:
    if successor is None:
        raise LeaseLost(_lost(entry))
    return successor


def digest_of(method: str, path: str, query: str = "", body: bytes = b"") -> str:
    """The digest that tells HTTP requests apart: SHA-256 over method, path, query and body."""
    return encoding.digest(method.upper(), path, query, body)


def entry_of(scope: object, key: object, digest: object) -> Entry:
    """The entry of a new run of this request. Raises `InvalidEntry`."""
    checked = checked_digest(digest)
    return Entry(checked_scope(scope), checked_key(key), checked, new_token())


def _lost(entry: Entry) -> str:
    scope = f" of the scope {entry.scope!r}" if entry.scope else ""
    return (
        f"the request with the idempotency key {entry.key!r}{scope} no longer belongs to this run: its lease ended and "
        "another run took over, or it is finished. Roll back, and begin it again to get its response"
    )
