"""Decode JSON payloads to users' classes. Errors say what is wrong, and never quote values."""

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
"""Faults of one payload that an error lists."""

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
"""How msgspec's own texts start. Any other text comes from users' classes, which may quote the input."""
_PYDANTICS = ("_type", "_parsing", "_too_long", "_too_short", "missing", "json_invalid", "extra_forbidden")
"""Pydantic's error types whose texts do not quote the input."""


def decode(payload: bytes | None, kind: Any = Any) -> Any:
    """Decode a JSON payload to this class. No payload, or an empty one, counts as ``null``.

    Raises `PayloadNotDecodable` if the payload does not fit, and `TypeError` if the class is not supported.
    """
    return _decoder(kind)(payload or b"null")


@lru_cache(512)
def _decoder(kind: Any) -> Callable[[bytes], Any]:
    """The decoder for this class: pydantic's if it, or a class inside it, is pydantic's; else msgspec's."""
    if is_pydantics(kind):
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
            if not is_pydantics(unknown.kind):
                raise TypeError(f"decode cannot make a {unknown.kind.__name__}: give {KINDS}") from None
            pydantics.append(_pydantics(kind))
            return pydantics[0](payload)
        except msgspec.DecodeError as error:
            raise PayloadNotDecodable(f"the payload is not {_named(kind)}: {_without_values(str(error))}") from None
        except RecursionError:
            raise PayloadNotDecodable(f"the payload is not {_named(kind)}: it is nested too deeply") from None
        except UnicodeDecodeError:
            raise PayloadNotDecodable(f"the payload is not {_named(kind)}: it is not UTF-8") from None

    return decoded


@lru_cache(512)
def _pydantics_of(kind: Any) -> Callable[[Any], Any]:
    return _pydantics(kind, plain=True)


def _pydantics(kind: Any, *, plain: bool = False) -> Callable[[Any], Any]:
    from pydantic import TypeAdapter, ValidationError  # installed, because one of its classes is in use

    adapter: TypeAdapter[Any] = TypeAdapter(kind)

    validate: Callable[[Any], Any] = adapter.validate_python if plain else adapter.validate_json

    def decoded(payload: Any) -> Any:
        try:
            return validate(payload)
        except ValidationError as error:
            faults = error.errors(include_url=False, include_context=False, include_input=False)
            named = "; ".join(_fault(one["loc"], one["type"], one["msg"]) for one in faults[:MOST_NAMED])
            more = f"; and {len(faults) - MOST_NAMED} more" if len(faults) > MOST_NAMED else ""
            raise PayloadNotDecodable(f"the payload is not {_named(kind)}: {named}{more}") from None

    return decoded


def convert(data: Any, kind: Any) -> Any:
    """Make an object of this class of dicts, lists and values, as decoders of other formats return them.

    Raises like `decode`.
    """
    if is_pydantics(kind):
        return _pydantics_of(kind)(data)
    try:
        return msgspec.convert(data, kind, dec_hook=_unknown)
    except _Unknown as unknown:
        if not is_pydantics(unknown.kind):
            raise TypeError(f"decode cannot make a {unknown.kind.__name__}: give {KINDS}") from None
        return _pydantics_of(kind)(data)
    except msgspec.ValidationError as error:
        raise PayloadNotDecodable(f"the payload is not {_named(kind)}: {_without_values(str(error))}") from None


class _Unknown(Exception):
    """Msgspec needs an object of a class that it does not know."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind


def _unknown(kind: Any, _value: object) -> Any:
    raise _Unknown(kind)


def is_pydantics(kind: Any) -> bool:
    """Whether it, or a class inside it, is pydantic's.

    Also true for pydantic's dataclasses, which msgspec would take for plain ones and not validate.
    """
    return hasattr(kind, "__pydantic_validator__") or any(map(is_pydantics, get_args(kind)))


def _without_values(text: str) -> str:
    """Msgspec's text without the values that it quotes."""
    at = _PLACE.search(text)
    what = text[: at.start()] if at else text
    shown = _QUOTING.sub(r"\1", what) if what.startswith(_OWN_WORDS) else "the class refuses it"
    return f"{shown}, at {at['place']}" if at else shown


def _fault(place: tuple[int | str, ...], kind: str, text: str) -> str:
    at = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return f"{text if kind.endswith(_PYDANTICS) else kind}, at ${at}"


def _named(kind: Any) -> str:
    if kind is Any:
        return "valid JSON"
    return f"a valid {kind.__name__ if isinstance(kind, type) and not get_args(kind) else kind}"
