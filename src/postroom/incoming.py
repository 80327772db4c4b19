"""Incoming: a message as it was received."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeAlias, TypeVar

import msgspec

from postroom.decoding import decode
from postroom.rules.naming import dedup_id_of

T = TypeVar("T")

Class: TypeAlias = type[T]


class Incoming(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A received message: what a handler is given. The names are those of `Message`."""

    id: str
    """What the sender calls it; where it gave none, its place at the broker and what is there, else something new."""
    topic: str
    payload: bytes | None
    """None for a tombstone."""
    content_type: str
    type: str | None = None
    key: str | None = None
    source: str | None = None
    """Which service sent it, as it calls itself."""
    aggregate_type: str | None = None
    aggregate_id: str | None = None
    position: int | None = None
    """Its place in the sender's outbox: of two messages with the same key, the one with the higher place is newer."""
    created_at: datetime | None = None
    expires_at: datetime | None = None
    headers: Mapping[str, str] = {}
    problem: str | None = None
    """Why it cannot be read, where it says that it is a CloudEvent and is none."""

    assigned_dedup_id: str | None = None
    """Takes the place of source and id in `dedup_id`: the one a parked message was received under, or, where senders
    can put anything into source and id, one that they cannot choose."""

    @property
    def dedup_id(self) -> str:
        """Identifies redeliveries: source and id, or topic and id if no source is named. At most 255 characters."""
        return self.assigned_dedup_id or dedup_id_of(self.source, self.id, self.topic)

    def json(self) -> Any:
        """The payload decoded from JSON. Raises `PayloadNotDecodable`."""
        return decode(self.payload)

    def decode(self, kind: Class[T]) -> T:
        """The payload decoded from JSON, and checked to be of this type.

        A dataclass, a msgspec Struct, a TypedDict, a pydantic model, a list of them. Raises `PayloadNotDecodable`.
        """
        decoded: T = decode(self.payload, kind)
        return decoded

    @property
    def size(self) -> int:
        """Bytes of payload and headers."""
        headers = sum(len(name.encode()) + len(value.encode()) for name, value in self.headers.items())
        return len(self.payload or b"") + headers

    def __hash__(self) -> int:
        """By the id: headers are a dict, which has no hash."""
        return hash(self.id)

    def __repr__(self) -> str:
        """Without the payload and the headers, which do not belong in logs."""
        return f"Incoming(id={self.id!r}, topic={self.topic!r}, key={self.key!r}, {self.size} bytes)"
