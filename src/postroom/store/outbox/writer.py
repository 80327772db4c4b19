"""Record messages in the caller's transaction: what is the same on every database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

import msgspec

from postroom.errors import DuplicateMessage, IdempotencyConflict
from postroom.rules.lifecycle import Transition
from postroom.rules.ordering import NO_LANE, key_hash, lane_of
from postroom.store.sql.db_errors import is_denied
from postroom.store.sql.dialect import DIALECTS, Dialect, as_json, listed, text, whole_numbers
from postroom.store.sql.operations import DEFAULT_QUEUE
from postroom.store.sql.states import in_states, written_by
from postroom.store.sql.steps import Query, Row, Steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import datetime

    from postroom.message import Message
    from postroom.store.sql.names import Names

MESSAGE_COLUMNS = (
    "id",
    "queue",
    "topic",
    "type",
    "aggregate_type",
    "aggregate_id",
    "ordering_key",
    "payload",
    "content_type",
    "headers",
    "idempotency_key",
    "digest",
    "expires_at",
)
ADDED_AS, SCHEDULED_AS = int(written_by(Transition.ADD)), int(written_by(Transition.SCHEDULE))
ADDED = in_states([written_by(Transition.ADD), written_by(Transition.SCHEDULE)])
DELIVERY_COLUMNS = ("state", "lane", "key_hash", "size", "due")


class Writer:
    """Writes messages with their deliveries. Each database inserts the rows in its own way."""

    most_rows: ClassVar[int]
    """Most rows of one statement."""
    most_bytes: ClassVar[int] = 4 * 1024 * 1024
    """Most payload bytes of one statement, well under every server's packet limit."""
    current: ClassVar[str] = ""
    """Makes a SELECT see rows that were committed after the transaction's snapshot."""
    savepoints: ClassVar[bool] = False
    """Whether a refused batch is undone by a savepoint; elsewhere its rows are deleted."""
    id_as_text: ClassVar[str] = "id"
    text_as_id: ClassVar[str] = ""

    def __init__(
        self,
        names: Names,
        queue: str = DEFAULT_QUEUE,
        *,
        notify: bool = False,
        queue_of: Callable[[str], str] | None = None,
        stream: bool = False,
    ) -> None:
        """`notify`: wake listening relays at the commit, where the database can.

        `stream`: while the outbox is in that mode, leave deliveries out, where the database can.
        All messages go into the `queue`, or each into that of its topic, where `queue_of` says which.
        """
        self.names = names
        self.notify = notify
        self.stream = stream and names.dialect == "postgresql"
        self._queue_of = queue_of
        self.dialect: Dialect = DIALECTS[names.dialect]()
        self.tables = names.mapping()
        self.queue = queue

    def queue_for(self, message: Message) -> str:
        """The queue that the message goes to."""
        return self.queue if self._queue_of is None else self._queue_of(message.topic)

    def statement(self, new: Message) -> Query | None:
        """All that it takes to record a message that is in no outbox; None if it takes several statements.

        Its id was made just now, and it has neither idempotency key nor ledger entry.
        """
        del new
        return None

    def add(self, messages: Sequence[Message]) -> Steps[list[Message]]:
        """Record the messages, in order. For an idempotency key that is in use, the existing message comes back.

        Raises `IdempotencyConflict` or `DuplicateMessage`, and then none of them is recorded.
        """
        return self._add_one(messages[0]) if len(messages) == 1 else self._add_several(messages)

    def _add_several(self, messages: Sequence[Message]) -> Steps[list[Message]]:
        repeats = _repeats_of(messages)
        fresh = [message for message in messages if message.id not in repeats]
        inserted: set[UUID] = set()
        is_undoable = self._by_savepoint and (len(fresh) > 1 or any(message.ledger for message in fresh))
        if is_undoable:
            yield Query("SAVEPOINT postroom_add")
        for chunk in self._chunks(fresh):
            inserted |= yield from self._insert(chunk)
        refused = [message for message in fresh if message.id not in inserted]
        try:
            existing = yield from self.existing(refused)
        except (IdempotencyConflict, DuplicateMessage) as error:
            if inserted:
                yield from self.undo([message for message in fresh if message.id in inserted], error)
            raise
        if is_undoable and self.stream and not any(message.ledger for message in fresh):
            yield Query("RELEASE SAVEPOINT postroom_add")  # it would slow down what the caller does next
        recorded = {message.id: existing.get(message.id, message) for message in fresh}
        return [
            msgspec.structs.replace(recorded[repeats[message.id]], duplicate=True)
            if message.id in repeats
            else recorded[message.id]
            for message in messages
        ]

    def _add_one(self, message: Message) -> Steps[list[Message]]:
        """`add` for one message, in a few steps less."""
        if message.ledger is not None and self._by_savepoint:
            yield Query("SAVEPOINT postroom_add")
        if (yield from self._insert_one(message)):
            return [message]
        return [(yield from self.existing([message]))[message.id]]

    def lock_keys(self, messages: Sequence[Message]) -> Steps[None]:
        """Wait for other open transactions that have added messages with one of these keys."""
        raise NotImplementedError

    def _insert(self, chunk: Sequence[Message]) -> Steps[set[UUID]]:
        """Insert messages with their deliveries; returns the ids of those that are not duplicates."""
        raise NotImplementedError

    def _insert_one(self, message: Message) -> Steps[bool]:
        """Insert a message with its delivery; returns False if it is a duplicate."""
        return bool((yield from self._insert([message])))

    def _chunks(self, messages: Iterable[Message]) -> Iterator[list[Message]]:
        chunk: list[Message] = []
        size = 0
        for message in messages:
            if chunk and (len(chunk) >= self.most_rows or size + message.size > self.most_bytes):
                yield chunk
                chunk, size = [], 0
            chunk.append(message)
            size += message.size
        if chunk:
            yield chunk

    def existing(self, refused: Sequence[Message]) -> Steps[dict[UUID, Message]]:
        """The existing messages to return in place of the refused ones."""
        existing: dict[UUID, Message] = {}
        for chunk in self._chunks(refused):
            keys = {message.idempotency_key for message in chunk} - {None}
            rows = yield from self._holders(keys)
            found = {text(key): (UUID(text(identifier)), digest) for key, identifier, digest in rows}
            for message in chunk:
                if message.idempotency_key not in found:
                    raise DuplicateMessage(already_there(message))
                identifier, digest = found[message.idempotency_key]
                if digest is None or text(digest) != message.digest:
                    raise IdempotencyConflict(used_otherwise(message, identifier))
                existing[message.id] = msgspec.structs.replace(message, id=identifier, duplicate=True)
        return existing

    def _holders(self, keys: Iterable[str | None]) -> Steps[Sequence[Row]]:
        columns = f"idempotency_key, {self.id_as_text}, digest"
        return (yield from self._select(columns, "idempotency_key", keys, self.current))

    def undo(self, messages: Sequence[Message], conflict: Exception) -> Steps[None]:
        """Undo what was just inserted. A user without the right to delete gets the conflict, and has to roll back."""
        if self._by_savepoint:
            yield Query("ROLLBACK TO SAVEPOINT postroom_add")
            return
        try:
            yield from self.take_back(messages)
        except Exception as error:
            if not is_denied(error):
                raise
            raise conflict from error

    @property
    def _by_savepoint(self) -> bool:
        """Whether a refused batch is undone by a savepoint. The stream shows what was inserted and then deleted."""
        return self.savepoints or self.stream

    def take_back(self, messages: Sequence[Message]) -> Steps[None]:
        """Delete what `add` has just inserted, so that a refused batch leaves nothing in the transaction."""
        for chunk in self._chunks(messages):
            ids = (str(message.id) for message in chunk)
            rows = yield from self._select(f"{self.id_as_text}, position", "id", ids)
            position_of = {UUID(text(identifier)): position for identifier, position in rows}
            lanes: dict[tuple[str, int], list[int]] = {}
            for message in chunk:
                lanes.setdefault((self.queue_for(message), _lane(message)), []).append(position_of[message.id])
            for (queue, lane), positions in lanes.items():
                yield Query(
                    f"DELETE FROM {self.tables['delivery']} WHERE {ADDED} AND queue = :queue AND lane = :lane "
                    f"AND position IN ({whole_numbers(positions)})",
                    {"queue": queue, "lane": lane},
                )
            everywhere = whole_numbers(list(position_of.values()))
            yield Query(f"DELETE FROM {self.tables['outbox']} WHERE position IN ({everywhere})")

    def _select(
        self, columns: str, column: str, values: Iterable[str | None], suffix: str = ""
    ) -> Steps[Sequence[Row]]:
        """Rows of the outbox whose column has one of the values."""
        params = {f"value_{n}": value for n, value in enumerate(values)}
        if not params:
            return []
        places = listed(f":{name}{self.text_as_id if column == 'id' else ''}" for name in params)
        result = yield Query(
            f"SELECT {columns} FROM {self.tables['outbox']} WHERE {column} IN ({places}){suffix}",
            params,
        )
        return result.rows

    def _message_row(self, message: Message) -> tuple[Any, ...]:
        return (
            msgspec.to_builtins(message.id),  # the same as `str`, which takes three times as long
            self.queue_for(message),
            message.topic,
            message.type,
            message.aggregate_type,
            message.aggregate_id,
            message.key,
            self._payload(message.payload),
            message.content_type,
            as_json(dict(message.headers)) if message.headers else None,
            message.idempotency_key,
            message.digest,
            None if message.expires_at is None else self._moment(message.expires_at),
        )

    def _delivery_row(self, message: Message) -> tuple[Any, ...]:
        hashed = None if message.key is None else key_hash(message.key)
        return (
            ADDED_AS if message.deliver_at is None else SCHEDULED_AS,
            NO_LANE if hashed is None else lane_of(hashed),
            hashed,
            message.size,
            None if message.deliver_at is None else self._moment(message.deliver_at),
        )

    def _payload(self, payload: bytes | None) -> Any:
        return payload

    def _moment(self, moment: datetime) -> Any:
        return self.dialect.moment(moment)


