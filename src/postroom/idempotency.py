"""Idempotency: begin a keyed request, then finish it, or replay what an earlier one was answered."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from postroom import encoding
from postroom.errors import InvalidEntry, LeaseLost
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
from postroom.store.ledger import handing
from postroom.store.ledger.entries import KEEPERS, Keeper, Terms
from postroom.store.outbox.leases import new_token
from postroom.store.sql.db_errors import explained
from postroom.store.sql.names import Names
from postroom.store.sql.steps import Steps, arun, run

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
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

MOST_CHARACTERS = 255
MOST_SECONDS = MOST_DAYS * 24 * HOUR
NO_DIGEST = "0" * 64
"""Of who asks for an entry without a request to compare it with."""
_DIGEST = re.compile("[0-9a-f]{64}")
T = TypeVar("T")
_NO_HEADER = re.compile("[\x00\r\n]|[^\x00-\xff]")
"""What no HTTP header can hold: it would be two headers, or none."""


class Ledger:
    """The ledger of keyed requests: each runs once, and whoever asks again gets the same response.

    ``lease_seconds``: for how long a run holds its key unless it renews; short, because a key whose run has crashed is
    free only when it ends. ``keep_seconds``: for how long a response can be replayed. ``replay_failures``: a request
    that ended in an exception does not run again; its failure is replayed. These, ``schema`` and ``table_prefix``
    default to the settings.
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
        Names.of("postgresql", self._settings.schema, self._settings.table_prefix)  # refuses what is no identifier
        self._terms = Terms(self._settings.idempotency_lease_sec, self._settings.idempotency_keep_sec)
        self._keepers: dict[str, Keeper] = {}

    @property
    def lease_seconds(self) -> float:
        """For how long a run holds its key. Renew at half of it or sooner."""
        return self._terms.lease

    def begin(self, connection: object, key: str, digest: str, *, scope: str = "") -> Decision:
        """Take the key for this request in the connection's open transaction, or tell why it is not to run.

        `Run`: do the work, then `finish` or `fail` with its `entry`. `Replay`: the response of an earlier run.
        `Conflict`: the key was used for a request with another digest. `InProgress`: another run holds it.

        Exactly one of several transactions that begin the same key at once gets `Run`. While another has begun it and
        is still open, the call waits for its end. Scope and key together are the identity. Commit before the work
        begins, so that others are told at once that it is in progress; or do all in one transaction, and they wait.
        Raises `InvalidEntry` or `UnusableConnection`; then nothing was written. An error of the database itself is
        passed on as it is: roll back.
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
        """What the ledger holds for a key, for who only wants to know: its status and what whoever asks is answered.

        Writes nothing and waits for nobody. None where there is no entry; `expired` where it is kept no longer.
        Raises `InvalidEntry` or `UnusableConnection`.
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
        """Record the response, in the transaction of the work, so that effect and response commit together.

        Raises `LeaseLost` where the request is no longer this run's, because its lease ended and another run took it
        over, or because it was finished: let the transaction roll back. A lease that has ended and that nobody took
        over does no harm. So it is where the request was left to a message by ``add(ledger=entry)``, whose fate then
        is its outcome: `hand_over` takes a response for the meantime. Raises `InvalidEntry` for a response that cannot
        be kept.
        """
        answer = _response(response)
        if not self._call(connection, "ledger.finish", lambda keeper: self._finish(keeper, entry, answer)):
            raise LeaseLost(_lost(entry))

    async def afinish(self, connection: object, entry: Entry, response: Response) -> None:
        """`finish` for an async connection."""
        answer = _response(response)
        if not await self._acall(connection, "ledger.afinish", lambda keeper: self._finish(keeper, entry, answer)):
            raise LeaseLost(_lost(entry))

    def fail(self, connection: object, entry: Entry, response: Response | None = None) -> bool:
        """Record that the work failed: it may run again at once, unless a response is given, which is then replayed.

        For use after the work's own transaction was rolled back. Returns False where the request is no longer this
        run's; then nothing was written, and nothing is to be done.
        """
        answer = None if response is None else _response(response)
        return self._call(connection, "ledger.fail", lambda keeper: self._fail(keeper, entry, answer))

    async def afail(self, connection: object, entry: Entry, response: Response | None = None) -> bool:
        """`fail` for an async connection."""
        answer = None if response is None else _response(response)
        return await self._acall(connection, "ledger.afail", lambda keeper: self._fail(keeper, entry, answer))

    def renew(self, connection: object, entry: Entry, seconds: float | None = None) -> bool:
        """Hold the request for so many seconds from now, the lease's length by default.

        Returns False where it is no longer this run's: stop the work, `finish` would refuse it.
        """
        return self._call(connection, "ledger.renew", lambda keeper: self._renew(keeper, entry, seconds))

    async def arenew(self, connection: object, entry: Entry, seconds: float | None = None) -> bool:
        """`renew` for an async connection."""
        return await self._acall(connection, "ledger.arenew", lambda keeper: self._renew(keeper, entry, seconds))

    def hand_over(self, connection: object, entry: Entry, response: Response | None = None) -> Entry:
        """Leave the rest of the work to others, and give a response for the meantime, such as a 202.

        ``add(ledger=entry)`` leaves it to a message by itself, and this, in the same transaction, says what whoever
        asks is told until the relay has confirmed the entry: succeeded when the message is sent, failed when it is
        dead. Without a response they are told that the request is in progress. This run can end it no more; whoever
        holds the entry that is returned can. Raises `LeaseLost` where the request is no longer this run's: roll back.
        """
        operation = self._hand_over(entry, response)
        return _inherited(entry, self._call(connection, "ledger.hand_over", operation))

    async def ahand_over(self, connection: object, entry: Entry, response: Response | None = None) -> Entry:
        """`hand_over` for an async connection."""
        operation = self._hand_over(entry, response)
        return _inherited(entry, await self._acall(connection, "ledger.ahand_over", operation))

    def _call(self, connection: object, method: str, operation: Callable[[Keeper], Steps[T]]) -> T:
        kind = sync_kind(connection, method)
        return run(explained(operation(self._keeper(kind.dialect))), kind.execute)

    async def _acall(self, connection: object, method: str, operation: Callable[[Keeper], Steps[T]]) -> T:
        kind = await async_kind(connection, method)
        return await arun(explained(operation(self._keeper(kind.dialect))), kind.execute)

    def _begin(self, dialect: str, entry: Entry) -> Steps[Decision]:
        return self._keeper(dialect).begin(entry, self._terms, replay_failures=self._settings.replay_failures)

    def _look(self, dialect: str, entry: Entry) -> Steps[Recorded | None]:
        found = (yield from self._keeper(dialect).select(entry.scope, [entry.key])).get(entry.key)
        return None if found is None else found.recorded

    def _finish(self, keeper: Keeper, entry: Entry, response: Response) -> Steps[bool]:
        if (yield from keeper.end(_given(entry), Status.SUCCEEDED, response, self._terms.keep)):
            return True
        if (yield from handing.has_message(keeper, entry)):
            raise LeaseLost(
                f"the request with the idempotency key {entry.key!r} was left to a message by add(ledger=…), whose "
                "fate is its outcome: roll back, and call hand_over with the response instead of finish, or add the "
                "message without ledger=…"
            )
        return False

    def _fail(self, keeper: Keeper, entry: Entry, response: Response | None) -> Steps[bool]:
        return keeper.end(_given(entry), Status.FAILED, response, self._terms.keep)

    def _renew(self, keeper: Keeper, entry: Entry, seconds: float | None) -> Steps[bool]:
        if seconds is not None and not 0 < seconds <= MOST_SECONDS:
            raise InvalidEntry(f"a lease of {seconds!r} seconds cannot be had: more than none, up to {MOST_SECONDS:,}")
        return keeper.renew(_given(entry), self._terms.lease if seconds is None else seconds)

    def _hand_over(self, entry: Entry, response: Response | None) -> Callable[[Keeper], Steps[Entry | None]]:
        answer = None if response is None else _response(response)
        return lambda keeper: handing.hand_over(keeper, _given(entry), answer)

    def _keeper(self, dialect: str) -> Keeper:
        if dialect not in self._keepers:
            names = Names.of(dialect, self._settings.schema, self._settings.table_prefix)
            self._keepers[dialect] = KEEPERS[dialect](names)
        return self._keepers[dialect]


