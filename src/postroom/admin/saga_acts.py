"""What operators do to one saga: each act reads, decides by the rules, writes and audits in one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, assert_never

import msgspec

from postroom.admin.saga_details import plan_of
from postroom.admin.saga_results import SagaFork
from postroom.errors import IdempotencyConflict, SagaActRefused, SagaNotDecodable
from postroom.rules.lifecycle import Stored
from postroom.rules.naming import SAGA_FORK_OF, SAGA_ID
from postroom.rules.saga_acts import FORKABLE, Refusal, can_skip, fork_from, step_to_skip
from postroom.rules.saga_state import SagaState
from postroom.saga.messages import start_message
from postroom.store.admin.audit import audit
from postroom.store.admin.saga_rows import SagaRows
from postroom.store.saga.saga_store import SagaStore
from postroom.store.saga.values import Aborted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.rules.saga_plan import Plan
    from postroom.store.admin.audit import Entry, Note
    from postroom.store.admin.saga_lookup import FoundSaga
    from postroom.store.admin.sagas import ListedSaga
    from postroom.store.sql.names import Names
    from postroom.store.sql.steps import Steps

RESUMED, SKIPPED, FORKED = "saga_resumed", "saga_skipped", "saga_forked"
UNREADABLE = Refusal("this version of Postroom cannot read its plan: use the one that wrote it")


class SagaActs:
    """To be run in a transaction each."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._rows = SagaRows(names)

    def resume(self, name: str, sagas: Sequence[ListedSaga], note: Note) -> Steps[dict[int, Refusal | None]]:
        """Resume those of one name that are parked."""
        yield from self._restore(name, sagas)
        parked = yield from self._rows.lock_parked(name, [saga.position for saga in sagas])
        if parked:
            ids = yield from self._rows.message_ids(parked)
            yield from self._rows.resume(name, Stored.DEAD, parked)
            entries = [
                (saga.position, ids.get(saga.position), _details(saga)) for saga in sagas if saga.position in parked
            ]
            yield from audit(self._names, RESUMED, note, entries)
        return {saga.position: None if saga.position in parked else _not_parked(saga) for saga in sagas}

    def skip(self, saga: ListedSaga, step: str | None, note: Note) -> Steps[Refusal | None]:
        """Put the step on record as skipped that comes next, and make the saga due."""
        yield from self._restore(saga.name, [saga])
        delivery = yield from self._rows.lock(saga.name, saga.position)
        found = yield from self._rows.find(saga.name, saga.position)
        if delivery is None or found is None:
            return Refusal(f"it is {found.saga.state}" if found else "it is gone")
        if not can_skip(delivery.stored, delivery.error_code):
            return Refusal(f"it is {found.saga.state}: only a step that has failed can be skipped")
        start = plan_of(found)
        if start is None:
            return UNREADABLE
        skipped = step_to_skip(start.plan, found.direction, found.outcomes, step)
        if isinstance(skipped, Refusal):
            return skipped
        yield from self._rows.skip(saga.position, skipped, note)
        yield from self._rows.resume(saga.name, delivery.stored, [saga.position])
        details = {**_details(found.saga), "step": skipped.step, "direction": skipped.direction.name.lower()}
        yield from audit(self._names, SKIPPED, note, [(saga.position, str(found.message.id), details)])
        return None

    def abort(self, saga: ListedSaga, note: Note) -> Steps[Refusal | None]:
        """Turn it back, whoever runs it. The store audits it."""
        yield from self._restore(saga.name, [saga])
        try:
            aborted = yield from SagaStore(self._names, saga.name).abort(saga.id, note.actor, note.reason)
        except SagaNotDecodable:
            return UNREADABLE
        match aborted:
            case Aborted.ABORTED:
                return None
            case Aborted.UNKNOWN | Aborted.LOST:
                return Refusal("it is gone")
            case Aborted.ENDED:
                return Refusal("it has ended")
            case Aborted.ALREADY_BACK:
                return Refusal("it goes back already")
            case Aborted.PAST_PIVOT:
                return Refusal("it has passed its pivot, or may have, and only goes forward")
            case _:
                assert_never(aborted)

    def fork(self, name: str, position: int, step: str, new_id: str | None, note: Note) -> Steps[SagaFork]:
        """Start a new saga that takes over what the old one did before a step. Raises `SagaActRefused`."""
        yield from self._rows.lock(name, position)
        found = yield from self._rows.find(name, position)
        start = None if found is None else plan_of(found)
        if found is None or start is None:
            raise SagaActRefused(f"cannot fork saga {name} at position {position}: {UNREADABLE.reason}")
        old = found.saga
        if old.state not in FORKABLE:
            raise _refused(old, f"it is {old.state}: wait until it has ended, or abort it")
        taken_over = fork_from(start.plan, found.outcomes, step)
        if isinstance(taken_over, Refusal):
            raise _refused(old, taken_over.reason)
        new = yield from self._start(found, start.plan, new_id)
        yield from self._rows.copy(position, new.position, taken_over, note)
        details = {"saga": name, "id": old.id, "from": step, "new_id": new.id}
        entries: list[Entry] = [
            (position, str(found.message.id), details),
            (new.position, new.message_id, {"saga": name, "id": new.id, "from": step, "fork_of": old.id}),
        ]
        yield from audit(self._names, FORKED, note, entries)
        return SagaFork(name, new.id, old.id, taken_over.kept)

    def _restore(self, name: str, sagas: Sequence[ListedSaga]) -> Steps[None]:
        """Give parked ones a delivery again that have lost theirs."""
        parked = [saga.position for saga in sagas if saga.state is SagaState.PARKED]
        if parked:
            yield from self._rows.restore(name, parked)

    def _start(self, found: FoundSaga, plan: Plan, new_id: str | None) -> Steps[_Started]:
        """Record the new saga: the same name, plan, first data and time limit, under another id."""
        old = found.saga
        message = start_message(old.name, new_id, plan, found.message.payload or b"", None)
        message = msgspec.structs.replace(message, headers={**message.headers, SAGA_FORK_OF: old.id})
        limit = (old.deadline - old.started_at).total_seconds() if old.deadline and old.started_at else None
        identifier = message.headers[SAGA_ID]
        try:
            recorded = yield from SagaStore(self._names, old.name).start(message, limit)
        except IdempotencyConflict:
            recorded = None
        if recorded is None or recorded.duplicate:
            raise _refused(old, f"there is a saga with the id {identifier!r} already: choose another, or leave it out")
        position = yield from self._rows.position(old.name, identifier)
        assert position is not None  # noqa: S101 - it has just been recorded
        return _Started(identifier, position, str(recorded.id))


class _Started(NamedTuple):
    id: str
    position: int
    message_id: str


def _refused(saga: ListedSaga, reason: str) -> SagaActRefused:
    return SagaActRefused(f"cannot fork saga {saga.name} {saga.id}: {reason}")


def _not_parked(saga: ListedSaga) -> Refusal:
    if saga.state is SagaState.PARKED:
        return Refusal("it was resumed meanwhile")
    return Refusal(f"it is {saga.state}: only parked sagas can be resumed")


def _details(saga: ListedSaga) -> dict[str, Any]:
    return {
        "saga": saga.name,
        "id": saga.id,
        "attempts": saga.attempts,
        "error_code": saga.error_code,
        "error_message": saga.error_message,
    }
