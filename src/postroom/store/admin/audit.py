"""Audit: who did what to which message, and why. Entries are written in the transaction of the act."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from postroom.rules.failures import cut
from postroom.store.sql.dialect import as_json
from postroom.store.sql.operations import Operations, chunks
from postroom.store.sql.steps import Query, Row, Steps

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from postroom.store.sql.names import Names

ACTOR_LENGTH = 255
SAGA_ACTIONS = ("saga_parked", "saga_resumed", "saga_skipped", "saga_aborted", "saga_forked")
TRANSACTION_FORGOTTEN, TRANSACTION_DECIDED = TRANSACTION_ACTIONS = ("transaction_forgotten", "transaction_decided")
CDC_ACTIONS = ("cdc_set_up", "cdc_off", "cdc_swept", "debezium_on", "debezium_off")
CDC_SET_UP, CDC_OFF, CDC_SWEPT, DEBEZIUM_ON, DEBEZIUM_OFF = CDC_ACTIONS
REPLAY_ACTIONS = ("replay", "replayed")
SHOWN = "shown"
IMPORTED = "import"
ACTIONS = (
    *("requeue", "discard", "cancel", "conflict", *REPLAY_ACTIONS, SHOWN, IMPORTED),
    *(*SAGA_ACTIONS, *TRANSACTION_ACTIONS, *CDC_ACTIONS),
)
"""What the audit log tells of."""

Entry = tuple[int | None, str | None, dict[str, Any]]
"""A message's position, its id, and what there is to say. A two-phase commit has an id alone, the stream none."""


@dataclass(frozen=True, slots=True)
class Note:
    """Who acts, and why."""

    actor: str = ""
    reason: str = ""


UNSIGNED = Note()


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One act on one message."""

    id: int
    at: datetime | None
    action: str
    """requeue, discard, cancel; replay (of the original) and replayed (of the copy); shown, where somebody looked at
    its payload or headers; conflict, where a worker found its lease lost; or what was done to a saga:
    saga_parked, saga_resumed, saga_skipped, saga_aborted, saga_forked; or to a two-phase commit: transaction_forgotten,
    transaction_decided; or to the stream: cdc_set_up, cdc_off, cdc_swept,
    debezium_on, debezium_off; or import, where messages came from the table of another outbox."""
    actor: str
    reason: str
    """Why, in the actor's words; empty where none was given."""
    position: int | None
    message_id: str | None
    """Of what was done to a two-phase commit: that one's id."""
    details: Mapping[str, Any]
    """What the message was: its topic, key, attempts and last error; of a conflict, what the worker found."""


def audit(names: Names, action: str, note: Note, entries: Sequence[Entry]) -> Steps[None]:
    """Write an entry for each message."""
    reason = {"reason": cut(note.reason)} if note.reason else {}
    for chunk in chunks(entries):
        params: dict[str, Any] = {"action": action, "actor": cut(note.actor, ACTOR_LENGTH)}
        for n, (position, message_id, details) in enumerate(chunk):
            params |= {
                f"position_{n}": position,
                f"message_{n}": message_id,
                f"details_{n}": as_json({**details, **reason}),
            }
        values = ", ".join(f"(:action, :actor, :position_{n}, :message_{n}, :details_{n})" for n in range(len(chunk)))
        table = names.mapping()["audit"]
        yield Query(f"INSERT INTO {table} (action, actor, position, message_id, details) VALUES {values}", params)


class AuditTrail(Operations):
    """Reads the entries."""

    def of_message(self, position: int) -> Steps[list[AuditEntry]]:
        """What was done to a message, oldest first."""
        return (yield from self._entries("position = :position ORDER BY id", {"position": position}))

    def of_transaction(self, tx: str) -> Steps[list[AuditEntry]]:
        """What was done to a two-phase commit, oldest first."""
        actions = ", ".join(f"'{action}'" for action in TRANSACTION_ACTIONS)
        return (yield from self._entries(f"message_id = :tx AND action IN ({actions}) ORDER BY id", {"tx": tx}))

    def listed(
        self,
        action: str | None = None,
        actor: str | None = None,
        message_id: str | None = None,
        limit: int = 50,
        before: int | None = None,
    ) -> Steps[list[AuditEntry]]:
        """Entries, newest first, from before an entry's id on."""
        given = {"action": action, "actor": actor, "message_id": message_id, "before": before}
        params = {name: value for name, value in given.items() if value is not None}
        conditions = [f"id < :{name}" if name == "before" else f"{name} = :{name}" for name in params]
        where = " AND ".join(["id > 0", *conditions])
        return (yield from self._entries(f"{where} ORDER BY id DESC LIMIT :limit", {**params, "limit": limit}))

    def _entries(self, where: str, params: dict[str, Any]) -> Steps[list[AuditEntry]]:
        found = yield Query(
            f"SELECT id, {self.dialect.readable('at')}, action, actor, position, message_id, details "
            f"FROM {self.tables['audit']} WHERE {where}",
            params,
        )
        return [self._entry(row) for row in found.rows]

    def _entry(self, row: Row) -> AuditEntry:
        number, at, action, actor, position, message_id, written = row
        details = written if isinstance(written, dict) else msgspec.json.decode(written or "{}")
        reason = str(details.pop("reason", ""))
        identifier = None if message_id is None else str(message_id)
        return AuditEntry(number, self.dialect.read_moment(at), action, actor, reason, position, identifier, details)