def _given(entry: object) -> Entry:
    if not isinstance(entry, Entry):
        raise InvalidEntry(f"the entry must be that of the Run that begin answered, not {type(entry).__name__}")
    return entry


def _inherited(entry: Entry, heir: Entry | None) -> Entry:
    if heir is None:
        raise LeaseLost(_lost(entry))
    return heir


def digest_of(method: str, path: str, query: str = "", body: bytes = b"") -> str:
    """What makes two HTTP requests the same one: SHA-256 over method, path, query and body."""
    return encoding.digest(method.upper(), path, query, body)


def scope_of(*parts: str | int | UUID) -> str:
    """One scope of several parts, such as tenant and operation, so that no two lists of parts give the same.

    Numbers and UUIDs are taken as text. Raises `InvalidEntry` for other things, such as None.
    """
    return "/".join(_part(part).replace("%", "%25").replace("/", "%2F") for part in parts)


def _part(part: object) -> str:
    if isinstance(part, str):
        return str.__str__(part)
    if isinstance(part, UUID) or (isinstance(part, int) and not isinstance(part, bool)):
        return str(part)
    raise InvalidEntry(
        f"a part of the scope is {part!r}: give a str, int or UUID, and for who has no name one that nobody else has"
    )


def entry_of(scope: object, key: object, digest: object) -> Entry:
    """The entry of a new run of this request. Raises `InvalidEntry`."""
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        shown = repr(digest[:20]) if isinstance(digest, str) else type(digest).__name__
        raise InvalidEntry(f"the digest ({shown}) is not 64 lower-case hexadecimal digits: make it with digest_of")
    visible_scope = "" if scope == "" else _visible("the scope", scope)
    return Entry(visible_scope, _visible("the idempotency key", key), str.__str__(digest), new_token())


