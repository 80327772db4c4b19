"""RecordingOutbox: an outbox that keeps messages in memory, with assertions about what was published."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack, overload

import msgspec

from postroom import encoding
from postroom.errors import DuplicateMessage, IdempotencyConflict
from postroom.outbox import Mask, Outbox
from postroom.store.outbox.writer import already_there, used_otherwise

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from uuid import UUID

    from postroom.message import Fields, Key, Message
    from postroom.serializing import Serializer

_SHOWN = 120
"""Characters of a payload that a failing assertion shows."""


class Anything:
    """A field that an assertion ignores; None would be a value."""

    def __repr__(self) -> str:
        return "ANYTHING"


ANYTHING = Anything()


class RecordingOutbox(Outbox):
    """An `Outbox` for tests: it validates like the real one, and records messages instead of writing to a database.

    The connection may be anything, even None. With ``RecordingOutbox(outbox)``, messages also go through that outbox
    into the connection's transaction; they stay recorded even if it is rolled back.
    """

    def __init__(
        self,
        outbox: Outbox | None = None,
        *,
        mask: Mask | None = None,
        max_payload_bytes: int | None = None,
        routes: Mapping[str, str] | None = None,
        serializer: Serializer | None = None,
    ) -> None:
        super().__init__(mask=mask, max_payload_bytes=max_payload_bytes, routes=routes, serializer=serializer)
        self._outbox = outbox
        self._recorded: list[Message] = []

    @property
    def messages(self) -> list[Message]:
        """The published messages, in order. A message whose idempotency key was in use is not repeated."""
        return list(self._recorded)

    def clear(self) -> None:
        """Forget the published messages."""
        self._recorded.clear()

    def message(self, topic: str | None, payload: object = None, **fields: Unpack[Fields]) -> Message:
        """Make a message for `add_many`, applying mask and routes like `add`."""
        return (self._outbox.message if self._outbox else super().message)(topic, payload, **fields)

    def message_of(self, event: object, **fields: Unpack[Fields]) -> Message:
        """Make a message of an object whose class is an `event`, for `add_many`."""
        return (self._outbox.message_of if self._outbox else super().message_of)(event, **fields)

    def _add(self, connection: object, messages: list[Message], method: str, *, new: bool = False) -> list[Message]:
        if self._outbox:
            return self._remember(self._outbox._add(connection, messages, method, new=new))  # noqa: SLF001 - one of its kind
        self._accept(messages)
        return self._remember(self._without_repeats(messages))

    async def _aadd(
        self, connection: object, messages: list[Message], method: str, *, new: bool = False
    ) -> list[Message]:
        if self._outbox:
            recorded = await self._outbox._aadd(connection, messages, method, new=new)  # noqa: SLF001 - as in _add
            return self._remember(recorded)
        return self._add(connection, messages, method)

    def _remember(self, messages: list[Message]) -> list[Message]:
        self._recorded += [message for message in messages if not message.duplicate]
        return messages

    def _without_repeats(self, messages: Iterable[Message]) -> list[Message]:
        """The messages; those that repeat an idempotency key are marked. Raises where the database would refuse."""
        ids: set[UUID] = {message.id for message in self._recorded}
        holders = {message.idempotency_key: message for message in self._recorded}
        found = []
        for message in messages:
            holder = holders.setdefault(message.idempotency_key, message) if message.idempotency_key else message
            if holder is not message:
                if holder.digest != message.digest:
                    raise IdempotencyConflict(used_otherwise(message, holder.id))
                found.append(msgspec.structs.replace(message, id=holder.id, duplicate=True))
                continue
            if message.id in ids:
                raise DuplicateMessage(already_there(message))
            ids.add(message.id)
            found.append(message)
        return found

    @overload
    def assert_published(
        self,
        topic: str,
        *,
        key: Key | Anything | None = ANYTHING,
        payload: object = ANYTHING,
        type: str | Anything | None = ANYTHING,
        count: None = None,
    ) -> Message: ...

    @overload
    def assert_published(
        self,
        topic: str,
        *,
        key: Key | Anything | None = ANYTHING,
        payload: object = ANYTHING,
        type: str | Anything | None = ANYTHING,
        count: int,
    ) -> list[Message]: ...

    def assert_published(
        self,
        topic: str,
        *,
        key: Key | Anything | None = ANYTHING,
        payload: object = ANYTHING,
        type: str | Anything | None = ANYTHING,
        count: int | None = None,
    ) -> Message | list[Message]:
        """Return the one message to the topic with these fields; with ``count``, the list of exactly that many.

        The payload is compared as it would be sent, so a dataclass equals its dict. Raises `AssertionError`, which
        lists what was published.
        """
        expected = {
            name: value
            for name, value in (("key", key), ("payload", payload), ("type", type))
            if not isinstance(value, Anything)
        }
        found = [message for message in self._recorded if message.topic == topic and _matches(message, expected)]
        if len(found) != (1 if count is None else count):
            raise AssertionError(f"{_counted(found, count)} {_wanted(topic, expected)}\n{self._listed()}")
        return found[0] if count is None else found

    def assert_not_published(self, topic: str) -> None:
        """Raise `AssertionError`, which lists what was published, if there is a message to the topic."""
        found = [message for message in self._recorded if message.topic == topic]
        if found:
            raise AssertionError(f"{_counted(found, 0)} {_wanted(topic, {})}\n{self._listed()}")

    def _listed(self) -> str:
        if not self._recorded:
            return "nothing was published"
        lines = (f"  {number}. {_shown(message)}" for number, message in enumerate(self._recorded, 1))
        return "\n".join(("published:", *lines))


def _matches(message: Message, expected: dict[str, object]) -> bool:
    return all(
        _content(message.payload, message.content_type) == _content(*encoding.encode(value)[:2])
        if name == "payload"
        else getattr(message, name) == (None if value is None else str(value))
        for name, value in expected.items()
    )


def _content(body: bytes | None, content_type: str) -> object:
    """The payload's content, regardless of the order of its keys."""
    return msgspec.json.decode(body) if body is not None and content_type == encoding.JSON else body


def _counted(found: list[Message], count: int | None) -> str:
    wanted = "one message" if count in {None, 1} else f"{count} messages"
    hint = "; use count= to expect more" if count is None and found else ""
    return f"expected {wanted}, found {len(found)}{hint}:"


def _wanted(topic: str, expected: dict[str, object]) -> str:
    return " ".join((repr(topic), *(f"{name}={value!r}" for name, value in expected.items())))


def _shown(message: Message) -> str:
    payload = "None" if message.payload is None else message.payload.decode(errors="backslashreplace")
    short = payload if len(payload) <= _SHOWN else f"{payload[:_SHOWN]}…"
    fields = (f"{name}={value!r}" for name in ("key", "type") if (value := getattr(message, name)) is not None)
    return " ".join((repr(message.topic), *fields, f"payload={short}"))
