"""What a call of a saga carries to another service: an idempotency key, and headers that name it for the barrier.

Both are the same for every try of one step in one direction.
"""

import re
from urllib.parse import quote, unquote

from postroom.rules.naming import storable_id
from postroom.rules.saga_plan import Direction

KEY_HEADER = "idempotency-key"
SAGA_HEADER = "postroom-saga"
"""The instance: the saga's name and the instance's id, as in ``place_order/order-7``, in plain ASCII."""
STEP_HEADER = "postroom-saga-step"
DIRECTION_HEADER = "postroom-saga-direction"
DO, UNDO = "do", "undo"

_DIRECTIONS = {Direction.FORWARD: DO, Direction.BACK: UNDO}
_SAFE = "!$&'()*+,-./:;=@_~ "
_CORRELATION = re.compile(r"([a-z0-9_.-]+)/([a-z0-9_.-]+)/(.+)")


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


def correlation_id(name: str, id: str, event: str) -> str:
    """A text that another service echoes in its reply, and that says which instance waits for which event."""
    return f"{name}/{event}/{quote(id, safe=_SAFE)}"


def correlated(text: str) -> tuple[str, str, str] | None:
    """Name, id and event of a `correlation_id`; None if the text is none."""
    match = _CORRELATION.fullmatch(text)
    return None if match is None else (match[1], unquote(match[3]), match[2])


def _instance(name: str, id: str) -> str:
    return f"{name}/{quote(id, safe=_SAFE)}"
