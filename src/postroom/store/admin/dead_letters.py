"""Dead letters of all queues: list, count, requeue and discard them; each act is audited."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from postroom.rules.lifecycle import Transition
from postroom.rules.naming import is_saga_queue
from postroom.rules.ordering import NO_LANE
from postroom.store.admin.audit import UNSIGNED, Note, audit
from postroom.store.admin.message_filter import ALL, Filter, has_fingerprint
from postroom.store.admin.newest_first import PAYLOAD_SCAN, SCAN, Found
from postroom.store.admin.selection import Acted, Batch, KeyRange, Progress, SelectedDeliveries
from postroom.store.ledger.confirmations import Confirmations
from postroom.store.ledger.message_outcomes import failure_of
from postroom.store.sql.dialect import ALL_LANES, whole_numbers
from postroom.store.sql.operations import CHUNK
from postroom.store.sql.rows import headers_of, shown, uuid_of
from postroom.store.sql.states import becomes, before, dead
from postroom.store.sql.steps import Query, Row, Steps

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from postroom.store.sql.names import Names

    Act = Callable[[str, Sequence["DeadLetter"]], Steps[None]]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A delivery that is dead. What belongs to the message is None where the message is gone."""

    position: int
    queue: str
    lane: int
    attempts: int
    failed_at: datetime | None
    error_code: str
    error_message: str
    id: str | None
    topic: str | None
    type: str | None
    key: str | None
    created_at: datetime | None


COLUMNS = (
    "d.position, d.queue, d.lane, d.attempts, nullif({failed_at}, {never}), d.error_code, d.error_message, "
    "m.id, m.topic, m.type, m.ordering_key, {created_at}"
)


