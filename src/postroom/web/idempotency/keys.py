"""The idempotency key of a request: from its header, quoted or not, or else from a field of its body."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import msgspec

from postroom.errors import InvalidEntry
from postroom.idempotency import MOST_CHARACTERS
from postroom.web.idempotency.forms import MULTIPART, field_values

if TYPE_CHECKING:
    from postroom.web.requests import Request

HEADER = "idempotency-key"
FORM = "application/x-www-form-urlencoded"
# A structured field's string (RFC 9651), and parameters, which mean nothing here. Outside quotes there is no comma:
# servers join repeated headers by commas.
_QUOTED = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"(?: *;(?:[ !#-+\--~]|"(?:[ !#-\[\]-~]|\\["\\])*")*)?')
_VISIBLE = re.compile(r"[!-~](?:[ -~]*[!-~])?")


class InvalidKey(InvalidEntry):
    """What was sent is not a key. The message does not repeat it."""


def parse_key(value: str) -> str:
    """The key in the value of an ``Idempotency-Key`` header: ``"7f9c"`` and ``7f9c`` are the same key.

    A key has 1 to 255 visible ASCII characters, with spaces only inside. Raises `InvalidEntry` for anything else; the
    error does not repeat the value.
    """
    bare = value.strip(" \t")
    quoted = _QUOTED.fullmatch(bare)
    if quoted is None and (bare.startswith('"') or "," in bare):
        raise InvalidKey("the header is neither one quoted string nor one without quotes and commas")
    key = bare if quoted is None else re.sub(r"\\(.)", r"\1", quoted[1])
    if not _VISIBLE.fullmatch(key) or len(key) > MOST_CHARACTERS:
        raise InvalidKey(f"the key in the header is not 1 to {MOST_CHARACTERS} visible ASCII characters")
    return key


def key_in_header(request: Request) -> str | None:
    """The key in the header, None if there is no such header. Raises `InvalidKey`."""
    values = request.values(HEADER)
    if len(values) > 1:
        raise InvalidKey("the header was sent more than once")
    return parse_key(values[0]) if values else None


def may_hold_key(request: Request) -> bool:
    """Whether the body is of a type that has fields."""
    return request.content_type in {FORM, MULTIPART} or _is_json(request.content_type)


def key_in_body(request: Request, body: bytes, field: str) -> str | None:
    """The key in a field of a JSON object or a form. Raises `InvalidKey`.

    A malformed body has none: the application reports what is wrong with it.
    """
    if request.content_type in {FORM, MULTIPART}:
        found: Any = _form_field(request, body, field)
    else:
        found = _json_field(body, field)
    if found is None or isinstance(found, str):
        return found
    raise InvalidKey(f"the field {field} of the body is not a text")


def _is_json(content_type: str) -> bool:
    return content_type == "application/json" or content_type.endswith("+json")


def _json_field(body: bytes, field: str) -> Any:
    try:
        return _decoder(field).decode(body).key
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _form_field(request: Request, body: bytes, field: str) -> str | None:
    found = _uploaded_values(request, body, field) if request.content_type == MULTIPART else _values(body, field)
    if len(found) > 1:
        raise InvalidKey(f"the field {field} of the body was sent more than once")
    return found[0] if found else None


def _values(body: bytes, field: str) -> list[str]:
    try:
        fields = parse_qs(body.decode("ascii"), keep_blank_values=True, strict_parsing=False, errors="strict")
    except ValueError:
        return []
    return fields.get(field, [])


def _uploaded_values(request: Request, body: bytes, field: str) -> list[str]:
    try:
        return [value.decode() for value in field_values(request.header("content-type") or "", body, field)]
    except UnicodeDecodeError:
        raise InvalidKey(f"the field {field} of the body is not a text") from None


@lru_cache(maxsize=16)
def _decoder(field: str) -> msgspec.json.Decoder[Any]:
    kind = msgspec.defstruct("Keyed", [("key", Any, msgspec.field(name=field, default=None))])
    return msgspec.json.Decoder(kind)
