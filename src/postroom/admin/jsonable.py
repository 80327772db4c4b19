"""The one place where results become JSON: what `--json` prints. Moments stay moments, for whoever encodes it."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from postroom.admin.details import MessageDetails
from postroom.admin.replay import Replayed
from postroom.admin.results import ActResult, Page, Refusal
from postroom.admin.saga_details import SagaDetails
from postroom.admin.saga_json import acted_json, counts_json, saga_json
from postroom.admin.saga_results import SagaActResult
from postroom.admin.transaction_json import transaction_counts_json, transaction_details_json, transaction_json
from postroom.admin.transaction_steps import TransactionDetails
from postroom.store.admin.dead_letters import DeadLetter
from postroom.store.admin.inbox_ledger_lookup import LedgerEntry
from postroom.store.admin.status import Status, Worker
from postroom.store.admin.transactions import ListedTransaction

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import DataclassInstance

    from postroom.store.admin.audit import AuditEntry


def as_json(result: DataclassInstance | Sequence[DataclassInstance], *, payload: bool = False) -> Any:
    """A result of `Admin` in the form that `--json` prints: a dict, or a list for a page or a tuple.

    `payload` adds a message's payload: as text, or in base64 where it is not text; of a saga, its data, results and
    events.
    """
    if isinstance(result, Page | Sequence):
        return [as_json(item) for item in result]
    if isinstance(result, SagaDetails):
        return saga_json(result, payload=payload)
    if isinstance(result, MessageDetails):
        return {**_message(result), **(_payload(result) if payload else {})}
    form: Callable[[Any], dict[str, Any]] = _FORMS.get(type(result), asdict)
    return form(result)


DONE = {"requeue": "requeued", "discard": "discarded", "cancel": "cancelled"}
"""What an act has done."""


def refused_words(result: ActResult) -> dict[str, str]:
    """The ids that an act left alone, each with what the message is, in a word or two."""
    words = {Refusal.SENDING: "being sent"} if result.action == "cancel" else {}
    return {str(one.id): words.get(one.status, one.status.value) for one in result.refused}


def _status(status: Status) -> dict[str, Any]:
    counts = {
        field.name: getattr(status, field.name)
        for field in fields(status)
        if field.name not in ("workers", "targets", "queues", "sagas", "transactions", "stream")
    }
    return {
        **counts,
        "relays": [_worker(worker) for worker in status.workers],
        "targets": [asdict(target) for target in status.targets],
        "sagas": counts_json(status.sagas),
        "transactions": transaction_counts_json(status.transactions),
        "stream": None if status.stream is None else {"mode": status.stream.mode, "reader": status.stream.owner},
    }


def _worker(worker: Worker) -> dict[str, Any]:
    return {"worker" if name == "name" else name: value for name, value in asdict(worker).items()}


def _letter(letter: DeadLetter) -> dict[str, Any]:
    return {name: value for name, value in asdict(letter).items() if name != "lane"}


def _acted(result: ActResult) -> dict[str, Any]:
    return {DONE[result.action]: result.count, "not_done": refused_words(result)}


def _message(told: MessageDetails) -> dict[str, Any]:
    delivery, receipt, lease = told.delivery, told.receipt, told.lease
    return {
        "id": str(told.id),
        "position": told.position,
        "queue": told.queue,
        "topic": told.topic,
        "type": told.type,
        "key": told.key,
        "aggregate_type": told.aggregate_type,
        "aggregate_id": told.aggregate_id,
        "idempotency_key": told.idempotency_key,
        "content_type": told.content_type,
        "payload_bytes": told.payload_bytes,
        "headers": list(told.headers),
        "digest": told.digest,
        "created_at": told.created_at,
        "expires_at": told.expires_at,
        "attempts": told.attempts,
        "claims": delivery.claims if delivery else None,
        "due": delivery.due if delivery else None,
        "failed_at": delivery.failed_at if delivery else None,
        "error_code": delivery.error_code if delivery else None,
        "error_message": delivery.error_message if delivery else None,
        "lane": delivery.lane if delivery else None,
        "read_to": lease.read_to if lease else None,
        "owner": lease.owner if lease else None,
        "leased_until": lease.until if lease else None,
        "sent_at": receipt.sent_at if receipt else None,
        "outcome": receipt.outcome if receipt else None,
        "answer": receipt.answer if receipt else None,
        "status": told.status,
        "reason": told.why.reason.value,
        "explanation": told.why.explanation,
        "blocker": asdict(told.why.blocker) if told.why.blocker else None,
        "relays_down": [{"worker": worker.name, "broker_down": worker.broker_down} for worker in told.why.workers_down],
        "history": [_act(entry) for entry in told.history],
        "timeline": [asdict(event) for event in told.timeline],
        "replay_of": told.replay_of,
        **({} if told.header_values is None else {"header_values": dict(told.header_values)}),
    }


def _act(entry: AuditEntry) -> dict[str, Any]:
    return {"at": entry.at, "action": entry.action, "actor": entry.actor}


def _payload(told: MessageDetails) -> dict[str, Any]:
    return _bytes("payload", told.payload)


def _bytes(name: str, value: bytes | None) -> dict[str, Any]:
    """Bytes as text, or in base64 where they are not text."""
    if value is None:
        return {name: None}
    try:
        return {name: value.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode("ascii")}


def _replayed(done: Replayed) -> dict[str, Any]:
    return {"id": str(done.id), "original": str(done.original), "discarded": done.discarded}


def _ledger_entry(entry: LedgerEntry) -> dict[str, Any]:
    told = {name: value for name, value in asdict(entry).items() if name not in ("headers", "response_body")}
    if entry.headers is None:
        return told
    return {**told, "headers": dict(entry.headers), **_bytes("response_body", entry.response_body)}


_FORMS: dict[type, Callable[[Any], dict[str, Any]]] = {
    Status: _status,
    Worker: _worker,
    DeadLetter: _letter,
    ActResult: _acted,
    Replayed: _replayed,
    LedgerEntry: _ledger_entry,
    SagaActResult: acted_json,
    ListedTransaction: transaction_json,
    TransactionDetails: transaction_details_json,
}
"""Those whose JSON is not their fields as they are."""
