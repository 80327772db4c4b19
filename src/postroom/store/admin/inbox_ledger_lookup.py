"""Look up marks of the inbox, and entries of the idempotency ledger, by their primary keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from postroom.store.sql.dialect import text
from postroom.store.sql.operations import Operations
from postroom.store.sql.rows import as_bytes
from postroom.store.sql.steps import Query, Row, Steps

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

MOST_CONSUMERS = 1_000
"""Consumers whose marks are looked at, by name."""


@dataclass(frozen=True, slots=True)
class InboxMark:
    """A consumer has received a message."""

    consumer: str
    message_id: str
    received_at: datetime | None


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """A keyed request. Its response is told only if it was asked for."""

    scope: str
    key: str
    status: str
    """in_progress, succeeded or failed."""
    digest: str
    http_status: int | None
    response_bytes: int
    header_names: tuple[str, ...]
    created_at: datetime | None
    finished_at: datetime | None
    expires_at: datetime | None
    leased_until: datetime | None
    headers: Mapping[str, str] | None = None
    response_body: bytes | None = None


class InboxLookup(Operations):
    """Marks of all consumers."""

    def marks(self, message_id: str, consumer: str | None = None) -> Steps[list[InboxMark]]:
        """The marks of a message: of all consumers, which are found by jumping through the primary key, or of one."""
        inbox = self.tables["inbox"]
        marks: list[InboxMark] = []
        consumers = [consumer] if consumer is not None else (yield from self._consumers())
        for one in consumers:
            found = yield Query(
                f"SELECT {self.dialect.readable('received_at')} FROM {inbox} "
                "WHERE consumer = :consumer AND message_id = :message_id",
                {"consumer": one, "message_id": message_id},
            )
            marks += [InboxMark(one, message_id, self.dialect.read_moment(at)) for [at] in found.rows]
        return marks

    def _consumers(self) -> Steps[list[str]]:
        inbox = self.tables["inbox"]
        consumers: list[str] = []
        while len(consumers) < MOST_CONSUMERS:
            found = yield Query(
                f"SELECT consumer FROM {inbox} WHERE consumer > :after ORDER BY consumer LIMIT 1",
                {"after": consumers[-1] if consumers else ""},
            )
            if not found.rows:
                break
            consumers.append(text(found.rows[0][0]))
        return consumers


class LedgerLookup(Operations):
    """Entries of all scopes."""

    def entries(
        self, key: str | None, scope: str | None, limit: int, after: str | None = None, *, body: bool = False
    ) -> Steps[list[LedgerEntry]]:
        """Entries with a key, in a scope or in all of them; or those of a scope, by key, from behind one on."""
        given = {"key": key, "scope": scope, "after": after}
        params: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        conditions = {
            "scope": "e.scope = :scope",
            "key": "e.idempotency_key = :key",
            "after": "e.idempotency_key > :after",
        }
        where = "e.scope = s.scope AND " if scope is None else ""
        where += " AND ".join(condition for name, condition in conditions.items() if name in params)
        moments = (
            f"nullif({self.dialect.readable(f'e.{name}')}, {self.dialect.never})"
            for name in ("created_at", "finished_at", "expires_at", "leased_until")
        )
        body_bytes = self.dialect.bytes_of("e").partition(" + ")[0].replace("payload", "response_body")
        columns = (
            f"e.scope, e.idempotency_key, e.status, e.digest, e.http_status, {body_bytes}, e.response_headers, "
            f"{', '.join(moments)}, {'e.response_body' if body else 'NULL'}"
        )
        scopes, source = self._source(in_all=scope is None)
        found = yield Query(
            f"{scopes}SELECT {columns} FROM {source} WHERE {where} ORDER BY e.scope, e.idempotency_key LIMIT :limit",
            {**params, "limit": limit},
        )
        return [self._entry(row, body=body) for row in found.rows]

    def _source(self, *, in_all: bool) -> tuple[str, str]:
        """What is read. Without a scope, each is found by a jump through the primary key, which begins with it."""
        table = self.tables["idempotency"]
        if not in_all:
            return "", f"{table} e"
        if self.dialect.name == "mysql":  # it jumps by itself, and would end a recursion early
            return "", f"(SELECT DISTINCT scope FROM {table}) s STRAIGHT_JOIN {table} e"
        following = f"SELECT min(n.scope) FROM {table} n WHERE n.scope > s.scope"
        scopes = (
            f"WITH RECURSIVE scopes (scope) AS (SELECT min(scope) FROM {table} UNION ALL "
            f"SELECT ({following}) FROM scopes s WHERE s.scope IS NOT NULL) "
        )
        if self.dialect.name == "sqlite":  # it keeps the order of a cross join
            return scopes, f"scopes s CROSS JOIN {table} e"
        one = f"SELECT * FROM {table} i WHERE i.scope = s.scope AND i.idempotency_key = :key LIMIT 1"
        return scopes, f"scopes s CROSS JOIN LATERAL ({one}) e"

    def _entry(self, row: Row, *, body: bool) -> LedgerEntry:
        scope, key, status, digest, http_status, size, headers, *moments, response = row
        named = _headers(headers)
        created_at, finished_at, expires_at, leased_until = map(self.dialect.read_moment, moments)
        return LedgerEntry(
            *(text(scope), text(key), text(status), text(digest), http_status, int(size), tuple(sorted(named))),
            *(created_at, finished_at, expires_at, leased_until),
            headers=named if body else None,
            response_body=as_bytes(response) if body and response is not None else None,
        )


def _headers(stored: Any) -> dict[str, str]:
    """Headers as they are stored: pairs, or an object."""
    if stored is None:
        return {}
    read = stored if isinstance(stored, dict | list) else msgspec.json.decode(stored)
    pairs = read.items() if isinstance(read, dict) else read
    return {str(name): str(value) for name, value in pairs}
