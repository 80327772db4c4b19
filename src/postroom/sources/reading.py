"""Reading what strangers send: as much of it as can be read, and the rest kept as it came."""

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
"""The header of a message that could not be read in which its own are kept, as they came, in base64."""
NOT_PLAIN = "%bytes:"
"""Before the hexadecimal form of a key that is no text."""


def text(value: bytes) -> str:
    """A header's value as text; bytes that are no UTF-8 are kept as lone surrogates, as Python does with file names."""
    return value.decode("utf-8", "surrogateescape")


def key_of(raw: bytes) -> str:
    """A key as text. Different ones stay different: what is no UTF-8, or looks as if it were not, is hexadecimal."""
    try:
        found = raw.decode()
    except UnicodeDecodeError:
        found = NOT_PLAIN
    return NOT_PLAIN + raw.hex() if found.startswith(NOT_PLAIN) else found


def fingerprint(parts: Iterable[bytes | str | None]) -> str:
    """A hash of what a message consists of: a place that is given out anew holds something else then."""
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
    """A message that cannot be read: its body, and its headers, as they came, and why."""
    said = problem if isinstance(problem, str) else f"it cannot be read: {type(problem).__name__}: {problem}"
    return Incoming(
        id=id,
        topic=readable(topic),
        payload=body,
        content_type=BINARY,
        key=key,
        headers={} if headers is None else {RAW: base64.b64encode(headers).decode()},
        problem=readable(said),
    )
