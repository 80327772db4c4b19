"""The HTTP status that a keyed request is answered with when a message did its work later."""

import re
from collections.abc import Mapping
from types import MappingProxyType

from postroom.rules.failures import Reason

SUCCEEDED = 200
EXPIRED = "EXPIRED"
"""The reason code of work that expired before it could be done."""
CANCELLED = "CANCELLED"
"""The reason code of work that an operator has cancelled."""
UNKNOWN = 502
"""The receiver failed for a reason of its own."""

_STATUS: Mapping[str, int] = MappingProxyType(
    {
        Reason.TIMEOUT: 504,
        Reason.CONNECTION: 502,
        Reason.INTERNAL_ERROR: 500,
        Reason.UNDECODABLE: 422,
        Reason.UNDECODABLE_PAYLOAD: 422,
        Reason.INVALID_TARGET: 422,
        Reason.INVALID_HEADER: 422,
        Reason.UNROUTABLE: 422,
        Reason.TARGET_UNAVAILABLE: 502,
        Reason.NOT_TAKEN: 502,
        Reason.MESSAGE_TOO_LARGE: 413,
        Reason.LEASE_EXPIRED: 500,
        Reason.MESSAGE_MISSING: 500,
        Reason.IDEMPOTENCY_CONFLICT: 409,
        EXPIRED: 504,
        CANCELLED: 410,
    }
)
_HTTP = re.compile("HTTP_([45][0-9]{2})")


def http_status(code: str) -> int:
    """Return the HTTP status for a reason code: from the table, else the receiver's own status, else 502."""
    answered = _HTTP.fullmatch(code)
    return int(answered[1]) if answered else _STATUS.get(code, UNKNOWN)
