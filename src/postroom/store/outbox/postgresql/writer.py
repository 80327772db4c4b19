"""Record messages on PostgreSQL: message and delivery in one statement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

from postroom.rules.ordering import key_hash
from postroom.store.outbox.writer import DELIVERY_COLUMNS, MESSAGE_COLUMNS, Writer
from postroom.store.sql.dialect import listed
from postroom.store.sql.names import WAKE_LANES, WAKE_ROWS, channel
from postroom.store.sql.operations import DEFAULT_QUEUE
from postroom.store.sql.steps import Query, Steps
from postroom.store.stream.streamed import answer, never_null, stream_mode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from postroom.message import Message
    from postroom.store.sql.names import Names

# A transaction gets its number before its first position, so a relay can tell when no lower position can come any more.
# Otherwise one that waits for another with the same idempotency key would have a position, but no number yet.
STARTED = "started AS MATERIALIZED (SELECT pg_current_xact_id())"


class PostgreSQLWriter(Writer):
    """Both rows in one statement and one round trip. Arrays, which cost drivers more, only for several messages.

    Ids, moments and headers travel as text, so that the codecs which an application sets on its connection do no harm.
    """

    most_rows = 5000
    most_bytes = 32 * 1024 * 1024
    id_as_text = "id::text"
    text_as_id = "::text::uuid"

    _COLUMNS = (*MESSAGE_COLUMNS, *DELIVERY_COLUMNS)
    _SENT_AS: ClassVar[dict[str, str]] = {
        "payload": "bytea",
        "state": "smallint",
        "lane": "smallint",
        "key_hash": "bigint",
        "size": "integer",
    }
    _STORED_AS: ClassVar[dict[str, str]] = {
        "id": "::uuid",
        "headers": "::jsonb",
        "expires_at": "::timestamptz",
        "due": "::timestamptz",
    }

    def __init__(
        self,
        names: Names,
        queue: str = DEFAULT_QUEUE,
        *,
        notify: bool = False,
        queue_of: Callable[[str], str] | None = None,
        stream: bool = False,
    ) -> None:
        super().__init__(names, queue, notify=notify, queue_of=queue_of, stream=stream)
        # In the same statement, so without a round trip. PostgreSQL sends repetitions in a transaction once.
        one = {column: f":{column}::{self._sent_as(column)}{self._stored_as(column)}" for column in self._COLUMNS}
        one_channel = None if queue_of else channel(names, queue)
        told = _told(one_channel, f"CASE WHEN {one['lane']} < 0 THEN '{WAKE_ROWS}' ELSE '{WAKE_LANES}' END", notify)
        told_all = _told(one_channel, "''", notify)
        many = listed(f":{column}::{self._sent_as(column)}[]" for column in self._COLUMNS)
        given = listed(f"{column}{self._stored_as(column)} AS {column}" for column in self._COLUMNS)
        columns = listed(MESSAGE_COLUMNS)
        # Asked in the statement that inserts, so that no producer can be behind the times.
        asked, answered, all_answered, asked_once, streamed, unless = "", "", "", "", "", ""
        values, all_values = listed(one[column] for column in MESSAGE_COLUMNS), columns
        if stream:
            sent = {column: f"{column}{self._stored_as(column)}" for column in self._COLUMNS}
            flows = "(SELECT flows FROM streamed)"
            asked = f", stream AS MATERIALIZED ({stream_mode(self.tables['stream'])})"
            answered = f", streamed AS MATERIALIZED (SELECT {answer(one)} FROM stream)"
            all_answered, asked_once = f", {answer(sent)}", " CROSS JOIN stream"
            values = f"{_with_type(one, '(SELECT flows AND to_debezium FROM streamed)')}, {flows}"
            all_values = f"{_with_type({name: name for name in MESSAGE_COLUMNS}, 'flows AND to_debezium')}, flows"
            streamed, unless = ", streamed", " WHERE NOT message.streamed"
        one_of = f"""
            WITH {STARTED}{asked}{answered}, message AS (
                INSERT INTO {self.tables["outbox"]} ({columns}{streamed})
                SELECT {values} FROM started{{unless_there}}
                RETURNING queue, position{streamed}
            ), delivery AS (
                INSERT INTO {self.tables["delivery"]} (queue, position, state, lane, key_hash, size, due)
                SELECT queue, position, {one["state"]}, {one["lane"]}, {one["key_hash"]}, {one["size"]},
                    coalesce({one["due"]}, '-infinity')
                FROM message{unless}
            ){self.beside()}
            SELECT 1 FROM message{told}"""
        self.one = one_of.format(unless_there=" ON CONFLICT DO NOTHING")
        # Cheaper: nothing is looked up in the unique indexes first, and the row need not be marked until it is in all.
        self._new = one_of.format(unless_there="")
        self._many = f"""
            WITH {STARTED}{asked}, given AS MATERIALIZED (
                SELECT {given}, n{all_answered}
                FROM unnest({many}) WITH ORDINALITY AS sent ({listed(self._COLUMNS)}, n){asked_once}
            ), message AS (
                INSERT INTO {self.tables["outbox"]} ({columns}{streamed})
                SELECT {all_values} FROM given CROSS JOIN started ORDER BY n
                ON CONFLICT DO NOTHING
                RETURNING id, position{streamed}
            ), delivery AS (
                INSERT INTO {self.tables["delivery"]} (queue, position, state, lane, key_hash, size, due)
                SELECT queue, position, state, lane, key_hash, size, coalesce(due, '-infinity')
                FROM message JOIN given USING (id){unless}
            )
            SELECT {self.id_as_text} FROM message{told_all}"""

    def beside(self) -> str:
        """More of the statement `one`, each part with a comma before it. `message` is what was inserted."""
        return ""

    def row(self, message: Message) -> dict[str, Any]:
        """The parameters of the statement `one`, which adds this message unless it is a duplicate."""
        return dict(zip(self._COLUMNS, self._message_row(message) + self._delivery_row(message), strict=True))

    def _sent_as(self, column: str) -> str:
        return self._SENT_AS.get(column, "text")

    def _stored_as(self, column: str) -> str:
        return self._STORED_AS.get(column, "")

    def lock_keys(self, messages: Sequence[Message]) -> Steps[None]:
        hashes = sorted({key_hash(message.key) for message in messages if message.key is not None})
        if hashes:
            yield Query("SELECT pg_advisory_xact_lock(hash) FROM unnest(:hashes::bigint[]) AS hash", {"hashes": hashes})

    def statement(self, new: Message) -> Query:
        return Query(self._new, self._told_row(new))

    def _insert_one(self, message: Message) -> Steps[bool]:
        result = yield Query(self.one, self._told_row(message))
        return bool(result.rows)

    def _told_row(self, message: Message) -> dict[str, Any]:
        row = self.row(message)
        return row if self._queue_of is None else row | self._channels([message])

    def _insert(self, chunk: Sequence[Message]) -> Steps[set[UUID]]:
        rows = [self._message_row(message) + self._delivery_row(message) for message in chunk]
        columns = map(list, zip(*rows, strict=True))
        result = yield Query(self._many, dict(zip(self._COLUMNS, columns, strict=True)) | self._channels(chunk))
        return {UUID(identifier) for [identifier] in result.rows}

    def _channels(self, messages: Sequence[Message]) -> dict[str, list[str]]:
        """The channels to notify, where the statement does not know them."""
        if not self.notify or self._queue_of is None:
            return {}
        return {"channels": sorted({channel(self.names, self.queue_for(message)) for message in messages})}

    def _moment(self, moment: datetime) -> str:
        return moment.isoformat()


def _with_type(columns: dict[str, str], to_debezium: str) -> str:
    """A message's columns, with a type in all that Debezium sends."""
    return listed(never_null(columns, to_debezium) if name == "type" else columns[name] for name in MESSAGE_COLUMNS)


