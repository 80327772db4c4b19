"""Confirmations: record in the ledger how the work of a keyed request ended."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from postroom.rules.replay import Response, Status, Verdict, is_reopened, verdict_on
from postroom.store.ledger.entries import LEDGER_ENTRIES, UNTIL_CONFIRMED, LedgerRow
from postroom.store.outbox.leases import new_token
from postroom.store.sql.dialect import listed
from postroom.store.sql.operations import chunks
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from postroom.store.sql.names import Names

_COLUMNS = (
    "scope, idempotency_key, digest, token, status, http_status, response_headers, response_body, finished_at, "
    "expires_at"
)


class Confirmation(NamedTuple):
    """The outcome of a keyed request: whether it succeeded, and the response to replay."""

    scope: str
    key: str
    digest: str
    succeeded: bool
    response: Response

    @property
    def status(self) -> Status:
        return Status.SUCCEEDED if self.succeeded else Status.FAILED


class Confirmations:
    """Operations on many entries at once, inside the transaction that settles what they belong to.

    Lock what is settled first, by its token: then a worker that lost it writes nothing here. Entries are locked in the
    order of scope and key, so that two workers with the same entries cannot deadlock.
    """

    def __init__(self, names: Names) -> None:
        self._entries = LEDGER_ENTRIES[names.dialect](names)
        self._dialect = self._entries.dialect
        self._table = self._entries.table

    def foresee(self, confirmations: Sequence[Confirmation]) -> Steps[list[Verdict]]:
        """What `confirm` would answer to each now. Only reads: saves work that has been done already."""
        found: dict[tuple[str, str], LedgerRow] = {}
        for scope, chunk in _chunks(confirmations):
            rows = yield from self._entries.select(scope, {one.key for one in chunk})
            found |= {(scope, key): row for key, row in rows.items()}
        return [_judged(found.get((one.scope, one.key)), one) for one in confirmations]

    def confirm(self, confirmations: Sequence[Confirmation], keep_seconds: float) -> Steps[list[Verdict]]:
        """Write the outcomes; returns a verdict for each, in order.

        An entry that is in progress or failed takes the outcome, and its run can no longer end it. An entry that has
        succeeded, or has another digest, stays as it is. A missing entry is created.
        """
        verdicts: dict[int, Verdict] = {}
        for places in _rounds(confirmations):
            for scope, chunk in _chunks([confirmations[place] for place in places.values()]):
                wanted = {one.key: one for one in chunk}
                judged = yield from self._confirm(scope, wanted, float(keep_seconds))
                verdicts |= {places[scope, key]: verdict for key, verdict in judged.items()}
        return [verdicts[place] for place in range(len(confirmations))]

    def reopen(self, outcomes: Sequence[Confirmation]) -> Steps[None]:
        """Undo the failures of work that is to be tried again: clients are told that it is in progress.

        An entry that has succeeded, or belongs to another request, stays as it is.
        """
        for scope, chunk in _chunks(outcomes):
            wanted = {one.key: one for one in chunk}
            found = yield from self._entries.select(scope, wanted, self._dialect.for_update)
            failed = [key for key, row in found.items() if is_reopened(row.recorded, wanted[key].digest)]
            if failed:
                values = {"token": new_token(), "lease": UNTIL_CONFIRMED, "keep": UNTIL_CONFIRMED}
                yield self._for_keys(f"UPDATE {self._table} SET {self._entries.reopened}", scope, failed, values)

    def _confirm(self, scope: str, wanted: Mapping[str, Confirmation], keep: float) -> Steps[dict[str, Verdict]]:
        verdicts: dict[str, Verdict] = {}
        while wanted:
            found = yield from self._entries.select(scope, wanted, self._dialect.for_update)
            judged = {key: _judged(found.get(key), one) for key, one in wanted.items()}
            verdicts |= {key: verdict for key, verdict in judged.items() if verdict is not Verdict.ABSENT}
            yield from self._update(scope, [wanted[key] for key in judged if judged[key] is Verdict.CONFIRMED], keep)
            absent = {key: wanted[key] for key in judged if judged[key] is Verdict.ABSENT}
            yield from self._remove(scope, [key for key in absent if key in found])
            created = yield from self._create(scope, list(absent.values()), keep)
            verdicts |= dict.fromkeys(created, Verdict.ABSENT)
            wanted = {key: one for key, one in absent.items() if key not in created}  # another was quicker
        return verdicts

    def _update(self, scope: str, confirmed: Sequence[Confirmation], keep: float) -> Steps[None]:
        """One statement for all with the same response."""
        alike: dict[tuple[Status, Response], list[str]] = {}
        for one in confirmed:
            alike.setdefault((one.status, one.response), []).append(one.key)
        for (status, response), keys in alike.items():
            values = {"status": status.value, "keep": keep, **self._entries.answer(response)}
            yield self._for_keys(f"UPDATE {self._table} SET {self._entries.ended}", scope, keys, values)

    def _remove(self, scope: str, keys: Sequence[str]) -> Steps[None]:
        """Delete expired entries, to make room for new ones."""
        if keys:
            yield self._for_keys(f"DELETE FROM {self._table}", scope, keys, {})

    def _for_keys(self, statement: str, scope: str, keys: Sequence[str], values: Mapping[str, Any]) -> Query:
        params = {f"key_{n}": key for n, key in enumerate(keys)}
        names = listed(f":{name}" for name in params)
        condition = f"scope = :scope AND idempotency_key IN ({names})"
        return Query(f"{statement} WHERE {condition}", {"scope": scope, **params, **values})

    def _create(self, scope: str, absent: Sequence[Confirmation], keep: float) -> Steps[set[str]]:
        if not absent:
            return set()
        params: dict[str, Any] = {"scope": scope, "token": new_token(), "keep": keep}
        for n, one in enumerate(absent):
            answer = self._entries.answer(one.response)
            row = {"key": one.key, "digest": one.digest, "status": one.status.value, **answer}
            params |= {f"{name}_{n}": value for name, value in row.items()}
        rows = listed(map(self._row, range(len(absent))))
        return (yield from self._entries.insert(_COLUMNS, rows, params, [f"key_{n}" for n in range(len(absent))]))

    def _row(self, n: int) -> str:
        headers, body = self._entries.headers_in.format(f":headers_{n}"), self._entries.body_in.format(f":body_{n}")
        return (
            f"(:scope, :key_{n}, :digest_{n}, :token, :status_{n}, :http_status_{n}, {headers}, {body}, "
            f"{self._dialect.now}, {self._dialect.later(':keep')})"
        )


def _judged(found: LedgerRow | None, one: Confirmation) -> Verdict:
    return verdict_on(found.recorded if found else None, one.digest)


def _rounds(confirmations: Iterable[Confirmation]) -> Iterator[dict[tuple[str, str], int]]:
    """Where each identity is in the list; one that is there again, in a later round."""
    seen: Counter[tuple[str, str]] = Counter()
    rounds: dict[int, dict[tuple[str, str], int]] = {}
    for place, one in enumerate(confirmations):
        identity = (one.scope, one.key)
        rounds.setdefault(seen[identity], {})[identity] = place
        seen[identity] += 1
    yield from rounds.values()


def _chunks(confirmations: Iterable[Confirmation]) -> Iterator[tuple[str, Sequence[Confirmation]]]:
    """By scope, in the order of keys, and not too many at once."""
    in_order = sorted(confirmations, key=attrgetter("scope", "key"))
    for scope, those in groupby(in_order, key=attrgetter("scope")):
        for chunk in chunks(list(those)):
            yield scope, chunk
