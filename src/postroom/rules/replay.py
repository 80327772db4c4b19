"""What to do with a request that carries an idempotency key: run it, replay its response, or refuse it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import ceil
from typing import assert_never


class Status(StrEnum):
    """What a ledger entry says of its request."""

    IN_PROGRESS = "in_progress"
    SUCCEEDED = "succeeded"
    """The work came to its end and its response is kept, whatever the response says."""
    FAILED = "failed"
    """The work was given up: with a response, which is kept, or after an exception, without one."""


@dataclass(frozen=True, slots=True)
class Response:
    """What a request was answered. Headers are pairs, since a name may come more than once."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""

    def __repr__(self) -> str:
        """Without headers and body, which do not belong in logs."""
        return f"Response({self.status}, {len(self.headers)} headers, {len(self.body)} bytes)"


LONGEST_WAIT = 60
"""Seconds after which it is worth asking again, however long a run may hold its entry."""
OK = Response(200)
UNANSWERED = Response(500)
"""What stands for the response of work that ended in an exception, where failures are replayed."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A request's place in the ledger: scope and key are its identity, the token is that of one run of it."""

    scope: str
    key: str
    digest: str
    token: int


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the ledger holds for a key, by the database's clock."""

    digest: str
    status: Status
    response: Response | None = None
    """Of one in progress, what whoever asks is told meanwhile, where it was handed over with such an answer."""
    lease_left: float = 0.0
    """Seconds for which whoever runs the request still holds it; zero or less where nobody does."""
    expired: bool = False
    """The time for which the entry was to be kept is over."""


class Start(StrEnum):
    """Why a request is to run."""

    NEW = "new"
    FAILED = "failed"
    """An earlier run ended in an exception."""
    ABANDONED = "abandoned"
    """An earlier run let its lease end: it crashed or hangs, and what it did outside the database is not known."""
    EXPIRED = "expired"
    """There was an entry, but the time for which it was to be kept is over."""


@dataclass(frozen=True, slots=True)
class Run:
    """Do the work, and then tell the ledger by this entry how it ended."""

    entry: Entry
    start: Start = Start.NEW

    @property
    def taken_over(self) -> bool:
        """Whether there was an entry before, which is now this run's."""
        return self.start is not Start.NEW


@dataclass(frozen=True, slots=True)
class Replay:
    """The work was done before, or was handed over: give its response again."""

    response: Response
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Conflict:
    """The key belongs to another request."""


@dataclass(frozen=True, slots=True)
class InProgress:
    """The same request is running."""

    retry_after: int
    """Whole seconds until its lease ends if it is not renewed; at least one, at most a minute."""


Decision = Run | Replay | Conflict | InProgress


def decide(recorded: Recorded | None, wanted: Entry, *, replay_failures: bool = False) -> Decision:
    """Tell what to do with a request, from what the ledger holds for its key; `wanted` is its entry if it runs.

    A response that was produced is replayed, also one that tells of an error, or of work that others will do. After an
    exception the work runs again, or, with `replay_failures`, its failure is replayed.
    """
    if recorded is None:
        return Run(wanted)
    if recorded.expired and recorded.lease_left <= 0:
        return Run(wanted, Start.EXPIRED)
    if recorded.digest != wanted.digest:
        return Conflict()
    match recorded.status:
        case Status.SUCCEEDED:
            return Replay(recorded.response or OK)
        case Status.FAILED:
            return _after_failure(recorded.response, wanted, replay_failures=replay_failures)
        case Status.IN_PROGRESS:
            return _while_in_progress(recorded, wanted)
        case _ as never:
            assert_never(never)


def _after_failure(response: Response | None, wanted: Entry, *, replay_failures: bool) -> Decision:
    if response is None and not replay_failures:
        return Run(wanted, Start.FAILED)
    return Replay(response or UNANSWERED, failed=True)


def _while_in_progress(recorded: Recorded, wanted: Entry) -> Decision:
    if recorded.lease_left <= 0:
        return Run(wanted, Start.ABANDONED)
    if recorded.response is not None:
        return Replay(recorded.response)
    left = ceil(round(recorded.lease_left, 3))  # databases' clocks differ in their last digits
    return InProgress(min(max(1, left), LONGEST_WAIT))


class Verdict(StrEnum):
    """What becomes of an outcome that is reported for a key by who does the work later, as a relay does."""

    ABSENT = "absent"
    """The ledger held nothing for the key, or only what has expired: the outcome makes an entry."""
    CONFIRMED = "confirmed"
    """The entry was open or failed, and takes the outcome."""
    ALREADY_SUCCEEDED = "already_succeeded"
    """The entry is left as it is: nothing is written over a success."""
    OTHER_DIGEST = "other_digest"
    """The key belongs to another request, whose entry is left as it is."""


def judge(recorded: Recorded | None, digest: str) -> Verdict:
    """Tell what becomes of an outcome for a request of this digest, from what the ledger holds for its key."""
    if recorded is None:
        return Verdict.ABSENT
    if recorded.digest != digest:
        return Verdict.ABSENT if recorded.expired and recorded.lease_left <= 0 else Verdict.OTHER_DIGEST
    return Verdict.ALREADY_SUCCEEDED if recorded.status is Status.SUCCEEDED else Verdict.CONFIRMED


def is_reopened(recorded: Recorded, digest: str) -> bool:
    """Whether an entry is in progress again when the work for a request of this digest is tried after all."""
    return recorded.digest == digest and recorded.status is Status.FAILED
