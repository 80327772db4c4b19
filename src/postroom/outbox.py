"""Outbox: record a message in the caller's transaction, so that it commits with the business rows or not at all."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Unpack

from postroom.errors import InvalidMessage, InvalidSetting, LeaseLost, PayloadTooLarge
from postroom.events import VERSION, check_serializer, declared_classes, event_of, serializer_of
from postroom.message import Fields, Message
from postroom.rules.routing import Routing, best_pattern
from postroom.rules.topics import rule_of
from postroom.runtime import wakeup
from postroom.settings import Settings
from postroom.store.connections.kinds import async_kind, sync_kind
from postroom.store.ledger.handover import Handover
from postroom.store.outbox.writers import WRITERS
from postroom.store.sql.db_errors import explain
from postroom.store.sql.names import Names
from postroom.store.sql.operations import DEFAULT_QUEUE
from postroom.store.sql.steps import Steps, arun, run
from postroom.tasks.calls import OPTIONS, call_of, options_text
from postroom.telemetry.events import Added, all_of

if TYPE_CHECKING:
    from postroom.serializing import Serializer
    from postroom.store.outbox.writer import Writer
    from postroom.telemetry.events import Hook

MOST_TOPICS = 4096
"""Topics whose check is cached."""
Mask = Callable[[str, Any], Any]


class Serialized(bytes):
    """What a serializer made of an event: masked already, and no payload of the user's."""

    __slots__ = ()


