"""The publish port: the contract between relay and broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from postroom.rules.failures import Failure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.message import Message


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """The broker has the message; `answer` is its answer (offset, sequence, id)."""

    answer: str | None = None


class Refused(msgspec.Struct, frozen=True, gc=False):
    """The broker does not have the message. If `failure` is None, the classifier decides by the code."""

    code: str
    message: str = ""
    failure: Failure | None = None
    retry_after: float | None = None
    """Seconds before the next attempt, if the broker asked for that."""
    whole_call: bool = False
    """Whether the call failed as a whole, so that any of its messages may be at fault. Then fewer are sent together,
    until one fails alone: only that counts as an attempt. With `retry_after` it is a failed attempt of all of them:
    whoever says when to come again asks for fewer calls, not more."""


class Unreached(msgspec.Struct, frozen=True, gc=False):
    """The broker could not be reached, or accepts nothing from us: the message counts as not tried.

    If other messages get through meanwhile, the relay takes this message, or its topic, to be at fault.
    """

    reason: str


class TargetUnavailable(msgspec.Struct, frozen=True, gc=False):
    """The broker is up, but has no place for messages of this topic now: the message counts as not tried."""

    reason: str
    by_message: bool = False
    """Whether this may depend on more of the message than its topic. If others of the topic get through, the message
    is at fault then."""


class NotSent(msgspec.Struct, frozen=True, gc=False):
    """Held back because a message before it in the batch was not accepted: the message counts as not tried."""

    delay: float = 0.0
    """Seconds before the next attempt, if it is held back for a reason of its own."""
    reason: str = ""


Outcome = Accepted | Refused | Unreached | TargetUnavailable | NotSent
ACCEPTED = Accepted()
NOT_SENT = NotSent()


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a broker can do, so that the relay need not know which one it is."""

    ordered_prefix: bool = False
    """It accepts a batch in order, and nothing after a message that it did not accept."""
    ordered: bool = False
    """Messages of one key that it accepts from a batch arrive in the batch's order."""
    dedup_seconds: float | None = None
    """For how long it drops repetitions of a message by id, by default; None: never."""
    headers: bool = True
    """User headers arrive alongside the payload."""
    places: bool = False
    """Its answer says where the message is stored: offset, sequence or id."""
    max_bytes: int | None = None
    """The largest message in bytes, as far as that is known before asking a server."""


class Broker(Protocol):
    """Publishes messages, and returns one outcome for each.

    `publish` returns within the timeout; a message without an answer by then is refused with `TIMEOUT`. An exception
    means that all are refused, by a `whole_call`; `BrokerUnavailable` that none was tried.
    """

    name: str
    capabilities: Capabilities

    async def publish(self, messages: Sequence[Message], timeout: float) -> Sequence[Outcome]:  # noqa: ASYNC109 - the adapter knows which messages have an answer when time is up
        """One outcome for each message, in their order."""
        ...

    async def close(self) -> None:
        """Release connections and threads."""
        ...
