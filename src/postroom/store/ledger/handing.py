"""Handing over: a keyed request is left to the message that does its work, in the transaction that adds it.

A row tells by its token how far it is: its run's own, or that with one bit turned once a message has been added for it,
and another once its run has handed it over. So whoever holds the run's token can tell what became of it, and can no
longer end it.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby, pairwise
from operator import attrgetter
from typing import TYPE_CHECKING

from postroom.errors import InvalidMessage, LeaseLost
from postroom.rules.replay import Status
from postroom.store.ledger.entries import KEEPERS, Found
from postroom.store.sql.operations import chunks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from postroom.rules.replay import Entry, Response
    from postroom.store.ledger.entries import Keeper
    from postroom.store.sql.names import Names
    from postroom.store.sql.steps import Steps

MESSAGE = 1 << 60
"""The bit that is turned when a message was added for the entry."""
HANDED_OVER = 1 << 61
"""The bit that is turned by `hand_over`."""


class Handing:
    """Leaves entries to messages."""

    def __init__(self, names: Names) -> None:
        self._keeper = KEEPERS[names.dialect](names)

    def leave(self, entries: Sequence[Entry]) -> Steps[None]:
        """Leave each entry to the message that was just added for it.

        Raises `LeaseLost` where one is no longer its run's, `InvalidMessage` where one has a message already; then
        nothing was written.
        """
        tokens: list[tuple[Entry, int]] = []
        for scope, those in _chunks(entries):
            keys = sorted({entry.key for entry in those})
            found = yield from self._keeper.select(scope, keys, self._keeper.dialect.for_update)
            tokens += [(entry, _open_token(found.get(entry.key), entry)) for entry in those]
        for (entry, _), (following, _) in pairwise(tokens):
            if (entry.scope, entry.key) == (following.scope, following.key):
                raise InvalidMessage(_second(entry))
        for entry, token in tokens:
            yield from self._keeper.leave(replace(entry, token=token), token ^ MESSAGE)


def hand_over(keeper: Keeper, entry: Entry, response: Response | None) -> Steps[Entry | None]:
    """Give up the entry, also after a message was added for it. Returns that of the heir; None if it was not ours."""
    for token in (entry.token, entry.token ^ MESSAGE):
        heir = replace(entry, token=token ^ HANDED_OVER)
        if (yield from keeper.hand_over(replace(entry, token=token), heir.token, response)):
            return heir
    return None


def answer(keeper: Keeper, entry: Entry, response: Response) -> Steps[bool]:
    """What whoever asks is told until the entry's message is sent. False where it was not left to a message.

    What `hand_over` was given counts, and what has become of the message since.
    """
    if (yield from keeper.hand_over(replace(entry, token=entry.token ^ MESSAGE), entry.token ^ MESSAGE, response)):
        return True
    return (yield from has_message(keeper, entry))


def has_message(keeper: Keeper, entry: Entry) -> Steps[bool]:
    """Whether the entry was left to a message."""
    found = (yield from keeper.select(entry.scope, [entry.key])).get(entry.key)
    return found is not None and _is_with_message(found.token, entry)


def _open_token(found: Found | None, entry: Entry) -> int:
    """The token of a row for which a message can be added."""
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
