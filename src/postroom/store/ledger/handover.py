"""Handover: the message that does a request's work takes over its ledger entry, in the transaction that adds it.

The row's token shows how far this has come. It starts as the run's own token; adding a message flips one bit, handing
the entry over flips another. So the run can still recognise its entry, but can no longer end it.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby, pairwise
from operator import attrgetter
from typing import TYPE_CHECKING

from postroom.errors import InvalidMessage, LeaseLost
from postroom.rules.replay import Status
from postroom.store.ledger.entries import LEDGER_ENTRIES, LedgerRow
from postroom.store.sql.operations import chunks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from postroom.rules.replay import Entry, Response
    from postroom.store.ledger.entries import LedgerEntries
    from postroom.store.sql.names import Names
    from postroom.store.sql.steps import Steps

MESSAGE = 1 << 60
"""The bit that adding a message for the entry flips."""
HANDED_OVER = 1 << 61
"""The bit that `hand_over` flips."""


class Handover:
    """Gives entries to the messages that were added for them."""

    def __init__(self, names: Names) -> None:
        self._entries = LEDGER_ENTRIES[names.dialect](names)

    def leave(self, left: Sequence[Entry]) -> Steps[None]:
        """Give each entry to the message that was just added for it.

        Raises `LeaseLost` if a run no longer holds its entry, and `InvalidMessage` if an entry already has a message.
        Nothing has been written then.
        """
        tokens: list[tuple[Entry, int]] = []
        for scope, those in _chunks(left):
            keys = sorted({entry.key for entry in those})
            found = yield from self._entries.select(scope, keys, self._entries.dialect.for_update)
            tokens += [(entry, _open_token(found.get(entry.key), entry)) for entry in those]
        for (entry, _), (following, _) in pairwise(tokens):
            if (entry.scope, entry.key) == (following.scope, following.key):
                raise InvalidMessage(_second(entry))
        for entry, token in tokens:
            yield from self._entries.leave(replace(entry, token=token), token ^ MESSAGE)


def hand_over(entries: LedgerEntries, entry: Entry, response: Response | None) -> Steps[Entry | None]:
    """Give up the entry, with or without a message. Returns its new holder's entry; None if it was not the run's."""
    for token in (entry.token, entry.token ^ MESSAGE):
        heir = replace(entry, token=token ^ HANDED_OVER)
        if (yield from entries.hand_over(replace(entry, token=token), heir.token, response)):
            return heir
    return None


def answer(entries: LedgerEntries, entry: Entry, response: Response) -> Steps[bool]:
    """Record what clients are told until the entry's message is sent. False if no message has the entry.

    A response that `hand_over` recorded stays, and so does what has become of the message since.
    """
    if (yield from entries.hand_over(replace(entry, token=entry.token ^ MESSAGE), entry.token ^ MESSAGE, response)):
        return True
    return (yield from has_message(entries, entry))


def has_message(entries: LedgerEntries, entry: Entry) -> Steps[bool]:
    """Whether a message has taken over the entry."""
    found = (yield from entries.select(entry.scope, [entry.key])).get(entry.key)
    return found is not None and _is_with_message(found.token, entry)


def _open_token(found: LedgerRow | None, entry: Entry) -> int:
    """The token of the row, if a message can take it over."""
    if found is not None and _is_with_message(found.token, entry):
        raise InvalidMessage(_second(entry))
    is_open = found is not None and found.recorded.status is Status.IN_PROGRESS
    if found is None or not is_open or found.token not in {entry.token, entry.token ^ HANDED_OVER}:
        raise LeaseLost(
            f"the request with the idempotency key {entry.key!r} is not this run's to leave to a message: it was "
            "finished, another run took it over, or its ledger is in another database than this connection's. Add the "
            "message before you finish, and roll back now"
        )
    return found.token


def _is_with_message(token: int, entry: Entry) -> bool:
    return token in {entry.token ^ MESSAGE, entry.token ^ MESSAGE ^ HANDED_OVER}


def _second(entry: Entry) -> str:
    return (
        f"the request with the idempotency key {entry.key!r} has a message already, and a second one would never be "
        "sent: give ledger=… to the message whose fate decides the request's, and to no other"
    )


def _chunks(entries: Iterable[Entry]) -> Iterator[tuple[str, Sequence[Entry]]]:
    in_order = sorted(entries, key=attrgetter("scope", "key"))
    for scope, those in groupby(in_order, key=attrgetter("scope")):
        for chunk in chunks(list(those)):
            yield scope, chunk
