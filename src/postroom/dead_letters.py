"""Dead letters: messages that were given up. List them, look at one, re-queue or discard them.

Each function is an operation that a store runs, sync or async::

    store.run(dead_letters.requeue(store.names, Choice(topic="orders"), by="ada"))
    await store.run(dead_letters.listed(store.names))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postroom import insight
from postroom.errors import MessageNotFound
from postroom.rules.lifecycle import State
from postroom.store.admin.dead_letters import ALL, Choice, Counted, DeadLetter, DeadLetters, Done, Tell
from postroom.store.admin.message_lookup import MessageLookup

if TYPE_CHECKING:
    from collections.abc import Collection
    from uuid import UUID

    from postroom.store.sql.names import Names
    from postroom.store.sql.steps import Steps

__all__ = ["Choice", "Counted", "DeadLetter", "Done", "count", "discard", "listed", "others", "requeue", "show"]


def listed(names: Names, choice: Choice = ALL, limit: int = 50, before: int | None = None) -> Steps[list[DeadLetter]]:
    """Dead letters of all queues, newest first; `before` pages on behind a position."""
    return (yield from DeadLetters(names).listed(choice, limit, before))


def count(names: Names, choice: Choice = ALL, old: float = 0) -> Steps[Counted]:
    """How many there are, and how many of them were recorded more than `old` seconds ago.

    To re-queue one that is older than the inbox's marks may double its effect: a receiver that got it, though the
    relay never heard so, takes it for new.
    """
    return (yield from DeadLetters(names).count(choice, old))


def show(names: Names, identifier: UUID) -> Steps[dict[str, Any]]:
    """All about one dead letter, as `insight.message` tells it. Raises `MessageNotFound` where it is not dead."""
    found = yield from insight.message(MessageLookup(names), identifier)
    if found["status"] != State.DEAD:
        raise MessageNotFound(
            f"message {identifier} is not dead, it is {_named(found)}: see `postroom messages show {identifier}`"
        )
    return found


def requeue(names: Names, choice: Choice = ALL, by: str = "", tell: Tell | None = None) -> Steps[Done]:
    """Send dead messages after all: attempts back to 0, error and due time cleared; `by` is noted in the audit.

    A keyed request that had failed with its message is in progress again. In batches, each a transaction of its own.
    What is not dead is left alone; the ids that come back are those that were.
    """
    return (yield from DeadLetters(names).requeue(choice, by, tell))


def discard(names: Names, choice: Choice = ALL, by: str = "", tell: Tell | None = None) -> Steps[Done]:
    """Remove dead messages for good; otherwise as `requeue`. The audit keeps what they were, without the payload."""
    return (yield from DeadLetters(names).discard(choice, by, tell))


def others(names: Names, ids: Collection[UUID]) -> Steps[dict[UUID, str]]:
    """What these messages are, in a word, where an act found that they are not dead."""
    lookup = MessageLookup(names)
    found: dict[UUID, str] = {}
    for identifier in ids:
        try:
            found[identifier] = _named((yield from insight.message(lookup, identifier)))
        except MessageNotFound:
            found[identifier] = "not there"
    return found


def _named(found: dict[str, Any]) -> str:
    return str(found["status"] or "incomplete")
