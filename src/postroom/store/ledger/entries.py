"""The SQL of ledger entries: one row for each scope and idempotency key, written in the caller's transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import msgspec

from postroom.rules.replay import Decision, Entry, InProgress, Recorded, Response, Run, Status, decide
from postroom.store.sql.dialect import DIALECTS, Dialect, as_json, listed, text
from postroom.store.sql.steps import Query, Row, Steps

if TYPE_CHECKING:
    from collections.abc import Iterable

    from postroom.store.sql.names import Names


UNTIL_CONFIRMED = 36_500 * 24 * 3600.0
"""Seconds for which a handed-over entry is held: its new holder records the outcome, however late."""


class Terms(NamedTuple):
    """How many seconds a run holds its entry, and how many the entry is kept."""

    lease: float
    keep: float


class LedgerRow(NamedTuple):
    """A row of the ledger."""

    token: int
    recorded: Recorded


class LedgerEntries:
    """Entries on PostgreSQL and SQLite, where inserting a row that exists is no error.

    Every write names the token and the status of what it changes, so a late run changes nothing. A request's INSERT
    waits for another open transaction that has inserted the same key.
    """

    lock: ClassVar[str] = ""
    """What makes a SELECT see what was committed since the transaction's snapshot, where the database needs that."""
    headers_in: ClassVar[str] = "{}"
    headers_out: ClassVar[str] = "response_headers"
    body_in: ClassVar[str] = "{}"
    """How a parameter becomes a value of the column, and how the column is read."""

    def __init__(self, names: Names) -> None:
        self.dialect: Dialect = DIALECTS[names.dialect]()
        self.table = names.mapping()["idempotency"]
        now, lease, keep = self.dialect.now, self.dialect.later(":lease"), self.dialect.later(":keep")
        self.times = f"{lease}, {keep}"
        self._renewed = f"leased_until = {lease}"
        self.reopened = (
            f"status = 'in_progress', token = :token, leased_until = {lease}, finished_at = {self.dialect.never}, "
            f"expires_at = {keep}, http_status = NULL, response_headers = NULL, response_body = NULL"
        )
        self._taken_over = f"digest = :digest, created_at = {now}, {self.reopened}"
        answered = (
            f"http_status = :http_status, response_headers = {self.headers_in.format(':headers')}, "
            f"response_body = {self.body_in.format(':body')}"
        )
        self.ending = f"status = :status, leased_until = {self.dialect.never}, finished_at = {now}, expires_at = {keep}"
        self.ended = f"{self.ending}, {answered}"
        self._left = f"token = :token, leased_until = {lease}"
        self._handed_over = f"{self._left}, {answered}"
        self.columns = (
            f"idempotency_key, token, digest, status, http_status, {self.headers_out}, response_body, "
            # As a float: where texts come as bytes, a driver may not be able to read a decimal.
            f"CASE WHEN leased_until > {now} THEN -1e0 * ({self.dialect.seconds_since('leased_until')}) ELSE 0e0 END, "
            f"expires_at <= {now}"
        )

    def begin(self, entry: Entry, terms: Terms, *, replay_failures: bool, waits: bool = True) -> Steps[Decision]:
        """Take the entry, or say why not. Of all transactions that do this at once, one gets to run.

        Unless it ``waits``, an entry whose lease has ended counts as in progress while a transaction holds it.
        """
        found = yield from self._glance(entry)
        while True:
            if found is None:
                is_new, found = yield from self._insert_or_find(entry, terms)
                if is_new:
                    return Run(entry)
            if found is not None:  # else it was removed in the meantime
                decision = decide(found.recorded, entry, replay_failures=replay_failures)
                if not isinstance(decision, Run):
                    return decision
                if not waits and (yield from self._is_locked(entry, found)):
                    return InProgress(1)
                if (yield from self._take_over(entry, found, terms)):
                    return decision
                found = None

    def end(self, entry: Entry, status: Status, response: Response | None, keep: float) -> Steps[bool]:
        """Record how the run ended. Returns False, and writes nothing, if the run no longer holds the entry."""
        values = {"status": status.value, "keep": float(keep), **self.answer(response)}
        return (yield from self._write(entry, entry.token, Status.IN_PROGRESS, self.ended, values))

    def renew(self, entry: Entry, lease: float) -> Steps[bool]:
        """Hold the entry for this many seconds from now. False if the run no longer holds it."""
        return (yield from self._write(entry, entry.token, Status.IN_PROGRESS, self._renewed, {"lease": float(lease)}))

    def renew_unless_locked(self, entry: Entry, lease: float) -> Steps[bool]:
        """`renew`, unless a transaction has locked the row: it is about to end the entry, and may take long.

        Where the database does not lock rows, it waits.
        """
        if self.dialect.skip_locked and not (yield from self._is_free(entry, entry.token, Status.IN_PROGRESS)):
            return False
        return (yield from self.renew(entry, lease))

    def hand_over(self, entry: Entry, token: int, response: Response | None) -> Steps[bool]:
        """Give the entry, still in progress, to the holder of another token. False if the run no longer holds it."""
        values = {"token": token, "lease": UNTIL_CONFIRMED, **self.answer(response)}
        return (yield from self._write(entry, entry.token, Status.IN_PROGRESS, self._handed_over, values))

    def leave(self, entry: Entry, token: int) -> Steps[bool]:
        """`hand_over`, leaving the response that clients get meanwhile as it is."""
        values = {"token": token, "lease": UNTIL_CONFIRMED}
        return (yield from self._write(entry, entry.token, Status.IN_PROGRESS, self._left, values))

    def answer(self, response: Response | None) -> dict[str, Any]:
        """A response as parameters."""
        if response is None:
            return {"http_status": None, "headers": None, "body": None}
        return {
            "http_status": response.status,
            "headers": as_json(response.headers),
            "body": self._body(response.body),
        }

    def select(self, scope: str, keys: Iterable[str], lock: str = "") -> Steps[dict[str, LedgerRow]]:
        """The existing entries of one scope, by key; with a `lock`, locked in the order of keys."""
        params = {f"key_{n}": key for n, key in enumerate(keys)}
        result = yield Query(
            f"SELECT {self.columns} FROM {self.table} WHERE scope = :scope "
            f"AND idempotency_key IN ({listed(f':{name}' for name in params)}) ORDER BY idempotency_key{lock}",
            {"scope": scope, **params},
        )
        return {text(row[0]): read_row(row) for row in result.rows}

    def insert(self, columns: str, rows: str, params: dict[str, Any], keys: Iterable[str]) -> Steps[set[str]]:
        """Insert rows of one scope and one token where there are none; returns the keys of those that are new.

        Of the parameters, `scope` and `token` are for all rows; `keys` are the names of those that hold the keys.
        """
        del keys
        result = yield Query(
            f"INSERT INTO {self.table} ({columns}) VALUES {rows} ON CONFLICT DO NOTHING RETURNING idempotency_key",
            params,
        )
        return {text(key) for [key] in result.rows}

    def _glance(self, entry: Entry) -> Steps[LedgerRow | None]:
        """The existing row, read without a lock. Not read here: the INSERT itself looks.

        On SQLite, a transaction that reads first cannot write once another has written.
        """
        del entry
        yield from ()
        return None

    def _look(self, entry: Entry, lock: str = "") -> Steps[LedgerRow | None]:
        return (yield from self.select(entry.scope, [entry.key], lock)).get(entry.key)

    def _is_free(self, entry: Entry, token: int, status: Status) -> Steps[bool]:
        """Whether the row still has the token and the status, and no other transaction has locked it."""
        result = yield Query(
            f"SELECT token FROM {self.table} WHERE {_PLACE}{self.dialect.skip_locked}",
            {**_identity(entry), "old_token": token, "old_status": status.value},
        )
        return bool(result.rows)

    def _is_locked(self, entry: Entry, found: LedgerRow) -> Steps[bool]:
        """Whether another open transaction has locked the row that was found."""
        status = found.recorded.status
        if not self.dialect.skip_locked or (yield from self._is_free(entry, found.token, status)):
            return False
        now = yield from self._look(entry)
        return now is not None and (now.token, now.recorded.status) == (found.token, status)

    def _insert_or_find(self, entry: Entry, terms: Terms) -> Steps[tuple[bool, LedgerRow | None]]:
        """Create the entry: whether it is new, and otherwise the row that was there, unless it was just removed."""
        if (yield from self._insert(entry, terms)):
            return True, None
        return False, (yield from self._look(entry, self.lock))

    def _insert(self, entry: Entry, terms: Terms) -> Steps[bool]:
        """Create the entry, unless one exists. Does not wait for one that is about to change."""
        values = "CAST(:scope AS text), CAST(:key AS text), CAST(:digest AS text), CAST(:token AS bigint)"
        there = (
            f"SELECT 1 FROM {self.table} WHERE scope = CAST(:scope AS text) AND idempotency_key = CAST(:key AS text)"
        )
        result = yield Query(
            f"INSERT INTO {self.table} ({NEW}) SELECT {values}, {self.times} WHERE NOT EXISTS ({there}) "
            "ON CONFLICT DO NOTHING RETURNING token",
            _fresh(entry, terms),
        )
        return bool(result.rows)

    def _take_over(self, entry: Entry, found: LedgerRow, terms: Terms) -> Steps[bool]:
        """Make the row this run's, unless it has changed or its lease was renewed since it was read."""
        values = {"digest": entry.digest, "token": entry.token, **seconds(terms)}
        ended = f" AND leased_until <= {self.dialect.now}"
        return (yield from self._write(entry, found.token, found.recorded.status, self._taken_over, values, ended))

    def _write(
        self, entry: Entry, token: int, status: Status, changes: str, values: dict[str, Any], condition: str = ""
    ) -> Steps[bool]:
        """Change the row if it still has the token and the status; returns whether it had."""
        result = yield Query(
            f"UPDATE {self.table} SET {changes} WHERE {_PLACE}{condition} RETURNING token",
            {**_identity(entry), "old_token": token, "old_status": status.value, **values},
        )
        return bool(result.rows)

    def _body(self, body: bytes) -> Any:
        return body


