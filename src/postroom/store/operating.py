"""What an operator does: re-queue and discard dead letters, find out about conflicts; each act is audited."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from postroom.rules.lifecycle import State, Stored, status
from postroom.store.dialect import as_json, whole_numbers
from postroom.store.leases import Claimed, Found
from postroom.store.operations import CHUNK, chunks
from postroom.store.steps import Query, Row, Steps

if TYPE_CHECKING:
    from postroom.store.deliveries import Deliveries


class DeadLetter(NamedTuple):
    """A delivery that is dead, as an act on it needs it."""

    position: int
    lane: int
    attempts: int
    error_code: str
    error_message: str
    failed_at: Any
    message_id: str | None
    topic: str | None
    key: str | None


Act = Callable[[Sequence[DeadLetter]], Steps[None]]


class Operating:
    """Acts on the deliveries of one queue, in the same words and transactions as the lease protocol."""

    def __init__(self, deliveries: Deliveries) -> None:
        self._deliveries = deliveries
        self._queue = {"queue": deliveries.queue}

    def requeue(self, ids: Collection[UUID] | None = None, *, actor: str = "") -> Steps[list[UUID]]:
        """Send dead messages after all: attempts, error and due time are cleared. All of them where no ids are given.

        Returns the ids of those that were dead; others are left alone.
        """
        return (yield from self._act_on_dead("requeue", ids, actor, self._revive))

    def discard(self, ids: Collection[UUID] | None = None, *, actor: str = "") -> Steps[list[UUID]]:
        """Remove dead messages for good. Returns the ids of those that were dead; others are left alone."""
        return (yield from self._act_on_dead("discard", ids, actor, self._remove))

    def record_conflicts(self, worker: str, lost: Sequence[Claimed]) -> Steps[list[Found]]:
        """Audit leases that a worker lost, each with what the worker found in its place."""
        if not lost:
            return []
        return (yield from self._deliveries.transaction(self._find_and_audit, worker, lost))

    def _act_on_dead(self, action: str, ids: Collection[UUID] | None, actor: str, act: Act) -> Steps[list[UUID]]:
        done: list[UUID] = []
        for chunk in [None] if ids is None else chunks(sorted(map(str, ids))):
            after = 0
            while True:
                letters = yield from self._deliveries.transaction(self._one_batch, action, chunk, actor, act, after)
                done += [UUID(letter.message_id) for letter in letters if letter.message_id]
                if len(letters) < CHUNK:
                    break
                after = letters[-1].position
        return done

    def _one_batch(
        self, action: str, ids: Sequence[str] | None, actor: str, act: Act, after: int
    ) -> Steps[list[DeadLetter]]:
        letters = yield from self._dead(ids, after)
        if letters:
            yield from act(letters)
            details = [_details(letter) for letter in letters]
            yield from self._audit(action, actor, [(x.position, x.message_id) for x in letters], details)
        return letters

    def _dead(self, ids: Sequence[str] | None, after: int) -> Steps[list[DeadLetter]]:
        """Dead letters, locked."""
        d = self._deliveries
        params: dict[str, Any] = {**self._queue, "after": after}
        chosen = ""
        if ids is not None:
            params |= {f"id_{n}": identifier for n, identifier in enumerate(ids)}
            chosen = f"AND m.id IN ({', '.join(f':id_{n}' for n in range(len(ids)))}) "
        found = yield Query(
            f"SELECT d.position, d.lane, d.attempts, d.error_code, d.error_message, "
            f"nullif(d.failed_at, {d.dialect.never}), m.id, m.topic, m.ordering_key "
            f"FROM {d.delivery} d LEFT JOIN {d.outbox} m ON m.position = d.position "
            f"WHERE d.state = 3 AND d.queue = :queue AND d.position > :after {chosen}"
            f"ORDER BY d.position LIMIT {CHUNK}{d.dialect.for_update_of('d')}",
            params,
        )
        return [self._letter(DeadLetter(*row)) for row in found.rows]

    def _letter(self, row: DeadLetter) -> DeadLetter:
        identifier = None if row.message_id is None else str(row.message_id)
        return row._replace(failed_at=self._deliveries.dialect.read_moment(row.failed_at), message_id=identifier)

    def _revive(self, letters: Sequence[DeadLetter]) -> Steps[None]:
        # Through the retry state, so that it goes before what is held behind it on its key.
        d = self._deliveries
        yield Query(
            f"UPDATE {d.delivery} SET state = 2, due = {d.dialect.never}, attempts = 0, claims = 0, error_code = '', "
            f"error_message = '' WHERE state = 3 AND queue = :queue AND {d.places(letters)}",
            self._queue,
        )

    def _remove(self, letters: Sequence[DeadLetter]) -> Steps[None]:
        d = self._deliveries
        yield Query(f"DELETE FROM {d.delivery} WHERE state = 3 AND queue = :queue AND {d.places(letters)}", self._queue)
        positions = whole_numbers([letter.position for letter in letters])
        yield Query(f"DELETE FROM {d.outbox} WHERE position IN ({positions})")

    def _find_and_audit(self, worker: str, lost: Sequence[Claimed]) -> Steps[list[Found]]:
        rows = yield from self._rows_of(lost)
        receipts = yield from self._receipts_of(lost)
        lanes = yield from self._lanes_of(lost)
        found = [_found(one, rows.get(one.position), receipts.get(one.position), lanes.get(one.lane)) for one in lost]
        details = [
            {"status": one.status, "owner": one.owner, "same_claim": one.token == one.claimed.token} for one in found
        ]
        yield from self._audit("conflict", worker, [(x.position, str(x.message.id)) for x in lost], details)
        return found

    def _rows_of(self, lost: Sequence[Claimed]) -> Steps[dict[int, Row]]:
        d = self._deliveries
        result = yield Query(
            f"SELECT position, state, due <= {d.now}, leased_until > {d.now}, owner, token FROM {d.delivery} "
            f"WHERE state IN (0, 1, 2, 3) AND queue = :queue AND {d.places(lost)}",
            self._queue,
        )
        return {row[0]: row for row in result.rows}

    def _receipts_of(self, lost: Sequence[Claimed]) -> Steps[dict[int, str]]:
        positions = whole_numbers([one.position for one in lost])
        result = yield Query(
            f"SELECT position, outcome FROM {self._deliveries.receipt} WHERE position IN ({positions})"
        )
        return dict(result.rows)

    def _lanes_of(self, lost: Sequence[Claimed]) -> Steps[dict[int, Row]]:
        d = self._deliveries
        numbers = whole_numbers(sorted({one.lane for one in lost}))
        result = yield Query(
            f"SELECT lane, leased_until > {d.now}, owner, token FROM {d.lane} "
            f"WHERE queue = :queue AND lane IN ({numbers})",
            self._queue,
        )
        return {row[0]: row for row in result.rows}

    def _audit(
        self, action: str, actor: str, messages: Sequence[tuple[int, str | None]], details: Sequence[dict[str, Any]]
    ) -> Steps[None]:
        for chunk in chunks(list(zip(messages, details, strict=True))):
            params: dict[str, Any] = {"action": action, "actor": actor}
            for n, ((position, message_id), detail) in enumerate(chunk):
                params |= {f"position_{n}": position, f"message_{n}": message_id, f"details_{n}": as_json(detail)}
            values = ", ".join(
                f"(:action, :actor, :position_{n}, :message_{n}, :details_{n})" for n in range(len(chunk))
            )
            audit = self._deliveries.tables["audit"]
            yield Query(f"INSERT INTO {audit} (action, actor, position, message_id, details) VALUES {values}", params)


def _details(letter: DeadLetter) -> dict[str, Any]:
    return {
        "topic": letter.topic,
        "key": letter.key,
        "attempts": letter.attempts,
        "error_code": letter.error_code,
        "error_message": letter.error_message,
        "failed_at": letter.failed_at,
    }


def _found(claimed: Claimed, row: Row | None, receipt: str | None, lane: Row | None) -> Found:
    if row is None:
        return Found(claimed, receipt or "removed", "", 0)
    _, stored, due_passed, leased, owner, token = row
    if claimed.ordered and lane is not None:
        _, leased, owner, token = lane
    state: State = status(Stored(stored), due_passed=bool(due_passed), leased=bool(leased))
    return Found(claimed, state.value, owner, token)
