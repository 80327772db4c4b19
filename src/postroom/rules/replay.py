"""What to do with a request that carries an idempotency key: run it, replay its response, or refuse it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import ceil
from typing import assert_never


class Status(StrEnum):
    """The status of a keyed request in the ledger."""

    IN_PROGRESS = "in_progress"
    SUCCEEDED = "succeeded"
    """The work is finished and its response is kept, whatever the response says."""
    FAILED = "failed"
    """The work failed: with a response, which is kept, or with an exception and no response."""


@dataclass(frozen=True, slots=True)
class Response:
    """The response to a request. Headers are pairs, because a name may occur more than once."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""

    def __repr__(self) -> str:
        """Leave out headers and body, which do not belong in logs."""
        return f"Response({self.status}, {len(self.headers)} headers, {len(self.body)} bytes)"


LONGEST_WAIT = 60
"""The longest wait, in seconds, that clients are told, however long a run may hold its entry."""
OK = Response(200)
UNANSWERED = Response(500)
"""Replayed for work that ended in an exception, if failures are replayed."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A request's place in the ledger: scope and key identify the request, the token identifies one run of it."""

    scope: str
    key: str
    digest: str
    token: int


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the ledger holds for a key, as of the database's clock."""

    digest: str
    status: Status
    response: Response | None = None
    """For a request in progress that was handed over with a response: that response."""
    lease_left: float = 0.0
    """Seconds until the current run's lease ends; zero or less if nobody holds the request."""
    expired: bool = False
    """The entry's retention period is over."""


class Start(StrEnum):
    """Why a request runs."""

    NEW = "new"
    FAILED = "failed"
    """An earlier run ended in an exception."""
    ABANDONED = "abandoned"
    """An earlier run's lease ended: it crashed or hangs, and its effects outside the database are unknown."""
    EXPIRED = "expired"
    """There was an entry, but its retention period is over."""


@dataclass(frozen=True, slots=True)
class Run:
    """Do the work, then record its result under this entry."""

    entry: Entry
    start: Start = Start.NEW

    @property
    def taken_over(self) -> bool:
        """Whether this run takes over an existing entry."""
        return self.start is not Start.NEW


@dataclass(frozen=True, slots=True)
class Replay:
    """The work is done, or was handed over: return this response again."""

    response: Response
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Conflict:
    """The key was used for a different request."""


@dataclass(frozen=True, slots=True)
class InProgress:
    """Another run of the same request holds the key."""

    retry_after: int
    """Whole seconds, from 1 to 60, until that run's lease ends unless it is renewed."""


Decision = Run | Replay | Conflict | InProgress
"""What to do with a request: run it, replay a response, or refuse it."""


def decide(recorded: Recorded | None, entry: Entry, *, replay_failures: bool = False) -> Decision:
    """Decide what to do with a request, given what the ledger holds for its key. `entry` is its entry if it runs.

    A recorded response is replayed, even one that reports an error or work that others will do. After an exception
    the work runs again or, with `replay_failures`, its failure is replayed.
    """
    if recorded is None:
        return Run(entry)
    if recorded.expired and recorded.lease_left <= 0:
        return Run(entry, Start.EXPIRED)
    if recorded.digest != entry.digest:
        return Conflict()
    match recorded.status:
        case Status.SUCCEEDED:
            return Replay(recorded.response or OK)
        case Status.FAILED:
            return _after_failure(recorded.response, entry, replay_failures=replay_failures)
        case Status.IN_PROGRESS:
            return _while_in_progress(recorded, entry)
        case _ as never:
            assert_never(never)


def _after_failure(response: Response | None, entry: Entry, *, replay_failures: bool) -> Decision:
    if response is None and not replay_failures:
        return Run(entry, Start.FAILED)
    return Replay(response or UNANSWERED, failed=True)


def _while_in_progress(recorded: Recorded, entry: Entry) -> Decision:
    if recorded.lease_left <= 0:
        return Run(entry, Start.ABANDONED)
    if recorded.response is not None:
        return Replay(recorded.response)
    left = ceil(round(recorded.lease_left, 3))  # databases round their clocks differently
    return InProgress(min(max(1, left), LONGEST_WAIT))


class Verdict(StrEnum):
    """What happens to an outcome that is reported for a key later on, for example by a relay."""

    ABSENT = "absent"
    """The ledger holds nothing for the key, or only an expired entry: the outcome creates one."""
    CONFIRMED = "confirmed"
    """The entry is in progress or failed, and takes the outcome."""
    ALREADY_SUCCEEDED = "already_succeeded"
    """The entry stays as it is: a success is never overwritten."""
    OTHER_DIGEST = "other_digest"
    """The key belongs to a different request, whose entry stays as it is."""


def verdict_on(recorded: Recorded | None, digest: str) -> Verdict:
    """Decide what happens to an outcome of the request with this digest, given what the ledger holds for its key."""
    if recorded is None:
        return Verdict.ABSENT
    if recorded.digest != digest:
        return Verdict.ABSENT if recorded.expired and recorded.lease_left <= 0 else Verdict.OTHER_DIGEST
    return Verdict.ALREADY_SUCCEEDED if recorded.status is Status.SUCCEEDED else Verdict.CONFIRMED


def is_reopened(recorded: Recorded, digest: str) -> bool:
    """Whether retrying the work of the request with this digest puts its entry back in progress."""
    return recorded.digest == digest and recorded.status is Status.FAILED