NEW = "scope, idempotency_key, digest, token, leased_until, expires_at"
NOTHING_ELSE = "NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL"
"""In the place of all columns of a row that is new, but its key."""
_PLACE = "scope = :scope AND idempotency_key = :key AND token = :old_token AND status = :old_status"


class PostgreSQLLedgerEntries(LedgerEntries):
    """Headers travel as text, so that codecs that an application sets on its connection do no harm."""

    headers_in = "{}::text::jsonb"
    headers_out = "response_headers::text"
    body_in = "{}::bytea"

    def _insert_or_find(self, entry: Entry, terms: Terms) -> Steps[tuple[bool, LedgerRow | None]]:
        """One statement, which also reads the row that is there: a replay costs no more than a new request."""
        result = yield Query(
            f"""WITH found AS MATERIALIZED (
                SELECT {self.columns} FROM {self.table} WHERE scope = :scope::text AND idempotency_key = :key::text
            ), fresh AS (
                INSERT INTO {self.table} ({NEW})
                SELECT :scope::text, :key::text, :digest::text, :token::bigint, {self.times}
                WHERE NOT EXISTS (SELECT FROM found) ON CONFLICT DO NOTHING RETURNING idempotency_key
            )
            SELECT * FROM found UNION ALL SELECT idempotency_key, {NOTHING_ELSE} FROM fresh""",
            _fresh(entry, terms),
        )
        if not result.rows:  # another transaction has inserted it in the meantime
            return False, (yield from self._look(entry))
        [row] = result.rows
        return (True, None) if row[1] is None else (False, read_row(row))