def _lane(message: Message) -> int:
    return NO_LANE if message.key is None else lane_of(key_hash(message.key))


def _repeats_of(messages: Sequence[Message]) -> dict[UUID, UUID]:
    """Messages of one call that repeat an idempotency key: id of the repetition → id of the first.

    Raises `DuplicateMessage` for an id that comes twice, `IdempotencyConflict` for a key with two contents.
    """
    first: dict[str, Message] = {}
    repeats: dict[UUID, UUID] = {}
    seen: set[UUID] = set()
    for message in messages:
        if message.id in seen:
            raise DuplicateMessage(
                f"two messages of one call have the id {message.id}: leave id out to have one made for each"
            )
        seen.add(message.id)
        if message.idempotency_key is None:
            continue
        earlier = first.setdefault(message.idempotency_key, message)
        if earlier is message:
            continue
        if earlier.digest != message.digest:
            raise IdempotencyConflict(
                f"idempotency key {message.idempotency_key!r} is given to two different messages in one call: "
                "use a key of its own for each"
            )
        repeats[message.id] = earlier.id
    return repeats


def already_there(message: Message) -> str:
    return f"a message with id {message.id} is already in the outbox: leave id out to have a new one made"


def used_otherwise(message: Message, holder: UUID) -> str:
    return (
        f"idempotency key {message.idempotency_key!r} was used for another message ({holder}): "
        "the same key must come with the same topic, type, key and payload; use a new key for a new message"
    )
