"""Decoding: a payload's JSON as an object of a class of the user's. Errors name what is wrong, never the values."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from postroom.errors import PayloadNotDecodable

if TYPE_CHECKING:
    from collections.abc import Callable

KINDS = "a dataclass, msgspec Struct, TypedDict, NamedTuple, attrs class or pydantic model, or a list or dict of them"
MOST_NAMED = 5
"""Faults of one payload that an error names."""

_PLACE = re.compile(r" - at `(?P<place>[^`]+)`$")
_QUOTING = re.compile(r"(Invalid (?:enum )?value).*")
_OWN_WORDS = (
    *("Expected ", "Object missing ", "Object contains ", "Invalid enum value", "Invalid value", "Invalid RFC3339"),
    *("Invalid UUID", "Invalid base64", "Invalid ISO8601", "Invalid timezone", "Invalid decimal", "Integer value out"),
    *(
        "Number out of range",
        "Duration is out of range",
        "Timestamp is out of range",
        "JSON is malformed",
        "Input data",
    ),
    "Array length",
)
"""How msgspec's own texts begin. All others are those of the user's classes, which may quote what they were given."""
_PYDANTICS = ("_type", "_parsing", "_too_long", "_too_short", "missing", "json_invalid", "extra_forbidden")
"""Pydantic's faults whose texts are its own, and do not quote the input."""


def decode(payload: bytes | None, kind: Any = Any) -> Any:
    """The payload's JSON as an object of this class. No payload, or an empty one, is ``null``.

    Raises `PayloadNotDecodable` where the payload is not that, and `TypeError` where the class is none that can be.
    """
    return _decoder(kind)(payload or b"null")


@lru_cache(512)
def _decoder(kind: Any) -> Callable[[bytes], Any]:
    """A function for this class: pydantic's, if it or a class below it is one of pydantic's; else msgspec's."""
    if _is_pydantics(kind):
        return _pydantics(kind)
    try:
        decoder = msgspec.json.Decoder(kind, dec_hook=_unknown)
    except TypeError as error:
        raise TypeError(f"decode cannot make a {kind!r} ({error}): give {KINDS}") from None
    pydantics: list[Callable[[bytes], Any]] = []

    def decoded(payload: bytes) -> Any:
        if pydantics:
            return pydantics[0](payload)
        try:
            return decoder.decode(payload)
        except _Unknown as unknown:
            if not _is_pydantics(unknown.kind):
                raise TypeError(f"decode cannot make a {unknown.kind.__name__}: give {KINDS}") from None
            pydantics.append(_pydantics(kind))
            return pydantics[0](payload)
        except msgspec.DecodeError as error:
            raise PayloadNotDecodable(f"the payload is no {_named(kind)}: {_told(str(error))}") from None
        except RecursionError:
            raise PayloadNotDecodable(f"the payload is no {_named(kind)}: it is nested too deeply") from None
        except UnicodeDecodeError:
            raise PayloadNotDecodable(f"the payload is no {_named(kind)}: it is not UTF-8") from None

    return decoded


def _pydantics(kind: Any) -> Callable[[bytes], Any]:
    from pydantic import TypeAdapter, ValidationError  # there, since one of its classes is

    adapter: TypeAdapter[Any] = TypeAdapter(kind)

    def decoded(payload: bytes) -> Any:
        try:
            return adapter.validate_json(payload)
        except ValidationError as error:
            faults = error.errors(include_url=False, include_context=False, include_input=False)
            named = "; ".join(_fault(one["loc"], one["type"], one["msg"]) for one in faults[:MOST_NAMED])
            more = f"; and {len(faults) - MOST_NAMED} more" if len(faults) > MOST_NAMED else ""
            raise PayloadNotDecodable(f"the payload is no {_named(kind)}: {named}{more}") from None

    return decoded


class _Unknown(Exception):
    """Msgspec asks for an object of a class that it does not know."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind


def _unknown(kind: Any, _value: object) -> Any:
    raise _Unknown(kind)


def _is_pydantics(kind: Any) -> bool:
    """Also of a dataclass that is pydantic's: to msgspec it is one like any other, and it would not be checked."""
    return hasattr(kind, "__pydantic_validator__") or any(map(_is_pydantics, get_args(kind)))


def _told(text: str) -> str:
    """Msgspec's text without the values that it quotes."""
    at = _PLACE.search(text)
    what = text[: at.start()] if at else text
    told = _QUOTING.sub(r"\1", what) if what.startswith(_OWN_WORDS) else "the class refuses it"
    return f"{told}, at {at['place']}" if at else told


def _fault(place: tuple[int | str, ...], kind: str, text: str) -> str:
    at = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return f"{text if kind.endswith(_PYDANTICS) else kind}, at ${at}"


def _named(kind: Any) -> str:
    if kind is Any:
        return "JSON"
    return kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)
