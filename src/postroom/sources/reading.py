"""Read messages from foreign senders: decode what can be decoded, and keep the rest as it came."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING

from postroom.encoding import BINARY
from postroom.incoming import Incoming
from postroom.rules.naming import readable

if TYPE_CHECKING:
    from collections.abc import Iterable

RAW = "postroom-raw-headers"
"""Header that keeps the original headers of an undecodable message, in base64."""
NOT_PLAIN = "%bytes:"
"""Prefix of the hexadecimal form of a key that is not text."""


def text(value: bytes) -> str:
    """A header's value as text. Bytes that are not UTF-8 become lone surrogates, as in Python's file names."""
    return value.decode("utf-8", "surrogateescape")


def key_of(raw: bytes) -> str:
    """A key as text. Different keys stay different: hexadecimal if it is not UTF-8, or could be mistaken for that."""
    try:
        found = raw.decode()
    except UnicodeDecodeError:
        found = NOT_PLAIN
    return NOT_PLAIN + raw.hex() if found.startswith(NOT_PLAIN) else found


def fingerprint(parts: Iterable[bytes | str | None]) -> str:
    """A hash of a message's content, for brokers that reuse a place for something else."""
    found = hashlib.blake2b(digest_size=8)
    for part in parts:
        raw = b"" if part is None else part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        found.update(b"-" if part is None else len(raw).to_bytes(8))
        found.update(raw)
    return found.hexdigest()


def undecodable(
    topic: str,
    body: bytes | None,
    problem: BaseException | str,
    *,
    id: str,
    key: str | None = None,
    headers: bytes | None = None,
) -> Incoming:
    """A message that cannot be decoded, with its original body and headers, and the reason."""
    reason = problem if isinstance(problem, str) else f"it cannot be read: {type(problem).__name__}: {problem}"
    return Incoming(
        id=id,
        topic=readable(topic),
        payload=body,
        content_type=BINARY,
        key=key,
        headers={} if headers is None else {RAW: base64.b64encode(headers).decode()},
        problem=readable(reason),
    )
