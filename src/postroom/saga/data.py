"""What a saga keeps as JSON: its data, the results of its steps, and the events that it waits for."""

from __future__ import annotations

import types
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

import msgspec

from postroom.decoding import KINDS, decode
from postroom.encoding import encode_json
from postroom.errors import InvalidSetting, PayloadNotDecodable, PayloadNotEncodable, PayloadTooLarge, SagaNotDecodable

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_DATA_BYTES = 64 * 1024
"""The most bytes of JSON of a saga's data, of each result and of each event."""
NO_VALUE = b"null"

T = TypeVar("T")


def to_json(value: object, what: str, limit: int = MAX_DATA_BYTES) -> bytes:
    """Encode a value. `what` names it in errors, as in ``the result of charge``.

    Raises `PayloadNotEncodable` or `PayloadTooLarge`, neither of which quotes the value.
    """
    try:
        encoded = encode_json(value)
    except PayloadNotEncodable as error:
        raise PayloadNotEncodable(f"{what}: {error}") from None
    if len(encoded) > limit:
        raise PayloadTooLarge(
            f"{what} has {len(encoded):,} bytes of JSON, the limit is {limit:,}: keep large values in a table of your "
            "own and pass their key, or raise max_data_bytes"
        )
    return encoded


def from_json(encoded: bytes | None, kind: Any, what: str) -> Any:
    """Decode a value to this class. Raises `SagaNotDecodable`, which does not quote the value."""
    try:
        return decode(encoded, kind)
    except PayloadNotDecodable as error:
        raise SagaNotDecodable(f"{what}: {error}") from None
    except TypeError as error:
        raise InvalidSetting(f"{what}: {error}") from None


def data_kind(given: object) -> Any:
    """The class of a saga's data, checked; any JSON if none is given. Raises `InvalidSetting`."""
    if given is None:
        return Any
    if _is_supported(given):
        return given
    raise InvalidSetting(f"data = {given!r} is not a class that JSON can become: give {KINDS}")


def kind_of(function: Callable[..., Any], place: str) -> Any:
    """The class that a function's annotation asks for; any JSON if there is none, or none that JSON can become.

    `place` is a parameter, or ``return``. Other annotations may name what exists only for type checkers.
    """
    plain = getattr(function, "__func__", getattr(function, "func", function))
    annotation = getattr(plain, "__annotations__", {}).get(place, Any)
    holder: Any = types.SimpleNamespace(__annotations__={place: annotation})
    try:
        found = get_type_hints(holder, globalns=getattr(plain, "__globals__", {}))[place]
    except Exception:  # noqa: BLE001 - whatever an annotation raises, it names no class here
        return Any
    return found if _is_supported(found) else Any


def _is_supported(kind: Any) -> bool:
    try:
        return _supports(kind)
    except TypeError:  # not hashable
        return False


@lru_cache(512)
def _supports(kind: Any) -> bool:
    if hasattr(kind, "__pydantic_validator__"):
        return True
    try:
        return not isinstance(msgspec.inspect.type_info(kind), msgspec.inspect.CustomType)
    except (TypeError, NameError):
        return False