class DeadLetters(SelectedDeliveries):
    """Dead letters of all queues."""

    states = Transition.REQUEUE.stored
    since = "d.failed_at"

    def __init__(self, names: Names) -> None:
        super().__init__(names)
        self._columns = COLUMNS.format(
            never=self.dialect.never,
            failed_at=self.dialect.readable("d.failed_at"),
            created_at=self.dialect.readable("m.created_at"),
        )

    def listed(
        self, which: Filter = ALL, limit: int = 50, before: int | None = None
    ) -> Steps[tuple[list[DeadLetter], Found]]:
        """Dead letters, newest message first, from before a position on; and how far the search came."""
        on_delivery, on_message, params = self.split(which)
        places = yield from self.places_of(which, params, f"1 = 1 {on_delivery}{self.of_message(on_message)}")
        scan = SCAN if which.payload is None else PAYLOAD_SCAN
        found = yield from self.newest(places, params, limit, before=before, scan=scan)
        return (yield from self._read(which, found.positions)), found

    def _read(self, which: Filter, positions: Sequence[int]) -> Steps[list[DeadLetter]]:
        if not positions:
            return []
        queues = {f"queue_{n}": queue for n, queue in enumerate((yield from self.queues_with(self.states[0])))}
        found = yield Query(
            f"SELECT {self._columns} {self.source} WHERE {dead('d')} "
            f"AND d.queue IN ({', '.join(f':{label}' for label in queues) or 'NULL'}) AND d.lane IN ({ALL_LANES}) "
            f"AND d.position IN ({whole_numbers(positions)}) ORDER BY d.position DESC",
            queues,
        )
        return [letter for row in found.rows if has_fingerprint(which, (letter := self._letter(row)).error_message)]

    def requeue(self, which: Filter = ALL, note: Note = UNSIGNED, progress: Progress | None = None) -> Steps[Acted]:
        """Send dead messages after all: attempts, error and due time are cleared. What is not dead is left alone.

        A keyed request that failed with its message is in progress again. In batches, each a transaction.
        """
        return (yield from self.act(which, partial(self._batch, which, "requeue", note, self._revive), progress))

    def discard(self, which: Filter = ALL, note: Note = UNSIGNED, progress: Progress | None = None) -> Steps[Acted]:
        """Remove dead messages for good; otherwise like `requeue`.

        Sagas that are parked are left alone.
        """
        done = yield from self.act(which, partial(self._batch, which, "discard", note, self._remove), progress)
        done.sagas = yield from self.sagas(which)
        return done

    def _batch(self, which: Filter, action: str, note: Note, act: Act, part: KeyRange, after: int) -> Steps[Batch]:
        if action == "discard" and part.lane != NO_LANE:  # those behind them on their keys may go
            yield from self.reread_lanes(part.queue, [part.lane])
        left_out = self.but_sagas(part.queue) if action == "discard" else ""  # one may have been parked meanwhile
        conditions, params = self.conditions(which)
        found = yield Query(
            f"SELECT {self._columns} {self.source} WHERE {part.condition(after)}{conditions}{left_out}"
            f"ORDER BY d.position LIMIT {CHUNK}{self.dialect.for_update_of('d')}",
            {**params, "queue": part.queue},
        )
        rows = [self._letter(row) for row in found.rows]
        letters = [letter for letter in rows if has_fingerprint(which, letter.error_message)]
        if letters:
            yield from act(part.queue, letters)
            entries = [(letter.position, letter.id, _details(letter)) for letter in letters]
            yield from audit(self.names, action, note, entries)
        last = rows[-1].position if len(rows) == CHUNK else None
        return Batch({letter.position: uuid_of(letter.id) for letter in letters}, [], last)

    def _letter(self, row: Row) -> DeadLetter:
        position, queue, lane, attempts, failed_at, code, text, identifier, topic, kind, key, created_at = row
        moment = self.dialect.read_moment
        return DeadLetter(
            *(position, queue, lane, attempts, moment(failed_at), code, text),
            *(shown(identifier), shown(topic), shown(kind), shown(key), moment(created_at)),
        )

    def _revive(self, queue: str, letters: Sequence[DeadLetter]) -> Steps[None]:
        # Through the retry state, so that it goes before what is held behind it on its key. A saga counts as claimed
        # before, as when it is resumed: nobody may take its next attempt for the first.
        claims = int(is_saga_queue(queue))
        yield Query(
            f"UPDATE {self.delivery_by_key} SET {becomes(Transition.REQUEUE)}, due = {self.dialect.never}, "
            f"attempts = 0, claims = {claims}, error_code = '', error_message = '' "
            f"WHERE {before(Transition.REQUEUE)} AND queue = :queue AND {self.places(letters)}",
            {"queue": queue},
        )
        yield from self._reopen(letters)

    def _reopen(self, letters: Sequence[DeadLetter]) -> Steps[None]:
        """Keyed requests that failed with these messages are in progress again."""
        positions = whole_numbers([letter.position for letter in letters])
        found = yield Query(
            f"SELECT headers FROM {self.outbox} WHERE position IN ({positions}) AND headers IS NOT NULL"
        )
        failures = [failure_of(headers_of(headers)) for [headers] in found.rows]
        if told := [failure for failure in failures if failure is not None]:
            yield from Confirmations(self.names).reopen(told)

    def _remove(self, queue: str, letters: Sequence[DeadLetter]) -> Steps[None]:
        yield Query(
            f"DELETE FROM {self.delivery} WHERE {before(Transition.DISCARD)} AND queue = :queue "
            f"AND {self.places(letters)}",
            {"queue": queue},
        )
        positions = whole_numbers([letter.position for letter in letters])
        for table in (self.tables["attempt"], self.outbox):
            yield Query(f"DELETE FROM {table} WHERE position IN ({positions})")


def _details(letter: DeadLetter) -> dict[str, Any]:
    return {
        "topic": letter.topic,
        "key": letter.key,
        "attempts": letter.attempts,
        "error_code": letter.error_code,
        "error_message": letter.error_message,
        "failed_at": letter.failed_at,
    }
