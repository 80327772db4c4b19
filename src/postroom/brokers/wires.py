"""Wires: what the headers of each protocol can hold, and what they call a CloudEvent's attributes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

CONTENT_TYPE = "content-type"

_TOKEN = r"[!#$&'*+\-.^_`|~0-9A-Za-z]"  # noqa: S105 - a header's name as HTTP has it, but for the percent sign
_TEXT = "[^%\0\ud800-\udfff]"  # where a name may be any text, but for clients that take it to end at a NUL
_PLAIN = re.compile(r"[!#$&-~]*", re.ASCII)
_ATTRIBUTE_SAFE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
_PRINTABLE = re.compile(r"[!-~](?:[ -~]*[!-~])?|", re.ASCII)
_ENCODED = "UTF-8''"
"""How RFC 8187 marks text that is percent-encoded because a header cannot hold it."""


@dataclass(frozen=True, slots=True)
class Wire:
    """What a protocol's headers are like."""

    prefix: str
    """Before the name of each attribute."""
    reserved: tuple[str, ...] = ()
    """Names that user headers must not have, in lower case; those with a dash at their end are beginnings of names."""
    ascii_only: bool = False
    """Headers hold printable ASCII, and their names are tokens."""
    any_case: bool = False
    """Names are told apart without regard to case, and arrive in lower case."""
    tombstones: bool = False
    """A message without a body deletes its key, so that a tombstone has none in structured mode either."""
    _beginnings: tuple[str, ...] = field(init=False, repr=False)
    _names: frozenset[str] = field(init=False, repr=False)
    _name: re.Pattern[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_beginnings", (self.prefix, *(name for name in self.reserved if name.endswith("-"))))
        object.__setattr__(self, "_names", frozenset({CONTENT_TYPE, *self.reserved}))
        object.__setattr__(self, "_name", re.compile(f"{_TOKEN}+" if self.ascii_only else f"{_TEXT}+"))

    def header_name(self, name: str) -> str:
        """A user header's name: percent-encoded where the protocol cannot hold it, or uses it itself."""
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
        """A user header's value: as it is, or as RFC 8187 writes what headers cannot hold."""
        if not self.ascii_only or (_PRINTABLE.fullmatch(value) and not value.startswith(_ENCODED)):
            return value
        return _ENCODED + quote(value, safe="")

    def attribute_value(self, value: str) -> str:
        """An attribute's value, percent-encoded as the HTTP binding says."""
        if not self.ascii_only or _PLAIN.fullmatch(value):
            return value
        return quote(value, safe=_ATTRIBUTE_SAFE)

    def is_reserved(self, name: str) -> bool:
        """Whether a header is the protocol's or ours, and not one of the user's."""
        lower = name.lower()
        return lower.startswith(self._beginnings) or lower in self._names

    def user_header(self, name: str, value: str) -> tuple[str, str]:
        """A header as the user gave it."""
        if self.ascii_only and value.startswith(_ENCODED):
            value = unquote(value.removeprefix(_ENCODED))
        return unquote(name), value


PLAIN = Wire("")
KAFKA = Wire("ce_", tombstones=True)
REDIS = Wire("ce_", reserved=("data",))
AMQP = Wire(
    "ce-",
    reserved=(
        *("cc", "bcc"),  # further routing keys: they would take a message where its topic does not
        *("x-death", "x-first-death-", "x-last-death-", "x-delivery-count", "x-acquired-count", "x-stream-offset"),
        *("x-received-from", "x-shovelled"),
    ),
)
"""RabbitMQ's own headers; all others that begin with x- are the user's."""
NATS = Wire("ce-", reserved=("nats-",), ascii_only=True)
HTTP = Wire(
    "ce-",
    reserved=(
        *("webhook-", "content-", "transfer-encoding", "connection", "host", "te", "trailer", "upgrade", "expect"),
        *("authorization", "proxy-", "keep-alive", "user-agent", "accept", "accept-", "cookie"),
    ),
    ascii_only=True,
    any_case=True,
)