def _told(channel: str | None, what: str, notify: bool) -> str:  # noqa: FBT001 - the setting, handed on
    """Makes a statement notify the listeners: of rows, of lanes, or, with no word, of both.

    In a branch of a two-phase commit, which must not notify, it notes the channels for `TELL`.
    """
    if not notify:
        return ""
    if channel is not None:
        quoted = f"'{channel}'"
        return f" WHERE (SELECT {_tell(quoted, what)}) IS NOT NULL"
    return f" WHERE (SELECT count({_tell('told', what)}) FROM unnest(:channels::text[]) AS told) IS NOT NULL"


NOTIFY_LATER = "SET LOCAL postroom.notify = 'later'"
"""Keeps a transaction from notifying: PostgreSQL prepares none that does."""
_NOTED = "coalesce(current_setting('postroom.channels', true), '')"


def _tell(channel: str, what: str) -> str:
    return (
        f"CASE WHEN current_setting('postroom.notify', true) = 'later' THEN "
        f"CASE WHEN strpos({_NOTED}, ' ' || {channel} || ' ') > 0 THEN '' ELSE "
        f"set_config('postroom.channels', {_NOTED} || ' ' || {channel} || ' ', false) END "
        f"ELSE pg_notify({channel}, {what})::text END"
    )


TELL = (
    f"SELECT pg_notify(channel, '') FROM unnest(string_to_array({_NOTED}, ' ')) AS channel WHERE channel <> ''; "
    "SET postroom.channels = ''"
)
"""Notifies the listeners of what was added in this session under `NOTIFY_LATER`, and has committed since."""
