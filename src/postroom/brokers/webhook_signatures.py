"""Webhook signatures according to Standard Webhooks 1.0: made by the sender, checked by the receiver.

The standard signs only the body. In binary mode, a message's type, topic, source and key are in headers. These get a
signature and a signing key of their own, so that neither signature can pass for the other.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import TYPE_CHECKING

from postroom.errors import InvalidSetting

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
ATTRIBUTES_SIGNATURE = "webhook-attributes-signature"
ATTRIBUTE = "ce-"
"""Prefix of the headers that hold an event's attributes."""


def key_of(secret: str) -> bytes:
    """Extract the key from a secret: ``whsec_`` and base64. Raises `InvalidSetting`, which does not show the secret."""
    try:
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not key:
        raise InvalidSetting("the secret of a webhook is not valid: write whsec_ and base64")
    return key


def attributes_key(key: bytes) -> bytes:
    """The key that signs attributes."""
    return hmac.digest(key, b"attributes", hashlib.sha256)


def attributes(headers: Mapping[str, str]) -> bytes:
    """The signed part of headers with names in lower case: event attributes and content type, sorted."""
    found = sorted(one for one in headers.items() if one[0].startswith(ATTRIBUTE) or one[0] == "content-type")
    return "".join(f"{name}:{value}\n" for name, value in found).encode()


def signature(key: bytes, name: str, timestamp: int, body: bytes) -> str:
    """The signature of a message."""
    digest = hmac.new(key, f"{name}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode()


def is_signed(keys: Iterable[bytes], name: str, timestamp: int, body: bytes, signatures: str) -> bool:
    """Whether one of the signatures, separated by spaces, was made with one of the keys."""
    expected = [signature(key, name, timestamp, body).encode() for key in keys]
    given = [one.encode() for one in signatures.split()]
    return any([hmac.compare_digest(one, other) for one in expected for other in given])  # noqa: C419 - compare all, in constant time
