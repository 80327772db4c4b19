"""Signatures of webhooks, as Standard Webhooks 1.0 has them: made by who sends, checked by who receives."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import TYPE_CHECKING

from postroom.errors import InvalidSetting

if TYPE_CHECKING:
    from collections.abc import Iterable

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"


def key_of(secret: str) -> bytes:
    """The key in a secret: ``whsec_`` and base64. Raises `InvalidSetting`, which does not show it."""
    try:
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not key:
        raise InvalidSetting("the secret of a webhook is not valid: write whsec_ and base64")
    return key


def signature(key: bytes, name: str, timestamp: int, body: bytes) -> str:
    """The signature of a message."""
    digest = hmac.new(key, f"{name}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode()


def is_signed(keys: Iterable[bytes], name: str, timestamp: int, body: bytes, signatures: str) -> bool:
    """Whether one of the signatures, which are parted by spaces, was made with one of the keys."""
    wanted = [signature(key, name, timestamp, body).encode() for key in keys]
    given = [one.encode() for one in signatures.split()]
    return any([hmac.compare_digest(one, other) for one in wanted for other in given])  # noqa: C419 - all, in equal time
