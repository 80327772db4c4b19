"""The idempotency key of a request: from its header, quoted or not, or else from a field of its body."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import msgspec

if TYPE_CHECKING:
    from postroom.web.requests import Request

HEADER = "idempotency-key"
FORM = "application/x-www-form-urlencoded"
# A structured field's string (RFC 9651), and parameters, which have no meaning here.
_QUOTED = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"(?: *;[ -~]*)?')
_BARE = re.compile(r"[!#-~](?:[ -~]*[!-~])?")


class InvalidKey(Exception):
    """There is a key, but it cannot be one."""


def key_in_header(request: Request) -> str | None:
    """The key as the header has it: a quoted string or a bare one. Raises `InvalidKey`."""
    values = request.values(HEADER)
    if not values:
        return None
    if len(values) > 1:
        raise InvalidKey("the header was sent more than once")
    value = values[0].strip(" \t")
    if quoted := _QUOTED.fullmatch(value):
        return re.sub(r"\\(.)", r"\1", quoted[1])
    if not _BARE.fullmatch(value):
        raise InvalidKey("the header is neither a quoted string nor visible ASCII characters")
    return value


def may_hold_key(request: Request) -> bool:
    """Whether the body is of a kind that has fields."""
    return request.content_type == FORM or _is_json(request.content_type)


def key_in_body(request: Request, body: bytes, field: str) -> str | None:
    """The key as a field of a JSON object or a form has it. Raises `InvalidKey`.

    A body that cannot be read has none: what is wrong with it is for the application to say.
    """
    found = _form_field(body, field) if request.content_type == FORM else _json_field(body, field)
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


def _form_field(body: bytes, field: str) -> Any:
    try:
        fields = parse_qs(body.decode("ascii"), keep_blank_values=True, strict_parsing=False, errors="strict")
    except ValueError:
        return None
    found = fields.get(field)
    if found and len(found) > 1:
        raise InvalidKey(f"the field {field} of the body was sent more than once")
    return found[0] if found else None


@lru_cache(maxsize=16)
def _decoder(field: str) -> msgspec.json.Decoder[Any]:
    kind = msgspec.defstruct("Keyed", [("key", Any, msgspec.field(name=field, default=None))])
    return msgspec.json.Decoder(kind)
