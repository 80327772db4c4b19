"""Incoming: a message as received from a broker."""

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
    """A received message, as passed to a handler. Its fields have the same names as those of `Message`."""

    id: str
    """The sender's id. If it gave none: derived from the message's place at the broker and content, else a new one."""
    topic: str
    payload: bytes | None
    """None for a tombstone."""
    content_type: str
    type: str | None = None
    key: str | None = None
    source: str | None = None
    """The service that sent it, by its own name."""
    aggregate_type: str | None = None
    aggregate_id: str | None = None
    position: int | None = None
    """Its position in the sender's outbox: of two messages with the same key, the higher one is newer."""
    created_at: datetime | None = None
    expires_at: datetime | None = None
    headers: Mapping[str, str] = {}
    problem: str | None = None
    """Why it cannot be read, if it claims to be a CloudEvent and is not."""

    assigned_dedup_id: str | None = None
    """Takes the place of source and id in `dedup_id`: the one a parked message was received under, or, where senders
    can put anything into source and id, one that they cannot choose."""

    @property
    def dedup_id(self) -> str:
        """Identifies redeliveries: source and id, or topic and id if no source is named. At most 255 characters."""
        return self.assigned_dedup_id or dedup_id_of(self.source, self.id, self.topic)

    def json(self) -> Any:
        """Decode the payload from JSON. Raises `PayloadNotDecodable`."""
        return decode(self.payload)

    def decode(self, kind: Class[T]) -> T:
        """Decode the payload from JSON to this type, and validate it.

        The type may be a dataclass, msgspec Struct, TypedDict or pydantic model, or a list of them. Raises
        `PayloadNotDecodable`.
        """
        decoded: T = decode(self.payload, kind)
        return decoded

    @property
    def size(self) -> int:
        """Bytes of payload and headers."""
        headers = sum(len(name.encode()) + len(value.encode()) for name, value in self.headers.items())
        return len(self.payload or b"") + headers

    def __hash__(self) -> int:
        """Hash by id, because headers are a dict, which has no hash."""
        return hash(self.id)

    def __repr__(self) -> str:
        """Leave out payload and headers, which do not belong in logs."""
        return f"Incoming(id={self.id!r}, topic={self.topic!r}, key={self.key!r}, {self.size} bytes)"
