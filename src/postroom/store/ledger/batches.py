"""Batches of keyed requests: what many requests ask of the ledger at the same moment, in one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from postroom.rules.replay import Decision, Entry, Response, Run, Status, decide
from postroom.store.ledger.entries import LEDGER_ENTRIES, NEW, NOTHING_ELSE, Terms, read_row, seconds
from postroom.store.sql.operations import Operations
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.store.sql.names import Names


class Begin(NamedTuple):
    """Take the entry, or say why not."""

    entry: Entry


class Finish(NamedTuple):
    """Record the response."""

    entry: Entry
    response: Response


Asked = Begin | Finish
Answers = list[Decision | bool | None]
"""One for each that asked; None if it has to ask alone."""


class LedgerBatches:
    """Answers what can be answered for all at once. No two of a batch finish the same entry."""

    def __init__(self, names: Names, terms: Terms, *, replay_failures: bool) -> None:
        self._entries = LEDGER_ENTRIES[names.dialect](names)
        self._terms = terms
        self._replay_failures = replay_failures

    def begin(self, entries: Sequence[Entry]) -> Steps[Answers]:
        """Begin them."""
        raise NotImplementedError

    def finish(self, asked: Sequence[Finish]) -> Steps[Answers]:
        """Record their responses."""
        raise NotImplementedError


class PostgreSQLBatches(LedgerBatches):
    """One statement for all. What needs more than that is left to those who asked.

    Each entry is looked up by itself, whatever the statistics say: in a join, a ledger that was empty when it was last
    analyzed would be read from end to end for every batch.
    """

    def begin(self, entries: Sequence[Entry]) -> Steps[Answers]:
        """Inserts what is new, in the order of keys, so that two batches cannot deadlock.

        Of several with the same new key, one gets to run, and the others have to ask alone.
        """
        table = self._entries.table
        result = yield Query(
            f"""WITH asked AS MATERIALIZED (
                SELECT * FROM unnest(:scopes::text[], :keys::text[], :digests::text[], :tokens::bigint[])
                    AS one (asked_scope, asked_key, asked_digest, asked_token)
            ), found AS MATERIALIZED (
                SELECT asked_token, there.* FROM asked CROSS JOIN LATERAL (
                    SELECT {self._entries.columns} FROM {table}
                    WHERE scope = asked_scope AND idempotency_key = asked_key LIMIT 1
                ) AS there
            ), fresh AS (
                INSERT INTO {table} ({NEW})
                SELECT asked_scope, asked_key, asked_digest, asked_token, {self._entries.times} FROM asked
                WHERE asked_token NOT IN (SELECT asked_token FROM found) ORDER BY asked_scope, asked_key
                ON CONFLICT DO NOTHING RETURNING token, idempotency_key
            )
            SELECT * FROM found UNION ALL SELECT token, idempotency_key, {NOTHING_ELSE} FROM fresh""",
            {
                "scopes": [entry.scope for entry in entries],
                "keys": [entry.key for entry in entries],
                "digests": [entry.digest for entry in entries],
                "tokens": [entry.token for entry in entries],
                **seconds(self._terms),
            },
        )
        rows = {row[0]: row[1:] for row in result.rows}
        return [self._decision(entry, rows.get(entry.token)) for entry in entries]

    def finish(self, asked: Sequence[Finish]) -> Steps[Answers]:
        """Passes over rows that another transaction has locked: nobody else has to wait for that one."""
        answers = [self._entries.answer(one.response) for one in asked]
        table = self._entries.table
        result = yield Query(
            f"""WITH held AS MATERIALIZED (
                SELECT place, asked_token, answer, headers, body FROM unnest(
                    :scopes::text[], :keys::text[], :tokens::bigint[], :statuses::smallint[], :headers::text[],
                    :bodies::bytea[]
                ) AS one (asked_scope, asked_key, asked_token, answer, headers, body) CROSS JOIN LATERAL (
                    SELECT ctid AS place FROM {table}
                    WHERE scope = asked_scope AND idempotency_key = asked_key AND token = asked_token
                        AND status = 'in_progress'
                    LIMIT 1 FOR UPDATE SKIP LOCKED
                ) AS there
            )
            UPDATE {table} SET {self._entries.ending}, (http_status, response_headers, response_body) =
                (SELECT answer, headers::jsonb, body FROM held WHERE asked_token = token)
            WHERE ctid = ANY(ARRAY(SELECT place FROM held))
            RETURNING token""",
            {
                "scopes": [one.entry.scope for one in asked],
                "keys": [one.entry.key for one in asked],
                "tokens": [one.entry.token for one in asked],
                "statuses": [answer["http_status"] for answer in answers],
                "headers": [answer["headers"] for answer in answers],
                "bodies": [answer["body"] for answer in answers],
                "status": Status.SUCCEEDED.value,
                "keep": float(self._terms.keep),
            },
        )
        done = {token for [token] in result.rows}
        return [one.entry.token in done or None for one in asked]

    def _decision(self, entry: Entry, row: Any) -> Decision | None:
        if row is None:  # another transaction has inserted it in the meantime
            return None
        if row[1] is None:
            return Run(entry)
        decision = decide(read_row(row).recorded, entry, replay_failures=self._replay_failures)
        return None if isinstance(decision, Run) else decision  # to take over takes another statement


class SQLiteBatches(LedgerBatches):
    """One transaction for all, since a commit is what costs."""

    def __init__(self, names: Names, terms: Terms, *, replay_failures: bool) -> None:
        super().__init__(names, terms, replay_failures=replay_failures)
        self._operations = Operations(names)

    def begin(self, entries: Sequence[Entry]) -> Steps[Answers]:
        """Begin one after the other."""
        return self._operations.transaction(self._begin, entries)

    def finish(self, asked: Sequence[Finish]) -> Steps[Answers]:
        """Record one after the other."""
        return self._operations.transaction(self._finish, asked)

    def _begin(self, entries: Sequence[Entry]) -> Steps[Answers]:
        decisions: Answers = []
        for entry in entries:
            decision = yield from self._entries.begin(entry, self._terms, replay_failures=self._replay_failures)
            decisions.append(decision)
        return decisions

    def _finish(self, asked: Sequence[Finish]) -> Steps[Answers]:
        answers: Answers = []
        for entry, response in asked:
            done = yield from self._entries.end(entry, Status.SUCCEEDED, response, self._terms.keep)
            answers.append(done or None)
        return answers


BATCHES: dict[str, type[LedgerBatches]] = {"postgresql": PostgreSQLBatches, "sqlite": SQLiteBatches}
"""Not for MySQL, where each request takes several statements, with locks that others would wait for."""
