"""Postroom: transactional outbox, inbox and idempotency keys in the database that a service already has."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from postroom import schema
    from postroom.admin import Admin, AsyncAdmin
    from postroom.compensation import CompensatableOperations
    from postroom.consumer import Consumer
    from postroom.events import event, upcaster
    from postroom.idempotency import Ledger
    from postroom.inbox import Inbox
    from postroom.incoming import Incoming
    from postroom.message import Message
    from postroom.outbox import Outbox
    from postroom.relay import Relay
    from postroom.retry import RetryPolicy
    from postroom.saga import Saga
    from postroom.twophase import TwoPhaseCommit

__all__ = [
    "Admin",
    "AsyncAdmin",
    "CompensatableOperations",
    "Consumer",
    "Inbox",
    "Incoming",
    "Ledger",
    "Message",
    "Outbox",
    "Relay",
    "RetryPolicy",
    "Saga",
    "TwoPhaseCommit",
    "event",
    "schema",
    "upcaster",
]

_HOMES = {
    "Admin": "postroom.admin",
    "AsyncAdmin": "postroom.admin",
    "CompensatableOperations": "postroom.compensation",
    "Consumer": "postroom.consumer",
    "Inbox": "postroom.inbox",
    "Incoming": "postroom.incoming",
    "Ledger": "postroom.idempotency",
    "Message": "postroom.message",
    "Outbox": "postroom.outbox",
    "Relay": "postroom.relay",
    "RetryPolicy": "postroom.retry",
    "Saga": "postroom.saga",
    "TwoPhaseCommit": "postroom.twophase",
    "event": "postroom.events",
    "upcaster": "postroom.events",
}


def __getattr__(name: str) -> object:
    """Import a public name on first use, so that a program pays only for what it uses."""
    if name == "schema":
        return import_module("postroom.schema")
    if name not in _HOMES:
        raise AttributeError(f"module 'postroom' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
