"""Replay: add a changed copy of a message beside it, and put both on record, in one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.rules.lifecycle import Stored
from postroom.rules.ordering import NO_LANE
from postroom.store.admin.audit import Note, audit
from postroom.store.outbox.writers import WRITERS
from postroom.store.sql.dialect import ALL_LANES
from postroom.store.sql.operations import Operations, Place
from postroom.store.sql.states import dead, in_state
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from postroom.message import Message
    from postroom.store.admin.message_lookup import FoundMessage
    from postroom.store.sql.names import Names


class Replaying(Operations):
    """Writes the copy, the audit of both and, if it is wanted, the end of the original."""

    def __init__(self, names: Names, queue: str, *, notify: bool) -> None:
        super().__init__(names, queue)
        self._writer = WRITERS[names.dialect](names, queue, notify=notify)

    def replay(
        self, original: FoundMessage, copy: Message, changed: list[str], note: Note, *, discard: bool
    ) -> Steps[bool]:
        """Record it all. Returns False, and writes nothing, if the original is to be discarded and is not dead."""
        return (yield from self.transaction(self._replay, original, copy, changed, note, discard=discard))

    def _replay(
        self, original: FoundMessage, copy: Message, changed: list[str], note: Note, *, discard: bool
    ) -> Steps[bool]:
        if discard and not (yield from self._discard(original)):
            return False
        yield from self._writer.add([copy])
        found = yield Query(
            f"SELECT position FROM {self.outbox} WHERE id = :id{self._writer.text_as_id}", {"id": str(copy.id)}
        )
        position = int(found.rows[0][0])
        before, after = str(original.message.id), str(copy.id)
        details = {"topic": original.message.topic, "changed": changed}
        yield from audit(self.names, "replay", note, [(original.position, before, {**details, "new_id": after})])
        details = {"topic": copy.topic, "changed": changed}
        yield from audit(self.names, "replayed", note, [(position, after, {**details, "original": before})])
        if discard:
            was = {"topic": original.message.topic, "key": original.message.key, "replayed_as": after}
            yield from audit(self.names, "discard", note, [(original.position, before, was)])
        return True

    def _discard(self, original: FoundMessage) -> Steps[bool]:
        """Remove the original if it is dead; those behind it on its key may go."""
        delivery = original.delivery
        queue = {"queue": original.queue}
        if delivery is not None and delivery.lane != NO_LANE:
            yield from self.reread_lanes(original.queue, [delivery.lane])
        found = yield Query(
            f"SELECT lane FROM {self.delivery} WHERE {dead()} AND queue = :queue AND lane IN ({ALL_LANES}) "
            f"AND position = {original.position}{self.dialect.for_update}",
            queue,
        )
        if not found.rows:
            return False
        place = self.places([Place(int(found.rows[0][0]), original.position)])
        yield Query(f"DELETE FROM {self.delivery} WHERE {in_state(Stored.DEAD)} AND queue = :queue AND {place}", queue)
        for table in (self.tables["attempt"], self.outbox):
            yield Query(f"DELETE FROM {table} WHERE position = {original.position}")
        return True