class Outbox:
    """Records messages in the caller's transaction. It never commits, never opens a transaction, never calls a broker.

    ``schema``, ``table_prefix``, ``max_payload_bytes``, ``notify``, ``routes`` and ``brokers`` default to the settings.

    ``mask(topic, payload)`` is called with each payload before it is encoded, and returns what is stored instead: the
    place to remove personal data.

    ``lock_keys``: messages of one key leave in the order of ``add``. That is the order of commit only if transactions
    with the same key wait for each other: because they lock the key's business row first, or with ``lock_keys``, which
    makes ``add`` wait until every other transaction that added with the same key has ended. SQLite's transactions
    always wait; on PostgreSQL it costs one more statement; MySQL and MariaDB do not support it (`InvalidSetting`).

    ``notify``: on PostgreSQL, wake listening relays when a transaction with messages commits, so that they need not
    wait for their next poll. It has no effect on other databases.

    ``brokers``: the topic patterns for which relays have brokers of their own. Messages then go to the right queue at
    once; without them, a relay moves them there.

    ``cdc``: on PostgreSQL, write no delivery while ``relay --cdc`` or Debezium reads the write-ahead log: one row
    instead of two. Give it to every producer of a database, or to none: keys that both use may leave out of order. It
    has no effect on other databases, nor before such a relay is started, or `Admin.debezium_on` called.

    ``hook`` receives `postroom.telemetry.events.Added` for what was written, as metrics want it. It is called before
    the transaction ends, so what is rolled back is reported too.

    ``serializer`` encodes the events of `publish` whose classes declare none; without it, they are JSON.

    If the settings name the broker, a topic that it does not accept, or reserves, raises `InvalidMessage`.
    """

    def __init__(  # noqa: PLR0913 - all by name, and most are settings
        self,
        *,
        schema: str | None = None,
        table_prefix: str | None = None,
        max_payload_bytes: int | None = None,
        mask: Mask | None = None,
        lock_keys: bool = False,
        notify: bool | None = None,
        routes: Mapping[str, str] | None = None,
        brokers: Collection[str] | None = None,
        hook: Hook | None = None,
        cdc: bool | None = None,
        serializer: Serializer | None = None,
    ) -> None:
        check_serializer(serializer)
        self._serializer = serializer
        self._settings = Settings.load(
            schema=schema,
            table_prefix=table_prefix,
            max_payload_bytes=max_payload_bytes,
            notify=notify,
            routes=routes,
            brokers=_without_brokers(brokers),
            cdc=cdc,
        )
        patterns = self._settings.brokers
        self._queue_of = Routing(patterns).queue_of if patterns else None
        self._problem_of = _topic_rules(self._settings)
        Names.of("postgresql", self._settings.schema, self._settings.table_prefix)  # raises for an invalid identifier
        self._mask = mask
        self._lock_keys = lock_keys
        self._hook = None if hook is None else all_of(hook)
        self._writers: dict[str, Writer] = {}

    def add(
        self,
        connection: object,
        topic: str | None,
        payload: object = None,
        **fields: Unpack[Fields],
    ) -> Message:
        """Record one message in the connection's open transaction, and return it.

        If the topic is None, ``routes`` of the settings maps the message's type to a topic; the default is
        ``default_topic``. The fields are key, type, aggregate_type, aggregate_id, headers, id, idempotency_key,
        deliver_at, expires_at, content_type and ledger; see `Message.new`. Messages with the same key leave in the
        order in which they were added.

        Raises `InvalidMessage`, `IdempotencyConflict`, `DuplicateMessage` or `UnusableConnection`; then nothing was
        written, and the transaction is still usable. Raises `LeaseLost` if ``ledger`` is a keyed request that no longer
        belongs to this run: roll back. Errors of the database itself are raised unchanged: roll back.
        """
        message = self.message(topic, payload, **fields)
        [recorded] = self._add(connection, [message], "outbox.add", new=self._is_new(message, fields))
        return recorded

    async def aadd(
        self, connection: object, topic: str | None, payload: object = None, **fields: Unpack[Fields]
    ) -> Message:
        """`add` for an async connection."""
        message = self.message(topic, payload, **fields)
        [recorded] = await self._aadd(connection, [message], "outbox.aadd", new=self._is_new(message, fields))
        return recorded

    def add_many(self, connection: object, messages: Iterable[Message]) -> list[Message]:
        """Record many messages, made with `Message.new` or `message`, in order and with a few statements.

        Raises like `add`; then none of them was written.
        """
        return self._add(connection, _listed(messages), "outbox.add_many")

    async def aadd_many(self, connection: object, messages: Iterable[Message]) -> list[Message]:
        """`add_many` for an async connection."""
        return await self._aadd(connection, _listed(messages), "outbox.aadd_many")

    def publish(self, connection: object, event: object, **fields: Unpack[Fields]) -> Message:
        """`add` an object whose class is an `event`, which says topic, type, version and key.

        Fields that are given come first, except for the type. Raises like `add`.
        """
        [recorded] = self._add(connection, [self.message_of(event, **fields)], "outbox.publish")
        return recorded

    async def apublish(self, connection: object, event: object, **fields: Unpack[Fields]) -> Message:
        """`publish` for an async connection."""
        await self.aprepare(event.__class__)
        [recorded] = await self._aadd(connection, [self.message_of(event, **fields)], "outbox.apublish")
        return recorded

    def message_of(self, event: object, **fields: Unpack[Fields]) -> Message:
        """Make a message of an object whose class is an `event`, for `add_many`."""
        declared = event_of(event)
        given: Fields = {"key": declared.key_of(event), **fields, "type": declared.type}
        given["headers"] = {**(fields.get("headers") or {}), VERSION: str(declared.version)}
        serializer = serializer_of(event.__class__, self._serializer)
        if serializer is None:
            return self.message(declared.topic, event, **given)
        given.setdefault("content_type", serializer.content_type)
        payload = serializer.encode(self._masked(declared.topic, event), event.__class__)
        return self.message(declared.topic, Serialized(payload), **given)

    def prepare(self, *events: type[Any]) -> None:
        """Register the schemas of event classes, all that were declared if none is given.

        Call it when the program starts: what was not prepared calls the schema registry when the first event of its
        class is published, inside your transaction. Raises `RegistryUnavailable`, and `InvalidSetting` if the registry
        refuses a schema.
        """
        for kind in events or declared_classes():
            serializer = serializer_of(kind, self._serializer)
            if serializer is not None and not serializer.is_prepared(kind):
                serializer.prepare(kind)

    async def aprepare(self, *events: type[Any]) -> None:
        """`prepare` without holding up the event loop."""
        wanting = [(serializer_of(kind, self._serializer), kind) for kind in events or declared_classes()]
        if any(serializer is not None and not serializer.is_prepared(kind) for serializer, kind in wanting):
            import asyncio  # loaded by whoever awaits; other producers do without

            await asyncio.to_thread(self.prepare, *events)

    def task(
        self,
        connection: object,
        task: object,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Message:
        """`add` a call of a task: of Celery, Dramatiq or Taskiq. A worker runs it after the transaction has committed.

        A relay sends it, through a `CeleryBroker`, `DramatiqBroker` or `TaskiqBroker`. The task's id is that of the
        message. The options are those of the library; ``key``, ``idempotency_key`` and ``deliver_at`` are as in `add`.

        Raises like `add`: also for arguments that the task does not take or that cannot be serialized.
        """
        [recorded] = self._add(connection, [self.task_message(task, args, kwargs, **options)], "outbox.task")
        return recorded

    async def atask(
        self,
        connection: object,
        task: object,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Message:
        """`task` for an async connection."""
        [recorded] = await self._aadd(connection, [self.task_message(task, args, kwargs, **options)], "outbox.atask")
        return recorded

    def task_message(
        self, task: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> Message:
        """Make a message of a call of a task, for `add_many`."""
        fields: Fields = {}
        for name in ("key", "idempotency_key", "deliver_at"):
            if name in options:
                fields[name] = options.pop(name)
        call = call_of(task, args, kwargs, options, self._mask)
        if call.deliver_at is not None:
            fields.setdefault("deliver_at", call.deliver_at)
        fields["headers"] = {OPTIONS: options_text(call.options, call.name)}
        fields |= {"type": call.name, "content_type": call.content_type}
        return Message.new(call.topic, call.payload, **fields)

    def message(self, topic: str | None, payload: object = None, **fields: Unpack[Fields]) -> Message:
        """Make a message for `add_many`, applying mask and routes like `add`; `Message.new` applies neither."""
        if topic is None:
            topic = self._route(fields.get("type"))
        return Message.new(topic, payload if self._mask is None else self._masked(topic, payload), **fields)

    def _masked(self, topic: str, payload: object) -> object:
        return payload if self._mask is None or isinstance(payload, Serialized) else self._mask(topic, payload)

    def _is_new(self, message: Message, fields: Fields) -> bool:
        """Whether the row alone adds it: `add` makes the id, so that it is in no outbox, and nothing else is asked."""
        return (
            type(self).message is Outbox.message  # a subclass may give messages ids and keys of its own
            and fields.get("id") is None
            and message.idempotency_key is None
            and message.ledger is None
            and not self._lock_keys
        )

    def _route(self, type: str | None) -> str:
        if type is None:
            raise InvalidMessage("neither topic nor type is given: give a topic, or a type that routes map to a topic")
        return self._settings.routes.get(type, self._settings.default_topic)

    def _add(self, connection: object, messages: list[Message], method: str, *, new: bool = False) -> list[Message]:
        self._accept(messages)
        kind = sync_kind(connection, method)
        writer = self._writers.get(kind.dialect) or self._writer(kind.dialect)
        statement = writer.statement(messages[0]) if new else None
        try:
            if statement is None:
                messages = run(self._record(writer, messages), kind.execute)
            else:
                kind.execute(statement)
        except Exception as error:
            explain(error)
            raise
        return self._announced(messages)

    async def _aadd(
        self, connection: object, messages: list[Message], method: str, *, new: bool = False
    ) -> list[Message]:
        self._accept(messages)
        kind = await async_kind(connection, method)
        writer = self._writers.get(kind.dialect) or self._writer(kind.dialect)
        statement = writer.statement(messages[0]) if new else None
        try:
            if statement is None:
                messages = await arun(self._record(writer, messages), kind.execute)
            else:
                await kind.execute(statement)
        except Exception as error:
            explain(error)
            raise
        return self._announced(messages)

    def _announced(self, messages: list[Message]) -> list[Message]:
        wakeup.notify()
        if self._hook is not None:
            queues: dict[str, list[Message]] = {}
            for message in messages:
                if not message.duplicate:
                    queue = DEFAULT_QUEUE if self._queue_of is None else self._queue_of(message.topic)
                    queues.setdefault(queue, []).append(message)
            for queue, added in queues.items():
                self._hook(Added(added, queue))
        return messages

    def _record(self, writer: Writer, messages: list[Message]) -> Steps[list[Message]]:
        if self._lock_keys:
            yield from writer.lock_keys(messages)
        recorded = yield from writer.add(messages)
        entries = [message.ledger for message in recorded if message.ledger is not None and not message.duplicate]
        if entries:
            try:
                yield from Handover(writer.names).leave(entries)
            except (InvalidMessage, LeaseLost) as error:
                yield from writer.undo([message for message in recorded if not message.duplicate], error)
                raise
        return recorded

    def _accept(self, messages: list[Message]) -> None:
        for message in messages:
            if not isinstance(message, Message):
                raise InvalidMessage(
                    f"add_many takes messages made with Message.new(topic, payload, …), not {type(message).__name__}"
                )
            if message.digest is None:
                raise InvalidMessage(f"{message!r} was not made with Message.new, which validates it: use Message.new")
            _check(message, self._settings, self._problem_of)

    def _writer(self, dialect: str) -> Writer:
        names = Names.of(dialect, self._settings.schema, self._settings.table_prefix)
        self._writers[dialect] = WRITERS[dialect](
            names, notify=self._settings.notify, queue_of=self._queue_of, stream=self._settings.cdc
        )
        return self._writers[dialect]


def check_acceptable(message: Message, settings: Settings) -> None:
    """Raise `InvalidMessage` if an outbox with these settings would not accept the message."""
    _check(message, settings, _topic_rules(settings))


def _check(message: Message, settings: Settings, problem_of: Callable[[str], str | None] | None) -> None:
    if problem_of is not None and (problem := problem_of(message.topic)):
        raise InvalidMessage(f"topic {message.topic!r} {problem}")
    limit = settings.max_payload_bytes
    if message.size > limit:
        raise PayloadTooLarge(
            f"the message for {message.topic!r} has {message.size:,} bytes of payload and headers, the limit "
            f"is {limit:,}: send a reference to the data instead, or raise max_payload_bytes"
        )


def _topic_rules(settings: Settings) -> Callable[[str], str | None] | None:
    """A function that says why a topic's broker does not accept it; None if the settings name no such broker."""
    rules = {pattern: rule_of(url) for pattern, url in settings.brokers.items()}
    default = rule_of(settings.broker)
    if default is None and not any(rules.values()):
        return None

    @lru_cache(maxsize=MOST_TOPICS)
    def problem_of(topic: str) -> str | None:
        pattern = best_pattern(rules, topic) if rules else None
        rule = default if pattern is None else rules[pattern]
        return None if rule is None else rule(topic)

    return problem_of


def _without_brokers(patterns: Collection[str] | None) -> dict[str, str] | None:
    """The patterns in the form of the settings; an outbox ignores the URLs."""
    if isinstance(patterns, str):
        raise InvalidSetting(f"brokers = {patterns!r} is a str: give a list of patterns, as in [{patterns!r}]")
    return None if patterns is None else dict.fromkeys(patterns, "")


def _listed(messages: Iterable[Message]) -> list[Message]:
    try:
        return list(messages)
    except TypeError:
        raise InvalidMessage(f"add_many takes a list of messages, not {type(messages).__name__}") from None
