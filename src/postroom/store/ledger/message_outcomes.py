"""Messages that belong to a ledger entry: which entry, and what their settlement means for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from postroom.rules.failures import CODE_LENGTH, cut
from postroom.rules.http_status import CANCELLED, EXPIRED, SUCCEEDED, UNKNOWN, http_status
from postroom.rules.naming import LEDGER
from postroom.rules.replay import Response
from postroom.store.ledger.confirmations import Confirmation
from postroom.store.outbox.leases import Claimed, Dead, Duplicate, Expired, Sent, Settlement

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from postroom.message import Message

_EntryName = tuple[
    Annotated[str, msgspec.Meta(max_length=255)],
    Annotated[str, msgspec.Meta(min_length=1, max_length=255)],
    Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")],
]
_decode_entry_name: Callable[[str], _EntryName] = msgspec.json.Decoder(_EntryName).decode
JSON = (("content-type", "application/json"),)
PROBLEM = (("content-type", "application/problem+json"),)


def is_ledgered(message: Message) -> bool:
    """Whether the message belongs to a ledger entry."""
    return bool(message.headers) and LEDGER in message.headers and _entry_name(message.headers) is not None


def failure_of(headers: Mapping[str, str]) -> Confirmation | None:
    """A failure for the entry of the message with these headers, whatever the reason; None if it has no entry."""
    return _confirmation(headers, succeeded=False, response=Response(UNKNOWN)) if _entry_name(headers) else None


def is_final(settlement: Settlement) -> bool:
    """Whether the settlement decides the message's ledger entry."""
    return type(settlement) in {Sent, Duplicate, Dead, Expired} and is_ledgered(settlement.claimed.message)


def intent_of(claimed: Claimed) -> Confirmation:
    """What the ledger would be told if the message were sent."""
    return _confirmation(claimed.message.headers, succeeded=True, response=Response(SUCCEEDED))


def entry_of(claimed: Claimed) -> tuple[str, str]:
    """Scope and key of the entry to which the message belongs."""
    intent = intent_of(claimed)
    return intent.scope, intent.key


def confirmation_of(settlement: Settlement) -> Confirmation:
    """What the ledger records. Of a failure only the reason's code: an error's text may quote the payload."""
    message = settlement.claimed.message
    if isinstance(settlement, Sent | Duplicate):
        response = Response(SUCCEEDED, JSON, _answer(settlement.answer))
        return _confirmation(message.headers, succeeded=True, response=response)
    return _failed(message.headers, cut(settlement.code, CODE_LENGTH) if isinstance(settlement, Dead) else EXPIRED)


def cancellation_of(headers: Mapping[str, str]) -> Confirmation | None:
    """What the ledger records when the message with these headers is cancelled; None if it has no entry."""
    return _failed(headers, CANCELLED) if _entry_name(headers) else None


def _failed(headers: Mapping[str, str], code: str) -> Confirmation:
    status = http_status(code)
    body = msgspec.json.encode({"title": code, "status": status, "reason_code": code})
    return _confirmation(headers, succeeded=False, response=Response(status, PROBLEM, body))


def _confirmation(headers: Mapping[str, str], *, succeeded: bool, response: Response) -> Confirmation:
    name = _entry_name(headers)
    if name is None:
        raise ValueError("the message belongs to no ledger entry")
    return Confirmation(*name, succeeded, response)


def _entry_name(headers: Mapping[str, str]) -> _EntryName | None:
    """Scope, key and digest. A header that cannot be read, as a producer in plain SQL may write, names no entry."""
    try:
        return _decode_entry_name(headers[LEDGER])
    except (KeyError, msgspec.DecodeError):
        return None


def _answer(answer: str | None) -> bytes:
    """The broker's answer: a JSON object as it is, anything else wrapped in one."""
    told = None if answer is None else cut(answer, len(answer))
    try:
        msgspec.json.decode(told or "", type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        return msgspec.json.encode({"status": "ok", "answer": told})
    return (told or "").encode()
