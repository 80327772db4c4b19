"""The record of steps: written only while the lease holds, together with the end of the instance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from postroom.rules.failures import CODE_LENGTH, cut
from postroom.rules.ordering import NO_LANE
from postroom.rules.saga_plan import Direction, SagaOutcome, StepOutcome
from postroom.store.outbox.writers import WRITERS
from postroom.store.saga.values import Entry, Logged, LogItem
from postroom.store.sql.db_errors import is_duplicate_entry
from postroom.store.sql.dialect import whole_numbers
from postroom.store.sql.operations import chunks
from postroom.store.sql.states import ready
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from uuid import UUID

    from postroom.message import Message
    from postroom.store.outbox.leases import Claimed
    from postroom.store.saga.tables import Held, SagaTables

WORKER_LENGTH = 255
DONE = "sent"
"""The outcome in the receipts of starts and signals: what they were sent for is done."""

Known = dict[tuple[Direction, str], StepOutcome]
"""What is on record of an instance."""


class StepLog:
    """Locks the deliveries, reads what is on record, then writes. PostgreSQL does it in one statement."""

    def __init__(self, sql: SagaTables) -> None:
        self.sql = sql

    def log(
        self,
        claimed: Claimed,
        entries: Sequence[Entry],
        end: SagaOutcome | None = None,
        *,
        event: UUID | None = None,
        tell: Message | None = None,
        keeps_attempts: bool = False,
    ) -> Steps[Logged]:
        """Write entries, and the end of the instance, last in the transaction that is open on the caller's connection.

        Unless it is `WRITTEN`, the caller rolls back. Until the transaction ends nobody else can claim the instance. An
        entry replaces a row that waits; any other row of its step and direction means that it was done before. `event`
        is removed: the step has taken it. `tell` is added if the instance ends. `keeps_attempts`: see `LogItem`.
        """
        try:
            logged = yield from self.write_one(LogItem(claimed, entries, end, tell, keeps_attempts))
        except Exception as error:
            if not is_duplicate_entry(error):
                raise
            return Logged.DONE_BEFORE
        if logged is Logged.WRITTEN and event is not None:
            yield self._take(claimed, event)
        return logged

    def log_many(self, items: Sequence[LogItem]) -> Steps[list[Logged]]:
        """Write the entries of many instances in a transaction of its own. One that is refused stops no other.

        Nor does one that somebody else has locked: nothing is written for it, and it is `LOCKED`.
        """
        if not items:
            return []
        return (yield from self.sql.transaction(self._write_unlocked, items))

    def _write_unlocked(self, items: Sequence[LogItem]) -> Steps[list[Logged]]:
        return (yield from self.locked_or_lost(items, (yield from self.write(items, skip_locked=True))))

    def locked_or_lost(self, items: Sequence[LogItem], logged: list[Logged]) -> Steps[list[Logged]]:
        """Tell those that were left out because they are locked from those whose lease is lost."""
        lost = [item.claimed for item, one in zip(items, logged, strict=True) if one is Logged.LEASE_LOST]
        if not lost:
            return logged
        held = yield from self.sql.held(lost)
        return [
            Logged.LOCKED if one is Logged.LEASE_LOST and item.claimed.lease in held else one
            for item, one in zip(items, logged, strict=True)
        ]

    def write_one(self, item: LogItem) -> Steps[Logged]:
        """`write` for one instance. Unless it is `WRITTEN`, the caller rolls back."""
        [logged] = yield from self.write([item])
        return logged

    def write(self, items: Sequence[LogItem], *, skip_locked: bool = False) -> Steps[list[Logged]]:
        """Write what is held and not on record yet. Several items may belong to one instance.

        `skip_locked`: what somebody else has locked counts as not held.
        """
        held = yield from self.sql.lock([item.claimed for item in items], skip_locked=skip_locked)
        known = yield from self.on_record({position for position, _ in held})
        outcomes: list[Logged] = []
        rows: list[_Row] = []
        for item in items:
            on_record = known.get(item.claimed.position, {})
            outcomes.append(_foreseen(item, on_record) if item.claimed.lease in held else Logged.LEASE_LOST)
            if outcomes[-1] is Logged.WRITTEN:
                rows += _rows(held[item.claimed.lease], on_record, item.entries)
        yield from self._write_rows(rows)
        written = [item for item, logged in zip(items, outcomes, strict=True) if logged is Logged.WRITTEN]
        ended = {item.claimed.lease for item in written if item.end is not None}
        kept = {item.claimed.lease for item in written if item.keeps_attempts}
        going_on = {item.claimed.lease for item in written} - ended
        yield from self.go_on([held[lease] for lease in sorted(going_on - kept)])
        yield from self.go_on([held[lease] for lease in sorted(going_on & kept)], keeps_attempts=True)
        yield from self._end([(held[item.claimed.lease], item) for item in written if item.end is not None])
        return outcomes

    def on_record(self, positions: Iterable[int], latest: str = "") -> Steps[dict[int, Known]]:
        """What is on record of these instances, whose deliveries are locked. `latest`: see `SagaTables`."""
        known: dict[int, Known] = {position: {} for position in positions}
        for some in chunks(sorted(known)):
            source, params = self.sql.at(self.sql.step, some)
            found = yield Query(f"SELECT position, direction, step, outcome {source}{latest}", params)
            for position, direction, step, outcome in found.rows:
                known[position][Direction(direction), step] = StepOutcome(outcome)
        return known

    def write_entries(self, held: Held, known: Known, entries: Sequence[Entry]) -> Steps[None]:
        """Write the rows of one instance that are not there, and replace those that wait."""
        yield from self._write_rows(_rows(held, known, entries))

    def _write_rows(self, rows: Sequence[_Row]) -> Steps[None]:
        for row in rows:
            if row.waits:
                yield self._replacement(row.held, row.entry)
        for some in chunks([row for row in rows if not row.waits]):
            yield self._insertion(some)

    def _insertion(self, rows: Sequence[_Row]) -> Query:
        sql = self.sql
        params: dict[str, Any] = {}
        values: list[str] = []
        for n, (held, number, _, entry) in enumerate(rows):
            params |= {f"{name}_{n}": value for name, value in self._fields(held, entry).items()}
            values.append(
                f"({held.position}, {int(entry.direction)}, :step_{n}, {int(entry.outcome)}, {number}, :attempts_{n}, "
                f":worker_{n}, {sql.dialect.later(f':ago_{n}')}, {sql.now}, {sql.bytes_of(f'result_{n}')}, "
                f"{sql.bytes_of(f'data_{n}')}, :code_{n}, :text_{n})"
            )
        return Query(
            f"INSERT INTO {sql.step} (position, direction, step, outcome, number, attempts, worker, started, finished, "
            f"result, data, error_code, error_message) VALUES {', '.join(values)}",
            params,
        )

    def _replacement(self, held: Held, entry: Entry) -> Query:
        sql = self.sql
        fields = self._fields(held, entry)
        del fields["ago"]  # it began when it began to wait
        return Query(
            f"UPDATE {sql.step} SET outcome = {int(entry.outcome)}, attempts = :attempts, worker = :worker, "
            f"finished = {sql.now}, result = {sql.bytes_of('result')}, data = {sql.bytes_of('data')}, "
            f"error_code = :code, error_message = :text WHERE position = :position "
            f"AND direction = {int(entry.direction)} AND step = :step AND outcome = {int(StepOutcome.WAITING)}",
            {**fields, "position": held.position},
        )

    def _fields(self, held: Held, entry: Entry) -> dict[str, Any]:
        return {
            "step": entry.step,
            "attempts": 0 if entry.outcome is StepOutcome.SKIPPED else held.attempts + 1,
            "worker": cut(entry.worker, WORKER_LENGTH),
            "ago": -float(entry.seconds),
            "result": self.sql.as_bytes(entry.result),
            "data": self.sql.as_bytes(entry.data),
            "code": cut(entry.error_code, CODE_LENGTH),
            "text": cut(entry.error_message),
        }

    def go_on(self, held: Sequence[Held], *, keeps_attempts: bool = False) -> Steps[None]:
        """Forget attempts, claims and error of those that have any: what made progress has not failed."""
        sql = self.sql
        attempts = "" if keeps_attempts else "attempts = 0, "
        for some in chunks([one.position for one in held if not one.clean]):
            yield Query(
                f"UPDATE {sql.delivery_by_key} SET {attempts}claims = 1, error_code = '', error_message = '', "
                f"failed_at = {sql.dialect.never} WHERE {ready()} AND queue = :queue AND lane = {NO_LANE} "
                f"AND position IN ({whole_numbers(some)})",
                {"queue": sql.queue},
            )

    def _end(self, ended: Sequence[tuple[Held, LogItem]]) -> Steps[None]:
        """Delete the deliveries, write their receipts, close the instances, and tell who waits for that."""
        sql = self.sql
        for some in chunks(ended):
            source, these = sql.only_deliveries([item.claimed for _, item in some])
            yield Query(
                f"{sql.dialect.delete} FROM {source} WHERE {ready('d')} AND d.queue = :queue AND {these}",
                {"queue": sql.queue},
            )
            receipts = ", ".join(f"({held.position}, {held.attempts + 1}, :outcome)" for held, _ in some)
            yield Query(
                f"INSERT INTO {sql.receipt} (position, attempts, outcome) VALUES {receipts} "
                f"{sql.dialect.replace_receipt}",
                {"outcome": DONE},
            )
            for outcome in (SagaOutcome.COMPLETED, SagaOutcome.COMPENSATED):
                positions = [held.position for held, item in some if item.end is outcome]
                if positions:
                    yield Query(
                        f"UPDATE {sql.saga} SET outcome = {int(outcome)}, ended = {sql.now} "
                        f"WHERE position IN ({whole_numbers(positions)})"
                    )
        yield from self.tell([item.tell for _, item in ended if item.tell is not None])

    def tell(self, messages: Sequence[Message]) -> Steps[None]:
        """Add messages to the queues that are named as their topics."""
        for message in messages:
            yield from WRITERS[self.sql.names.dialect](self.sql.names, message.topic, notify=self.sql.notify).add(
                [message]
            )

    def _take(self, claimed: Claimed, event: UUID) -> Query:
        as_id = "::text::uuid" if self.sql.names.dialect == "postgresql" else ""
        return Query(
            f"DELETE FROM {self.sql.event} WHERE position = :position AND message_id = :message{as_id}",
            {"position": claimed.position, "message": str(event)},
        )


class _Row(NamedTuple):
    """A row to be written: the how-manieth of its instance, and whether it is there already, and waits."""

    held: Held
    number: int
    waits: bool
    entry: Entry


def _rows(held: Held, known: Known, entries: Sequence[Entry]) -> list[_Row]:
    """The rows of these entries, which are in `known` afterwards."""
    rows: list[_Row] = []
    for entry in entries:
        rows.append(_Row(held, len(known), (entry.direction, entry.step) in known, entry))
        known[entry.direction, entry.step] = entry.outcome
    return rows


def _foreseen(item: LogItem, known: Known) -> Logged:
    return Logged.DONE_BEFORE if repeats(item.entries, known) else Logged.WRITTEN


def repeats(entries: Sequence[Entry], known: Known) -> bool:
    """Whether one of them is on record, and not as waiting."""
    return any(
        known.get((entry.direction, entry.step), StepOutcome.WAITING) is not StepOutcome.WAITING for entry in entries
    )