def _visible(name: str, value: object) -> str:
    """A text of 1 to 255 characters that can be seen: what Unicode calls printable, with spaces only inside.

    Databases disagree on spaces at the end, and people on characters that they cannot see.
    """
    if not isinstance(value, str):
        raise InvalidEntry(f"{name} must be a str, not {type(value).__name__}")
    if not 0 < len(value) <= MOST_CHARACTERS:
        raise InvalidEntry(f"{name} has {len(value)} characters ({value[:20]!r}): 1 to {MOST_CHARACTERS} are allowed")
    if not value.isprintable() or value != value.strip():
        raise InvalidEntry(
            f"{name} {value[:40]!r} holds a character that cannot be seen, or a space at its start or end: remove it"
        )
    return str.__str__(value)  # plain text: drivers would write a member of a `(str, Enum)` each in its own way


def _response(response: Response) -> Response:
    """The response as the ledger can keep it."""
    if not isinstance(response, Response):
        raise InvalidEntry(f"the response must be a postroom.idempotency.Response, not {type(response).__name__}")
    return Response(_http_status(response.status), _headers(response.headers), _body(response.body))


def _http_status(status: object) -> int:
    if not isinstance(status, int) or not 100 <= status <= 999:  # noqa: PLR2004 - three digits, as HTTP has them
        raise InvalidEntry(f"the response's status {status!r} is not a number of three digits")
    return int(status)


def _body(body: object) -> bytes:
    if not isinstance(body, bytes | bytearray | memoryview):
        raise InvalidEntry(f"the response's body must be bytes, not {type(body).__name__}")
    return bytes(body)


def _headers(headers: Any) -> tuple[tuple[str, str], ...]:
    """Pairs; a mapping is taken as such too."""
    try:
        pairs = [(name, value) for name, value in (headers.items() if isinstance(headers, Mapping) else headers)]
    except (TypeError, ValueError):
        raise InvalidEntry('the response\'s headers must be pairs of str: (("location", "/orders/7"), …)') from None
    return tuple((_header(name), _header(value)) for name, value in pairs)


def _header(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidEntry(f"a response header's name or value must be a str, not {type(value).__name__}")
    if wrong := _NO_HEADER.search(value):
        raise InvalidEntry(
            f"a response header holds {wrong[0]!r}, which HTTP cannot carry (no line ends, no NUL, Latin-1 only): "
            "remove or encode it"
        )
    return str.__str__(value)


def _lost(entry: Entry) -> str:
    scope = f" of the scope {entry.scope!r}" if entry.scope else ""
    return (
        f"the request with the idempotency key {entry.key!r}{scope} is no longer this run's: its lease ended and "
        "another took it over, or it was finished. Roll back, and begin it again to learn its response"
    )
