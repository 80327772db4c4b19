"""What the idempotency ledger accepts as scope, key, digest and response, and the errors for everything else."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from postroom.errors import InvalidEntry
from postroom.rules.replay import Response

MOST_CHARACTERS = 255
"""Characters that an idempotency key and its scope may have."""
_DIGEST = re.compile("[0-9a-f]{64}")
_NO_HEADER = re.compile("[\x00\r\n]|[^\x00-\xff]")
"""Characters that would end or corrupt an HTTP header."""


def scope_of(*parts: str | int | UUID) -> str:
    """Join parts, such as tenant and operation, into one scope; different lists of parts give different scopes.

    Numbers and UUIDs are taken as text. Raises `InvalidEntry` for anything else, such as None.
    """
    return "/".join(_part(part).replace("%", "%25").replace("/", "%2F") for part in parts)


def _part(part: object) -> str:
    if isinstance(part, str):
        return str.__str__(part)
    if isinstance(part, UUID) or (isinstance(part, int) and not isinstance(part, bool)):
        return str(part)
    raise InvalidEntry(
        f"a part of the scope is {part!r}: give a str, int or UUID; for anonymous callers, a value that no other "
        "caller can have"
    )


def checked_scope(scope: object) -> str:
    """The scope, which may be empty. Raises `InvalidEntry`."""
    return "" if scope == "" else _visible("the scope", scope)


def checked_key(key: object) -> str:
    """The idempotency key. Raises `InvalidEntry`."""
    return _visible("the idempotency key", key)


def checked_digest(digest: object) -> str:
    """The digest of a request. Raises `InvalidEntry`."""
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        shown = repr(digest[:20]) if isinstance(digest, str) else type(digest).__name__
        raise InvalidEntry(f"the digest ({shown}) is not 64 lower-case hexadecimal digits: make it with digest_of")
    return str.__str__(digest)


def _visible(name: str, value: object) -> str:
    """A text of 1 to 255 visible characters: printable in Unicode's sense, with spaces only inside.

    Databases disagree about trailing spaces, and people about characters that they cannot see.
    """
    if not isinstance(value, str):
        raise InvalidEntry(f"{name} must be a str, not {type(value).__name__}")
    if not 0 < len(value) <= MOST_CHARACTERS:
        raise InvalidEntry(f"{name} has {len(value)} characters ({value[:20]!r}): 1 to {MOST_CHARACTERS} are allowed")
    if not value.isprintable() or value != value.strip():
        raise InvalidEntry(
            f"{name} {value[:40]!r} holds an invisible character, or a space at its start or end: remove it"
        )
    return str.__str__(value)  # plain text: drivers would each write a member of a `(str, Enum)` in their own way


def checked_response(response: object) -> Response:
    """The response in the form that the ledger keeps. Raises `InvalidEntry`."""
    if not isinstance(response, Response):
        raise InvalidEntry(f"the response must be a postroom.idempotency.Response, not {type(response).__name__}")
    return Response(_http_status(response.status), _headers(response.headers), _body(response.body))


def _http_status(status: object) -> int:
    if not isinstance(status, int) or not 100 <= status <= 999:  # noqa: PLR2004 - three digits, as in HTTP
        raise InvalidEntry(f"the response's status {status!r} is not a number of three digits")
    return int(status)


def _body(body: object) -> bytes:
    if not isinstance(body, bytes | bytearray | memoryview):
        raise InvalidEntry(f"the response's body must be bytes, not {type(body).__name__}")
    return bytes(body)


def _headers(headers: Any) -> tuple[tuple[str, str], ...]:
    """Pairs of name and value; a mapping is accepted too."""
    try:
        pairs = [(name, value) for name, value in (headers.items() if isinstance(headers, Mapping) else headers)]
    except (TypeError, ValueError):
        raise InvalidEntry('the response\'s headers must be pairs of str: (("location", "/orders/7"), …)') from None
    return tuple((_header(name), _header(value)) for name, value in pairs)


def _header(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidEntry(f"a response header's name or value must be a str, not {type(value).__name__}")
    if wrong := _NO_HEADER.search(value):
        raise InvalidEntry(
            f"a response header holds {wrong[0]!r}, which HTTP cannot carry (no line ends, no NUL, Latin-1 only): "
            "remove or encode it"
        )
    return str.__str__(value)
