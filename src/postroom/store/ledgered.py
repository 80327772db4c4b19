"""Messages that belong to a ledger entry, and what their settlement tells the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from postroom.message import LEDGER, Message
from postroom.rules.answers import EXPIRED, SUCCEEDED, UNKNOWN, http_status
from postroom.rules.replay import Response
from postroom.store.confirming import Confirmation
from postroom.store.leases import Claimed, Dead, Duplicate, Expired, Sent, Settlement

if TYPE_CHECKING:
    from collections.abc import Mapping

JSON = (("content-type", "application/json"),)
PROBLEM = (("content-type", "application/problem+json"),)


def is_ledgered(message: Message) -> bool:
    """Whether the message belongs to a ledger entry."""
    return bool(message.headers) and LEDGER in message.headers


def failure_of(headers: Mapping[str, str]) -> Confirmation | None:
    """That the work of the message with these headers has failed, whatever the reason; None if it is nobody's."""
    return _confirmation(headers, succeeded=False, response=Response(UNKNOWN)) if LEDGER in headers else None


def is_final(settlement: Settlement) -> bool:
    """Whether the settlement is what the ledger waits for."""
    return type(settlement) in {Sent, Duplicate, Dead, Expired} and is_ledgered(settlement.claimed.message)


def intent_of(claimed: Claimed) -> Confirmation:
    """What the ledger would be told if the message were sent."""
    return _confirmation(claimed.message.headers, succeeded=True, response=Response(SUCCEEDED))


def confirmation_of(settlement: Settlement) -> Confirmation:
    """What the ledger is told. Of a failure it keeps the reason's code: an error's text may quote the payload."""
    message = settlement.claimed.message
    if isinstance(settlement, Sent | Duplicate):
        response = Response(SUCCEEDED, JSON, _answer(settlement.answer))
        return _confirmation(message.headers, succeeded=True, response=response)
    code = settlement.code if isinstance(settlement, Dead) else EXPIRED
    status = http_status(code)
    body = msgspec.json.encode({"title": code, "status": status, "reason_code": code})
    return _confirmation(message.headers, succeeded=False, response=Response(status, PROBLEM, body))


def _confirmation(headers: Mapping[str, str], *, succeeded: bool, response: Response) -> Confirmation:
    scope, key, digest = msgspec.json.decode(headers[LEDGER], type=tuple[str, str, str])
    return Confirmation(scope, key, digest, succeeded, response)


def _answer(answer: str | None) -> bytes:
    """What the broker said: a JSON object as it is, anything else in one."""
    try:
        msgspec.json.decode(answer or "", type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        return msgspec.json.encode({"status": "ok", "answer": answer})
    return (answer or "").encode()
