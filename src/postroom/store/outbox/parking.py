"""Parking: a received message whose handler failed, kept as a delivery to that handler."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
from uuid_utils.compat import uuid7

from postroom.errors import DuplicateMessage, IdempotencyConflict
from postroom.rules.failures import CODE_LENGTH, cut
from postroom.rules.lifecycle import Transition
from postroom.rules.ordering import NO_LANE, Order, key_hash, lane_of
from postroom.store.outbox.attempts import COLUMNS
from postroom.store.outbox.writers import WRITERS
from postroom.store.sql.dialect import as_json, text, whole_numbers
from postroom.store.sql.operations import Operations
from postroom.store.sql.states import holds_key, ready, written_by
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from collections.abc import Collection
    from uuid import UUID

    from postroom.message import Message
    from postroom.store.sql.names import Names


AROUND = 4096
"""Bytes of a statement besides payload and headers."""
ESCAPED = ("\\", '"', "'")
"""Characters that take two bytes in a statement, in a text without control characters."""


class Failed(NamedTuple):
    """How a handler's first attempt failed."""

    code: str
    message: str
    delay: float | None
    """Seconds until the next attempt; None: there is none, and the message is dead."""


class Parked(NamedTuple):
    """A parked message."""

    id: UUID
    """Its id in the outbox."""
    is_new: bool
    """False if it was parked before."""


class Parking(Operations):
    """Parks messages in a queue of their own, where the consumer's engine finds them."""

    def __init__(self, names: Names, queue: str, order: Order = Order.HOLD) -> None:
        super().__init__(names, queue)
        self._order = order
        self._writer = WRITERS[names.dialect](names, queue)

    def park(self, message: Message, failed: Failed | None = None) -> Steps[Parked]:
        """Park a message, after its failure or behind others of its key, unless it is parked already.

        Its idempotency key shows whether it is. If that key belongs to another message, this one is parked without a
        key: a redelivery is then parked twice, and the inbox makes sure that it is handled once.
        """
        return (yield from self.transaction(self._park, message, failed))

    def _park(self, message: Message, failed: Failed | None) -> Steps[Parked]:
        try:
            [recorded] = yield from self._writer.add([message])
        except (IdempotencyConflict, DuplicateMessage):
            kept = None
        else:
            if recorded.duplicate and (yield from self.is_parked(recorded.id)):
                return Parked(recorded.id, is_new=False)
            kept = None if recorded.duplicate else message
        if kept is None:
            kept = msgspec.structs.replace(message, id=uuid7(), idempotency_key=None)
            yield from self._writer.add([kept])
        if failed is not None:
            yield from self.fail(kept, failed)
        return Parked(kept.id, is_new=True)

    def fail(self, message: Message, failed: Failed) -> Steps[None]:
        """Record that the first attempt of a message that was just added has failed, in the caller's transaction."""
        yield self._failure(message, failed)
        yield self._attempt(message, failed)

    def is_parked(self, message_id: UUID) -> Steps[bool]:
        """Whether the message with this id was parked here. Others may have added one with the same contents."""
        found = yield Query(
            f"SELECT queue FROM {self.outbox} WHERE id = :id{self._writer.text_as_id}", {"id": str(message_id)}
        )
        return [text(queue) for [queue] in found.rows] == [self.queue]

    def is_too_large(self, message: Message) -> Steps[bool]:
        """Whether a statement with this message would be larger than the server accepts.

        MySQL may end the connection over it, which does not look different from one that is lost.
        """
        if self.names.dialect != "mysql":
            return False
        found = yield Query("SELECT @@max_allowed_packet")
        [[limit]] = found.rows
        headers = as_json(dict(message.headers))
        escaped = len(headers.encode()) + sum(map(headers.count, ESCAPED))
        return 2 * len(message.payload or b"") + escaped + AROUND > int(limit)  # the payload is in hexadecimal

    def _failure(self, message: Message, failed: Failed) -> Query:
        return Query(
            f"UPDATE {self.delivery} SET state = :state, due = {self.dialect.later(':delay')}, attempts = 1, "
            f"failed_at = {self.now}, error_code = :code, error_message = :text "
            f"WHERE {ready()} AND queue = :queue AND lane = :lane AND position = "
            f"(SELECT position FROM {self.outbox} WHERE id = :id{self._writer.text_as_id})",
            {
                "state": int(written_by(Transition.REJECT if failed.delay is None else Transition.FAIL)),
                "delay": float(failed.delay or 0.0),
                "code": cut(failed.code, CODE_LENGTH),
                "text": cut(failed.message),
                "queue": self.queue,
                "lane": NO_LANE if message.key is None else lane_of(key_hash(message.key)),
                "id": str(message.id),
            },
        )

    def _attempt(self, message: Message, failed: Failed) -> Query:
        """The attempt that failed, for the message's timeline."""
        rows = f"SELECT position, {self.now}, 1, '', :code, :text FROM {self.outbox} WHERE id = :id"
        return Query(
            self.dialect.insert_selected(
                self.tables["attempt"], COLUMNS, f"{rows}{self._writer.text_as_id}", "attempt"
            ),
            {"code": cut(failed.code, CODE_LENGTH), "text": cut(failed.message), "id": str(message.id)},
        )

    def parked(self, hashes: Collection[int]) -> Steps[set[int]]:
        """Which of these key hashes have a parked message that others of the key must wait for."""
        if not hashes:
            return set()
        wanted = whole_numbers(sorted(hashes))
        lanes = whole_numbers(sorted({lane_of(one) for one in hashes}))
        found = yield Query(
            f"SELECT key_hash FROM {self.delivery} WHERE queue = :queue AND {holds_key(self._order)} "
            f"AND key_hash IN ({wanted}) UNION SELECT key_hash FROM {self.delivery} "
            f"WHERE {ready()} AND queue = :queue AND lane IN ({lanes}) AND key_hash IN ({wanted})",
            {"queue": self.queue},
        )
        return {hashed for [hashed] in found.rows}