class MySQLLedgerEntries(LedgerEntries):
    """A refused plain INSERT would leave a shared lock, over which two writers would deadlock."""

    lock = " FOR UPDATE"
    body_in = "unhex({})"  # drivers differ in how they write bytes into a statement

    def insert(self, columns: str, rows: str, params: dict[str, Any], keys: Iterable[str]) -> Steps[set[str]]:
        """Drivers count written rows differently, so the token shows which rows are new."""
        yield Query(
            f"INSERT INTO {self.table} ({columns}) VALUES {rows} ON DUPLICATE KEY UPDATE token = token",
            params,
        )
        given = {name: params[name] for name in keys}
        result = yield Query(
            f"SELECT idempotency_key FROM {self.table} WHERE scope = :scope "
            f"AND idempotency_key IN ({listed(f':{name}' for name in given)}) AND token = :token FOR UPDATE",
            {"scope": params["scope"], "token": params["token"], **given},
        )
        return {text(key) for [key] in result.rows}

    def _glance(self, entry: Entry) -> Steps[LedgerRow | None]:
        """Read without locking first: what needs no write need not wait for a run that is about to finish."""
        return (yield from self._look(entry))

    def _insert(self, entry: Entry, terms: Terms) -> Steps[bool]:
        row = f"(:scope, :key, :digest, :token, {self.times})"
        return bool((yield from self.insert(NEW, row, _fresh(entry, terms), ["key"])))

    def _write(
        self, entry: Entry, token: int, status: Status, changes: str, values: dict[str, Any], condition: str = ""
    ) -> Steps[bool]:
        place = {**_identity(entry), "old_token": token, "old_status": status.value}
        held = yield Query(f"SELECT token FROM {self.table} WHERE {_PLACE}{condition} FOR UPDATE", place)
        if not held.rows:
            return False
        yield Query(f"UPDATE {self.table} SET {changes} WHERE {_PLACE}", {**place, **values})
        return True

    def _body(self, body: bytes) -> str:
        return body.hex()


LEDGER_ENTRIES: dict[str, type[LedgerEntries]] = {
    "postgresql": PostgreSQLLedgerEntries,
    "sqlite": LedgerEntries,
    "mysql": MySQLLedgerEntries,
}


def _identity(entry: Entry) -> dict[str, Any]:
    return {"scope": entry.scope, "key": entry.key}


def _fresh(entry: Entry, terms: Terms) -> dict[str, Any]:
    return {**_identity(entry), "digest": entry.digest, "token": entry.token, **seconds(terms)}


def seconds(terms: Terms) -> dict[str, Any]:
    """The terms as parameters."""
    return {"lease": float(terms.lease), "keep": float(terms.keep)}


_decode_headers = msgspec.json.Decoder(tuple[tuple[str, str], ...]).decode


def read_row(row: Row) -> LedgerRow:
    """A row of `columns`."""
    _, token, digest, status, http_status, headers, body, lease_left, expired = row
    response = None if http_status is None else Response(http_status, _headers(headers), bytes(body or b""))
    return LedgerRow(token, Recorded(text(digest), Status(text(status)), response, float(lease_left), bool(expired)))


def _headers(value: Any) -> tuple[tuple[str, str], ...]:
    return _decode_headers(text(value)) if value else ()
