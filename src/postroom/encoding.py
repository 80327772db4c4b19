"""Encode payloads: objects as JSON, text and bytes as they are; and in a canonical form for the digest."""

from __future__ import annotations

import datetime as dt
import decimal
import hashlib
import math
import uuid
from typing import Any, NamedTuple

import msgspec

from postroom.errors import PayloadNotEncodable

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
BINARY = "application/octet-stream"


_KEPT = (bytes, dt.datetime, dt.date, dt.time, dt.timedelta, decimal.Decimal, uuid.UUID)


class Encoded(NamedTuple):
    """A payload as stored and sent, and its canonical form for the digest."""

    body: bytes | None
    content_type: str
    canonical: bytes | None


def encode(payload: object, content_type: str | None = None) -> Encoded:
    """Encode a payload. Bytes and text pass through, ``None`` is a tombstone, anything else becomes JSON.

    Raises `PayloadNotEncodable`, which names the type that has no JSON form, never a value.
    """
    match payload:
        case None:
            return Encoded(None, content_type or BINARY, None)
        case bytes() | bytearray() | memoryview():
            body = bytes(payload)
            return Encoded(body, content_type or BINARY, body)
        case str():
            body = _utf8(payload)
            return Encoded(body, content_type or TEXT, body)
        case _:
            body, canonical = _json(payload, ", or encode it yourself and pass bytes")
            return Encoded(body, content_type or JSON, canonical)


def encode_json(value: object) -> bytes:
    """The canonical JSON of any value, text and ``None`` included. Raises `PayloadNotEncodable`, like `encode`."""
    return _json(value)[1]


def plain(value: object) -> Any:
    """Any object as dicts, lists and values, with times, decimals, UUIDs and bytes as they are.

    Raises `PayloadNotEncodable`, like `encode`.
    """
    try:
        return msgspec.to_builtins(value, builtin_types=_KEPT, order="deterministic", enc_hook=_plain)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise PayloadNotEncodable(
            f"the payload of type {type(value).__name__} is not made of fields and values ({_reason(error)}): pass a "
            "dataclass, msgspec Struct or pydantic model, or a dict"
        ) from None


def digest(*parts: str | bytes | None) -> str:
    """SHA-256 over the parts, each prefixed with its length, so that different lists give different digests."""
    framed: list[bytes] = []
    for part in parts:
        if part is None:
            framed.append(b"-;")
            continue
        data = part.encode() if isinstance(part, str) else part
        framed += (b"%d:" % len(data), data, b";")
    return hashlib.sha256(b"".join(framed)).hexdigest()


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise PayloadNotEncodable(
            "the payload is a str with a lone surrogate, which UTF-8 cannot hold: pass bytes instead"
        ) from None


def _json(payload: object, other_remedy: str = "") -> tuple[bytes, bytes]:
    """JSON as sent, and in canonical form: keys and sets sorted, regardless of the kind of object."""
    try:
        body = _as_given(payload)
        # Msgspec encodes NaN and infinities as null, which would change data silently.
        changed = b"null" in body and _holds_non_finite(_builtins(payload))
        canonical = _canonical(payload)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise PayloadNotEncodable(
            f"the payload of type {type(payload).__name__} cannot become JSON ({_reason(error)}): pass a dict, "
            f"dataclass, msgspec Struct or pydantic model of JSON values{other_remedy}"
        ) from None
    if changed:
        raise PayloadNotEncodable(
            "the payload holds a float that is NaN or infinite, which JSON cannot express: use None or a string"
        )
    return body, canonical


def _canonical(payload: object) -> bytes:
    try:
        return _sorted(payload)
    except TypeError:  # msgspec sorts keys that are texts; the long way makes texts of the others first
        return _sorted(_builtins(payload))


def _builtins(payload: object) -> object:
    return msgspec.to_builtins(payload, str_keys=True, order="sorted", enc_hook=_jsonable)


def _jsonable(value: Any) -> object:
    """Convert what msgspec does not know: pydantic models, and other UUID classes."""
    if hasattr(value, "model_dump"):
        try:
            return value.model_dump(mode="json")
        except Exception:  # noqa: BLE001 - an error raised by a model may quote the payload
            raise ValueError from None
    if type(value).__name__ == "UUID":
        return str(value)
    raise TypeError(f"objects of type {type(value).__name__} have no JSON form")


_as_given = msgspec.json.Encoder(enc_hook=_jsonable).encode
_sorted = msgspec.json.Encoder(enc_hook=_jsonable, order="sorted").encode


def _plain(value: Any) -> object:
    """Convert what msgspec does not know, as `_jsonable` does, without making text of times and numbers."""
    if hasattr(value, "model_dump"):
        try:
            return value.model_dump()
        except Exception:  # noqa: BLE001 - as in `_jsonable`
            raise ValueError from None
    return _jsonable(value)


def _reason(error: Exception) -> str:
    """The error, in our own words if the library's would quote the payload."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply or refers to itself"
    if isinstance(error, UnicodeEncodeError):
        return "it holds a lone surrogate"
    return str(error) if isinstance(error, TypeError) else "it holds a value that has no JSON form"


def _holds_non_finite(value: object) -> bool:
    match value:
        case float():
            return not math.isfinite(value)
        case dict():
            return any(map(_holds_non_finite, value.values()))
        case list() | tuple():
            return any(map(_holds_non_finite, value))
        case _:
            return False
