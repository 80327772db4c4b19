"""What a call of a saga carries to another service: an idempotency key, and headers that name it for the barrier.

Both are the same for every try of one step in one direction.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable
from urllib.parse import quote, unquote

from postroom.errors import InvalidMessage
from postroom.rules.naming import RESERVED, storable_id
from postroom.rules.saga_plan import Direction

KEY_HEADER = "idempotency-key"
SAGA_HEADER = "postroom-saga"
"""The instance: the saga's name and the instance's id, as in ``place_order/order-7``, in plain ASCII."""
STEP_HEADER = "postroom-saga-step"
DIRECTION_HEADER = "postroom-saga-direction"
DO, UNDO = "do", "undo"

_DIRECTIONS = {Direction.FORWARD: DO, Direction.BACK: UNDO}
_SAFE = "!$&'()*+,-./:;=@_~"
_CORRELATION = re.compile(r"([a-z0-9_.-]{1,50})/([a-z0-9_.-]{1,50})/(.+)")


def call_key(name: str, id: str, step: str, direction: Direction) -> str:
    """The idempotency key: at most 255 characters of plain ASCII, different for different steps."""
    return storable_id(f"{_instance(name, id)}/{step}/{_DIRECTIONS[direction]}")


def call_headers(name: str, id: str, step: str, direction: Direction) -> dict[str, str]:
    """Headers for an HTTP request or a message."""
    return {
        KEY_HEADER: call_key(name, id, step, direction),
        SAGA_HEADER: _instance(name, id),
        STEP_HEADER: step,
        DIRECTION_HEADER: _DIRECTIONS[direction],
    }


@dataclass(frozen=True, slots=True)
class Call:
    """A call as its receiver sees it, with the two marks of the receiver's barrier, which do and undo share."""

    direction: Direction
    done: str
    """The mark that says: do it no more."""
    undone: str
    """The mark that says: undo it no more."""


@runtime_checkable
class Headers(Protocol):
    """Headers as frameworks have them; not all of theirs are mappings."""

    def items(self) -> Iterable[tuple[str, str]]:
        """Names and values."""


def call_of(headers: object) -> Call:
    """Read a call from the headers of a request or message, whose names ignore case. Raises `InvalidMessage`."""
    if not isinstance(headers, Headers) or isinstance(headers, type):
        raise InvalidMessage(
            f"the headers of a saga's call must be a mapping of names to values, not {type(headers).__name__}: pass "
            "the headers of the request or message"
        )
    given = {str(name).lower(): value for name, value in headers.items()}
    instance, step, action = (_value(given, name) for name in (SAGA_HEADER, STEP_HEADER, DIRECTION_HEADER))
    directions = {name: direction for direction, name in _DIRECTIONS.items()}
    if action not in directions:
        raise InvalidMessage(f"header {DIRECTION_HEADER} is {action!r}: a saga's call says do or undo there")
    # Escaped, so that the space parts them whatever a stranger sends.
    place = " ".join(quote(part, safe=_SAFE, errors="surrogatepass") for part in (step, instance))
    return Call(directions[action], *(storable_id(f"{RESERVED}call:{name} {place}") for name in (DO, UNDO)))


def _value(headers: Mapping[str, object], name: str) -> str:
    value = headers.get(name)
    if not isinstance(value, str) or not value:
        raise InvalidMessage(
            f"header {name} of the saga's call is {'missing' if value is None else repr(value)}: the caller must send "
            "all of saga.headers, and proxies must let them pass"
        )
    return value


def correlation_id(name: str, id: str, event: str) -> str:
    """A text that another service echoes in its reply, and that says which instance waits for which event."""
    return f"{name}/{event}/{quote(id, safe=_SAFE)}"


def correlated(text: str) -> tuple[str, str, str] | None:
    """Name, id and event of a `correlation_id`; None if the text is none."""
    match = _CORRELATION.fullmatch(text)
    return None if match is None else (match[1], unquote(match[3]), match[2])


def _instance(name: str, id: str) -> str:
    return f"{name}/{quote(id, safe=_SAFE)}"
