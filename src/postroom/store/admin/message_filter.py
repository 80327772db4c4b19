"""Which messages an operator means."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from postroom.errors import InvalidSetting
from postroom.rules.fingerprints import fingerprint
from postroom.rules.lifecycle import State

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from postroom.message import Key


def _is_age(value: object) -> bool:
    return value is None or (isinstance(value, timedelta) and value >= timedelta(0))


def check_moment(name: str, moment: datetime | None) -> None:
    """Raise `InvalidSetting` for a moment without a time zone."""
    if moment is not None and moment.tzinfo is None:
        raise InvalidSetting(f"{name} = {moment} has no time zone: give it one, such as datetime.UTC")


@dataclass(frozen=True, slots=True)
class Filter:
    """Which messages: those that match every given field; all of them if none is given.

    `older_than`, `as_of`, `since` and `until` look at when a dead letter failed; of unsent messages, at when they were
    added.

    Raises `InvalidSetting` if an id is not a UUID, `older_than` is negative, or a moment has no time zone.
    """

    ids: Collection[UUID | str] | None = None
    queue: str | None = None
    topic: str | None = None
    key: Key | None = None
    """The ordering key, as `Outbox.add` takes it."""
    code: str | None = None
    """The reason code of the last failure."""
    older_than: timedelta | None = None
    """Only what failed, or was added, longer ago than this."""
    as_of: datetime | None = None
    """Only what had failed, or was added, by then. Take it from a page or a count to act on what it showed."""
    type: str | None = None
    since: datetime | None = None
    """Only what failed, or was added, then or later."""
    until: datetime | None = None
    """Only what failed, or was added, before then."""
    error: str | None = None
    """A text in the code or message of the last failure, in any case."""
    payload: str | None = None
    """A text in the payload, as UTF-8. Nothing is found in what is compressed or encrypted."""
    fingerprint: str | None = None
    """For dead letters: those whose error has this fingerprint, as `Admin.dead_letter_groups` tells it."""
    status: State | str | None = None
    """Of unsent messages, only those that are pending, or only those that are waiting; with `as_of`, that were then."""

    def __post_init__(self) -> None:
        if isinstance(self.ids, str | UUID):
            raise InvalidSetting(f"ids = {str(self.ids)!r} is one id: give a list of them")
        if self.ids is not None:
            object.__setattr__(self, "ids", tuple(map(message_id, self.ids)))
        if self.key is not None and not isinstance(self.key, str):
            object.__setattr__(self, "key", str(self.key))
        if self.status is not None:
            object.__setattr__(self, "status", _selectable(self.status))
        if not _is_age(self.older_than):
            raise InvalidSetting(f"older_than = {self.older_than} is not valid: give a timedelta that is not negative")
        for name in ("as_of", "since", "until"):
            check_moment(name, getattr(self, name))


def _selectable(status: State | str) -> State:
    if status not in (State.PENDING, State.WAITING, State.DEAD):
        raise InvalidSetting(f"status = {str(status)!r} is not valid in a filter: use pending, waiting or dead")
    return State(status)


ALL = Filter()
"""Every message."""


def has_fingerprint(which: Filter, message: str) -> bool:
    """Whether an error is one of those that a filter selects by fingerprint."""
    return which.fingerprint is None or fingerprint(message) == which.fingerprint


def message_id(value: UUID | str) -> UUID:
    """The id of a message. Raises `InvalidSetting` if it is not a UUID."""
    try:
        return value if isinstance(value, UUID) else UUID(value)
    except (ValueError, AttributeError, TypeError):
        raise InvalidSetting(f"{value!r} is not a message id: give a UUID, as the lists show it") from None
