"""`Admin`: operate Postroom from sync code."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Self, TypeVar, Unpack

from postroom.admin.cdc import CdcActs
from postroom.admin.coordinating import Coordinating
from postroom.admin.debezium import DebeziumSteps, DebeziumSwitch
from postroom.admin.import_steps import Importing
from postroom.admin.importing import ImportActs
from postroom.admin.observing import Observing
from postroom.admin.replay import UNCHANGED, Changes, Replayed, Unchanged
from postroom.admin.steps import AdminSteps
from postroom.compose.databases import open_store
from postroom.errors import UnusableConnection
from postroom.settings import Settings, SettingsOverrides
from postroom.store.admin.audit import Note
from postroom.store.admin.message_filter import ALL, Filter
from postroom.store.admin.message_list import Wanted

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from types import TracebackType
    from uuid import UUID

    from postroom.admin.details import MessageDetails
    from postroom.admin.results import ActResult, Page
    from postroom.message import Key
    from postroom.rules.lifecycle import State
    from postroom.store.admin.audit import AuditEntry
    from postroom.store.admin.dead_letters import DeadLetter
    from postroom.store.admin.expired_leases import Released
    from postroom.store.admin.message_list import ListedMessage
    from postroom.store.admin.selection import Count, Progress
    from postroom.store.admin.status import Status, Worker
    from postroom.store.connections.stores import BlockingStore
    from postroom.store.outbox.held_targets import HeldTarget
    from postroom.store.sql.steps import Steps
    from postroom.telemetry.events import Cleaned

T = TypeVar("T")


class Admin(Observing, Coordinating, CdcActs, DebeziumSwitch, ImportActs):
    """Looks at messages and acts on them, over all queues of one database. The commands do the same.

    ``database`` is a URL. It, and all other settings, which may be given by name, default to the settings in force;
    ``order`` must be that of the relays. Close it, or use it as a context manager. It is for one thread at a time.

    The constructor raises `InvalidSetting`, `UnsupportedDatabase` or `DriverMissing`, and `SchemaMissing` if an SQLite
    file is not there. The first method that is called connects: it raises `DatabaseUnreachable`, or `SchemaError` if
    the tables are not those of this version. Every method raises `PrivilegeMissing` if the database's user may not do
    what it does.
    """

    def __init__(self, database: str | None = None, **settings: Unpack[SettingsOverrides]) -> None:
        in_force = Settings.load(database=database, **settings)
        self._use(open_store(in_force), in_force)

    def _use(self, store: BlockingStore, in_force: Settings) -> None:
        self._store = store
        self._steps = AdminSteps(self._store.names, in_force)
        Observing.__init__(self, self._steps.observing)
        Coordinating.__init__(self, self._steps.sagas, self._steps.transactions)
        self._debezium = DebeziumSteps(self._store.names)
        CdcActs.__init__(self, self._steps.cdc)
        ImportActs.__init__(self, partial(Importing, self._store.names, in_force))
        self._checked = False
        self._closed = False

    def status(self) -> Status:
        """How many messages, sagas and two-phase commits are in each state; who is alive; which topics take none.

        Reads all unsent messages, all receipts, all sagas and all two-phase commits. For figures every few seconds,
        use the relay's metrics.
        """
        return self._run(self._steps.status())

    def workers(self) -> tuple[Worker, ...]:
        """Relays and consumers that were seen in the last seconds."""
        return self._run(self._steps.workers())

    def held_targets(self) -> tuple[HeldTarget, ...]:
        """Topics that took no messages when last tried: how many messages wait for each, since when, and why."""
        return self._run(self._steps.held_targets())

    def messages(  # noqa: PLR0913 - all are optional, and come by name
        self,
        *,
        status: State | str | None = None,
        queue: str | None = None,
        topic: str | None = None,
        key: Key | None = None,
        type: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        error: str | None = None,
        payload: str | None = None,
        limit: int = 50,
        before: int | None = None,
    ) -> Page[ListedMessage]:
        """Messages that match all that is given, newest first, without payloads.

        ``since`` (included) and ``until`` (not included) look at when a message was added; ``error`` is a text in the
        code or message of its last error, in any case; ``payload`` a text in its payload, as UTF-8, in this case.
        ``before`` is the `next` of the page before.

        No index helps with topic, key, type, error and payload: the database reads backwards until the page is full, or
        until it has looked at some thousands of rows. Such a page may be empty and still have a `next`, and `looked_at`
        says how many it looked at.
        """
        wanted = Wanted(None, queue, topic, key, type, since, until, error, payload)
        return self._run(self._steps.messages(status, wanted, limit, before))

    def message(self, id: UUID | str, *, payload: bool = False, headers: bool = False) -> MessageDetails:
        """Everything about a message, why it has not left yet, and what was done to it.

        Its payload and the values of its headers only if asked for. Raises `MessageNotFound`.
        """
        return self._run(self._steps.message(id, payload=payload, headers=headers))

    def record_view(self, id: UUID | str | None, *, actor: str, what: str = "payload", reason: str = "") -> None:
        """Put on record that somebody looked at a message's payload or headers: ``what`` says at which.

        Without an id, at something else, such as a recorded response. The audit has it as `shown`. Raises
        `MessageNotFound`.
        """
        self._run(self._steps.record_view(id, Note(actor, reason), what))

    def replay(
        self,
        id: UUID | str,
        *,
        actor: str,
        reason: str = "",
        payload: object = UNCHANGED,
        headers: Mapping[str, str] | Unchanged = UNCHANGED,
        topic: str | Unchanged = UNCHANGED,
        discard_original: bool = False,
        new_id: UUID | str | None = None,
    ) -> Replayed:
        """Add a changed copy of a message, beside it: with another payload, other headers or another topic.

        The copy has a new id, and the header ``postroom-replay-of`` with the original's. Key, type and aggregate stay;
        idempotency key, expiry and keyed request are the original's alone. A payload given as text or bytes is of the
        original's content type; anything else becomes JSON. ``headers`` replace all of the original's. The original
        stays as it is: if it is dead and has a key, it holds back the copy, unless it is discarded with
        ``discard_original``. The audit has both, in the same transaction. To be able to repeat the call without a
        second copy, choose the copy's id: ``new_id``.

        Raises `MessageNotFound`, `InvalidMessage` as `Outbox.add` does, `DuplicateMessage` if there is a message with
        the ``new_id``, or `ReplayRefused` for what belongs to a saga or a two-phase commit, and if what is to be
        discarded is not dead.
        """
        changes = Changes(payload, headers, topic, new_id)
        return self._run(self._steps.replay(id, changes, Note(actor, reason), discard=discard_original))

    def count_unsent(self, which: Filter = ALL) -> Count:
        """How many messages `cancel` would look at: pending and waiting ones, and those that are being sent."""
        return self._run(self._steps.count_unsent(which))

    def cancel(self, which: Filter, *, actor: str, reason: str = "", progress: Progress | None = None) -> ActResult:
        """Remove messages that were not sent yet, for good; those behind them on their keys go on, in their order.

        What is dead, sent or expired is left alone; so is what is being sent. A message with a key that a relay has
        read within the last second may leave all the same; the audit then has a conflict for it. A keyed request that
        waits for a message fails with `CANCELLED`. By its id, half a message can be cancelled too.

        Works in batches, each a transaction that also writes the audit; ``progress`` receives the size of each. When
        it raises, the batches before have been done: call it again.
        """
        return self._run(self._steps.cancel(which, Note(actor, reason), progress))

    def release_expired(self, *, progress: Progress | None = None) -> Released:
        """Take the names of workers off leases that have ended. Such leases can be claimed anyway.

        Active leases are never touched.
        """
        return self._run(self._steps.release_expired(progress))

    def dead_letters(self, which: Filter = ALL, *, limit: int = 50, before: int | None = None) -> Page[DeadLetter]:
        """Dead letters of all queues, newest message first. ``before`` is the `next` of the page before."""
        return self._run(self._steps.dead_letters(which, limit, before))

    def dead_letter(self, id: UUID | str, *, payload: bool = False, headers: bool = False) -> MessageDetails:
        """`message`, but raises `MessageNotFound` also if the message is not dead."""
        return self._run(self._steps.dead_letter(id, payload=payload, headers=headers))

    def count_dead_letters(self, which: Filter = ALL) -> Count:
        """How many dead letters there are, and how many of them are older than what inboxes remember.

        To requeue one that is older may repeat its effect: a send that timed out may have arrived, and a receiver whose
        inbox no longer has the mark takes it for new.
        """
        return self._run(self._steps.count_dead_letters(which))

    def requeue(self, which: Filter, *, actor: str, reason: str = "", progress: Progress | None = None) -> ActResult:
        """Send dead messages after all: attempts start again at 0, error and due time are cleared.

        On its key, a message goes before what it held back. A keyed request that failed with it is in progress again.
        What is not dead is left alone. Works in batches, as `cancel` does.
        """
        return self._run(self._steps.requeue(which, Note(actor, reason), progress))

    def discard(self, which: Filter, *, actor: str, reason: str = "", progress: Progress | None = None) -> ActResult:
        """Remove dead messages for good; those behind them on their keys go on.

        The audit keeps what they were, without the payload. What is not dead is left alone. Works in batches, as
        `cancel` does.
        """
        return self._run(self._steps.discard(which, Note(actor, reason), progress))

    def cleanup(
        self,
        *,
        days: float | None = None,
        inbox_days: float | None = None,
        audit_days: float | None = None,
        load: float | None = None,
        progress: Progress | None = None,
    ) -> Cleaned:
        """Remove what was settled more than ``days`` ago, and older inbox marks, audit entries and idempotency keys.

        ``days``, ``inbox_days``, ``audit_days`` and ``load`` default to the settings `retention_days`,
        `inbox_retention_days`, `audit_retention_days` and `cleanup_load`. What is not sent, or dead, stays. Works in
        small batches, each a transaction, beside everything else, and pauses between them, so that it is at work for
        this share of the time; several may clean up at once. What it has removed when it raises is gone.

        A message's idempotency key can be used again once it is removed. A mark that is gone no longer tells a
        repeated delivery from a first one: keep marks for longer than any redelivery takes.
        """
        cleanup = self._steps.cleanup(days, inbox_days, audit_days, load, progress)
        while not cleanup.done:
            time.sleep(self._run(cleanup.batch()))
        return cleanup.cleaned

    def audit(
        self,
        *,
        action: str | None = None,
        actor: str | None = None,
        message: UUID | str | None = None,
        limit: int = 50,
        before: int | None = None,
    ) -> Page[AuditEntry]:
        """Who did what to which message, newest first; also to messages that are gone.

        ``action`` is requeue, discard, cancel, conflict, replay, replayed, shown, or what is done to sagas:
        saga_parked, saga_resumed, saga_skipped, saga_aborted or saga_forked; or to two-phase commits:
        transaction_forgotten or transaction_decided; or to the stream: cdc_set_up, cdc_off or cdc_swept; or import.
        ``before`` is the `next` of the page before.
        """
        return self._run(self._steps.audit(action, actor, message, limit, before))

    def close(self) -> None:
        """Close its connections. Methods called later raise `UnusableConnection`."""
        if not self._closed:
            self._closed = True
            self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, steps: Steps[T]) -> T:
        from postroom.store.schema.checking import check

        if self._closed:
            raise UnusableConnection("this Admin is closed: create another one")
        if not self._checked:
            self._store.run(check(self._store.names))
            self._checked = True
        return self._store.run(steps)
