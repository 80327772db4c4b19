"""What `Admin` and `AsyncAdmin` do, written once: each method is an operation that a store runs, sync or async."""
# ruff: noqa: D102 - `Admin` documents each method

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Literal

from postroom.admin.cdc_steps import CdcSteps
from postroom.admin.details import MessageDetails, details_of
from postroom.admin.observing_steps import ObservingSteps
from postroom.admin.pages import one_more, page_found, page_of
from postroom.admin.replay import Changes, Replayed, replay
from postroom.admin.results import ActResult, Page, Refusal, Refused
from postroom.admin.saga_steps import SagaSteps
from postroom.admin.transaction_steps import TransactionSteps
from postroom.errors import InvalidSetting, MessageNotFound
from postroom.rules.failures import cut
from postroom.rules.lifecycle import State
from postroom.rules.ordering import Order
from postroom.rules.why_not_sent import STREAMED
from postroom.settings import LEAST_LOAD
from postroom.store.admin.audit import ACTIONS, SHOWN, AuditEntry, AuditTrail, Entry, Note, audit
from postroom.store.admin.cancellation import Cancellation
from postroom.store.admin.dead_letters import DeadLetter, DeadLetters
from postroom.store.admin.expired_leases import ExpiredLeases, Released
from postroom.store.admin.message_filter import Filter, check_moment, message_id
from postroom.store.admin.message_list import ListedMessage, MessageList, Wanted
from postroom.store.admin.message_lookup import MessageLookup
from postroom.store.admin.retention import DAY, Cleanup, Kept
from postroom.store.admin.status import Status, StatusReader, Worker

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from uuid import UUID

    from postroom.settings import Settings
    from postroom.store.admin.message_lookup import FoundMessage
    from postroom.store.admin.selection import Acted, Count, Progress
    from postroom.store.outbox.held_targets import HeldTarget
    from postroom.store.sql.names import Names
    from postroom.store.sql.steps import Steps


