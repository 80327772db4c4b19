"""Header formats: what headers each protocol can carry, and how it names a CloudEvent's attributes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import quote, unquote

CONTENT_TYPE = "content-type"
"""The header with the payload's content type."""
MOST_KEPT = 1000
"""Names in a cache: if more arrive, it starts over."""

_TOKEN = r"[!#$&'*+\-.^_`|~0-9A-Za-z]"  # noqa: S105 - a header name in HTTP, without the percent sign
_TEXT = "[^%\0\ud800-\udfff]"  # any text, except that some clients end a name at a NUL
_PLAIN = re.compile(r"[!#$&-~]*", re.ASCII)
_ATTRIBUTE_SAFE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
_PRINTABLE = re.compile(r"[!-~](?:[ -~]*[!-~])?|", re.ASCII)
_ENCODED = "UTF-8''"
"""RFC 8187's mark for percent-encoded text."""


class AttributeNames(NamedTuple):
    """The names of the attributes that differ from message to message."""

    id: str = "id"
    time: str = "time"
    subject: str = "subject"
    aggregatetype: str = "aggregatetype"
    partitionkey: str = "partitionkey"
    sequence: str = "sequence"
    expirytime: str = "expirytime"


@dataclass(frozen=True, slots=True)
class HeaderFormat:
    """What headers a protocol can carry."""

    prefix: str
    """Prefix of each attribute's name."""
    reserved: tuple[str, ...] = ()
    """Names that user headers must not have, in lower case; one that ends with a dash is a prefix."""
    ascii_only: bool = False
    """Header values are printable ASCII, and their names are tokens."""
    any_case: bool = False
    """Names ignore case, and arrive in lower case."""
    tombstones: bool = False
    """A message without a body deletes its key, so a tombstone has no body in structured mode either."""
    names: AttributeNames = field(init=False, repr=False)
    """Names of attributes, with the prefix."""
    _beginnings: tuple[str, ...] = field(init=False, repr=False)
    _names: frozenset[str] = field(init=False, repr=False)
    _name: re.Pattern[str] = field(init=False, repr=False)
    _attributes: dict[str, str | None] = field(init=False, repr=False, compare=False, default_factory=dict)
    """Of names that have arrived; they are few."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", AttributeNames(*(self.prefix + name for name in AttributeNames())))
        object.__setattr__(self, "_beginnings", (self.prefix, *(name for name in self.reserved if name.endswith("-"))))
        object.__setattr__(self, "_names", frozenset({CONTENT_TYPE, *self.reserved}))
        object.__setattr__(self, "_name", re.compile(f"{_TOKEN}+" if self.ascii_only else f"{_TEXT}+"))

    def header_name(self, name: str) -> str:
        """A user header's name, percent-encoded if the protocol cannot carry it or reserves it."""
        if self.any_case:
            name = name.lower()
        fits = self._name.fullmatch(name) is not None
        reserved = self.is_reserved(name)
        if fits and not reserved:
            return name
        first = "".join(f"%{byte:02X}" for byte in name[0].encode()) if reserved else self._escaped(name[0])
        return first + "".join(map(self._escaped, name[1:]))

    def _escaped(self, character: str) -> str:
        return character if self._name.fullmatch(character) else "".join(f"%{byte:02X}" for byte in character.encode())

    def header_value(self, value: str) -> str:
        """A user header's value, as is or in the form of RFC 8187."""
        if not self.ascii_only or (_PRINTABLE.fullmatch(value) and not value.startswith(_ENCODED)):
            return value
        return _ENCODED + quote(value, safe="")

    def attribute_value(self, value: str) -> str:
        """An attribute's value, percent-encoded as in the HTTP binding."""
        if not self.ascii_only or _PLAIN.fullmatch(value):
            return value
        return quote(value, safe=_ATTRIBUTE_SAFE)

    def attribute_name(self, name: str) -> str | None:
        """The attribute that a header of this name holds; empty if it is another header of ours or the protocol's.

        None if it is the user's.
        """
        try:
            return self._attributes[name]
        except KeyError:
            found = "" if self.is_reserved(name) else None
            if name.lower().startswith(self.prefix):
                found = name[len(self.prefix) :]
            if len(self._attributes) >= MOST_KEPT:
                self._attributes.clear()
            self._attributes[name] = found
            return found

    def is_reserved(self, name: str) -> bool:
        """Whether a header belongs to the protocol or to us, not to the user."""
        lower = name.lower()
        return lower.startswith(self._beginnings) or lower in self._names

    def user_header(self, name: str, value: str) -> tuple[str, str]:
        """Decode a header to the user's name and value."""
        if self.ascii_only and value.startswith(_ENCODED):
            value = unquote(value.removeprefix(_ENCODED))
        return unquote(name), value


PLAIN = HeaderFormat("")
KAFKA = HeaderFormat("ce_", tombstones=True)
"""Headers of Kafka records."""
REDIS = HeaderFormat("ce_", reserved=("data",))
"""Fields of entries in Redis Streams."""
AMQP = HeaderFormat(
    "ce-",
    reserved=(
        *("cc", "bcc"),  # additional routing keys: they would send a message beyond its topic
        *("x-death", "x-first-death-", "x-last-death-", "x-delivery-count", "x-acquired-count", "x-stream-offset"),
        *("x-received-from", "x-shovelled"),
    ),
)
"""Reserves RabbitMQ's own headers; any other header that starts with x- is the user's."""
NATS = HeaderFormat("ce-", reserved=("nats-",), ascii_only=True)
"""Headers of NATS messages."""
HTTP = HeaderFormat(
    "ce-",
    reserved=(
        *("webhook-", "content-", "transfer-encoding", "connection", "host", "te", "trailer", "upgrade", "expect"),
        *("authorization", "proxy-", "keep-alive", "user-agent", "accept", "accept-", "cookie"),
    ),
    ascii_only=True,
    any_case=True,
)
"""Headers of webhooks."""