class AdminSteps:
    """The operations of an operator. `Admin` documents each."""

    def __init__(self, names: Names, settings: Settings) -> None:
        self._names = names
        self._settings = settings
        order = Order(settings.order)
        self._status = StatusReader(names, order)
        self._lookup = MessageLookup(names, order)
        self._dead = DeadLetters(names)
        self._unsent = Cancellation(names, order)
        self.sagas = SagaSteps(names)
        self.transactions = TransactionSteps(names)
        self.cdc = CdcSteps(names)
        self.observing = ObservingSteps(names, order)

    def status(self) -> Steps[Status]:
        return (yield from self._status.status())

    def workers(self) -> Steps[tuple[Worker, ...]]:
        return (yield from self._status.workers())

    def held_targets(self) -> Steps[tuple[HeldTarget, ...]]:
        return (yield from self._status.held_targets())

    def messages(
        self, status: State | str | None, wanted: Wanted, limit: int, before: int | None
    ) -> Steps[Page[ListedMessage]]:
        as_of = yield from self._dead.clock()
        one_more(limit)
        for name in ("since", "until"):
            check_moment(name, getattr(wanted, name))
        chosen = wanted if status is None else replace(wanted, status=_state(status))
        rows, found = yield from MessageList(self._names).listed(chosen, limit, before)
        return page_found(rows, found, as_of)

    def message(self, identifier: UUID | str, *, payload: bool, headers: bool = False) -> Steps[MessageDetails]:
        return details_of((yield from self._found(identifier)), payload=payload, headers=headers)

    def record_view(self, identifier: UUID | str | None, note: Note, what: str) -> Steps[None]:
        entry: Entry = (None, None, {"what": cut(what)})
        if identifier is not None:
            found = yield from self._found(identifier)
            entry = (found.position, str(found.message.id), {"topic": found.message.topic, "what": cut(what)})
        yield from audit(self._names, SHOWN, note, [entry])

    def replay(self, identifier: UUID | str, changes: Changes, note: Note, *, discard: bool) -> Steps[Replayed]:
        found = yield from self._found(identifier)
        return (yield from replay(found, changes, note, self._names, self._settings, discard=discard))

    def _found(self, identifier: UUID | str) -> Steps[FoundMessage]:
        wanted = message_id(identifier)
        found = yield from self._lookup.find(wanted)
        if found is None:
            raise MessageNotFound(
                f"there is no message {wanted} in the outbox: check the id, as `postroom messages list` shows it; "
                "it may have been removed by retention, discarded or cancelled. What a consumer received has another "
                "id here, which its log calls outbox_id"
            )
        return found

    def count_unsent(self, which: Filter) -> Steps[Count]:
        _without_fingerprint(which)
        return (yield from self._unsent.count(which, self._marks_kept()))

    def cancel(self, which: Filter, note: Note, progress: Progress | None) -> Steps[ActResult]:
        _without_fingerprint(which)
        acted = yield from self._unsent.cancel(which, note, progress)
        return (yield from self._result("cancel", which, acted))

    def release_expired(self, progress: Progress | None) -> Steps[Released]:
        return (yield from ExpiredLeases(self._names).release(progress))

    def dead_letters(self, which: Filter, limit: int, before: int | None) -> Steps[Page[DeadLetter]]:
        as_of = yield from self._dead.clock()
        one_more(limit)
        rows, found = yield from self._dead.listed(which, limit, before)
        return page_found(rows, found, as_of)

    def dead_letter(self, identifier: UUID | str, *, payload: bool, headers: bool) -> Steps[MessageDetails]:
        found = yield from self.message(identifier, payload=payload, headers=headers)
        if found.status is not State.DEAD:
            raise MessageNotFound(
                f"message {found.id} is not dead, it is {found.status or Refusal.INCOMPLETE}: "
                f"see `postroom messages show {found.id}`"
            )
        return found

    def count_dead_letters(self, which: Filter) -> Steps[Count]:
        return (yield from self._dead.count(which, self._marks_kept()))

    def requeue(self, which: Filter, note: Note, progress: Progress | None) -> Steps[ActResult]:
        acted = yield from self._dead.requeue(which, note, progress)
        return (yield from self._result("requeue", which, acted))

    def discard(self, which: Filter, note: Note, progress: Progress | None) -> Steps[ActResult]:
        acted = yield from self._dead.discard(which, note, progress)
        return (yield from self._result("discard", which, acted))

    def cleanup(
        self,
        days: float | None,
        inbox_days: float | None,
        audit_days: float | None,
        load: float | None,
        progress: Progress | None,
    ) -> Cleanup:
        settings = self._settings
        kept = Kept(
            settings.retention_days if days is None else _days("days", days),
            settings.inbox_retention_days if inbox_days is None else _days("inbox_days", inbox_days),
            settings.audit_retention_days if audit_days is None else _days("audit_days", audit_days),
        )
        share = settings.cleanup_load if load is None else _share("load", load)
        return Cleanup(self._names, kept, load=share, progress=progress)

    def audit(
        self,
        action: str | None,
        actor: str | None,
        message: UUID | str | None,
        limit: int,
        before: int | None,
    ) -> Steps[Page[AuditEntry]]:
        as_of = yield from self._dead.clock()
        wanted = None if message is None else str(message_id(message))
        if action is not None and action not in ACTIONS:
            raise InvalidSetting(f"action = {action!r} is not valid: use {', '.join(ACTIONS)}")
        rows = yield from AuditTrail(self._names).listed(action, actor, wanted, one_more(limit), before)
        return page_of(rows, limit, as_of, attrgetter("id"))

    def _marks_kept(self) -> float:
        return self._settings.inbox_retention_days * DAY

    def _result(self, action: Literal["requeue", "discard", "cancel"], which: Filter, acted: Acted) -> Steps[ActResult]:
        """With what became of every id that was given."""
        done = {*acted.ids, *acted.sending, *acted.sagas}
        left = [one for one in map(message_id, which.ids or ()) if one not in done]
        refused = [*(yield from self._refused(sorted(set(left)))), *_all(acted.sending, Refusal.SENDING)]
        refused += _all(acted.sagas, Refusal.SAGA)
        return ActResult(action, acted.count, tuple(acted.ids), tuple(refused))

    def _refused(self, ids: Collection[UUID]) -> Steps[list[Refused]]:
        refused: list[Refused] = []
        for identifier in ids:
            try:
                found = yield from self.message(identifier, payload=False)
                status = Refusal(found.status or Refusal.INCOMPLETE)
                if found.why.reason in STREAMED:
                    status = Refusal.IN_STREAM
            except MessageNotFound:
                status = Refusal.NOT_FOUND
            refused.append(Refused(identifier, status))
        return refused


def _all(ids: Sequence[UUID], status: Refusal) -> list[Refused]:
    return [Refused(identifier, status) for identifier in ids]


def _without_fingerprint(which: Filter) -> None:
    if which.fingerprint is not None:
        raise InvalidSetting(
            f"fingerprint = {which.fingerprint!r} is not valid here: it selects dead letters alone; give code or error"
        )


def _state(status: State | str) -> State:
    try:
        return State(status)
    except ValueError:
        raise InvalidSetting(f"status = {status!r} is not valid: use {', '.join(State)}") from None


def _share(name: str, share: float) -> float:
    if not LEAST_LOAD <= share <= 1:
        raise InvalidSetting(f"{name} = {share!r} is not valid: give a share of the time, from {LEAST_LOAD} to 1")
    return share


def _days(name: str, days: float) -> float:
    if not days >= 0:
        raise InvalidSetting(f"{name} = {days!r} is not valid: give 0 or more")
    return days
