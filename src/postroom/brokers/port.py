"""The publish port: what a broker is to the relay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from postroom.rules.failures import Failure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.message import Message


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """The broker has the message; `answer` is what it said (offset, sequence, id)."""

    answer: str | None = None


class Refused(msgspec.Struct, frozen=True, gc=False):
    """The broker does not have the message. `failure` None: the code's class decides."""

    code: str
    message: str = ""
    failure: Failure | None = None
    retry_after: float | None = None
    """Not before so many seconds, where the broker said so."""


class Unreached(msgspec.Struct, frozen=True, gc=False):
    """The broker could not be reached, or takes nothing from us: the message counts as not tried.

    Where other messages get through meanwhile, the relay takes it for the fault of this message, or of its topic.
    """

    reason: str


class TargetUnavailable(msgspec.Struct, frozen=True, gc=False):
    """The broker is there, but has no place for messages of this topic now: the message counts as not tried."""

    reason: str
    by_message: bool = False
    """Whether it may depend on more of the message than its topic: then, where others of the topic get through, it is
    the message that is at fault."""


class NotSent(msgspec.Struct, frozen=True, gc=False):
    """Kept back, because one before it in the batch was not accepted: the message counts as not tried."""

    delay: float = 0.0
    """Not before so many seconds, where it is kept back for a reason of its own."""
    reason: str = ""


Outcome = Accepted | Refused | Unreached | TargetUnavailable | NotSent
ACCEPTED = Accepted()
NOT_SENT = NotSent()


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a broker can do, so that the relay need not ask which one it is."""

    ordered_prefix: bool = False
    """Of a batch it accepts messages in order, and none behind one that it did not accept."""
    ordered: bool = False
    """Messages of one key that it accepts of a batch arrive in the batch's order."""
    dedup_seconds: float | None = None
    """For how long it drops a repetition of a message by its id, unless it is set up otherwise; None: it never does."""
    headers: bool = True
    """User headers arrive beside the payload."""
    places: bool = False
    """Its answer says where the message is there: offset, sequence or id."""
    max_bytes: int | None = None
    """The most bytes of a message, as far as that is known before a server is asked."""


class Broker(Protocol):
    """Takes messages, gives one outcome for each.

    `publish` returns within the timeout; a message without an answer by then is refused with `TIMEOUT`. An exception
    counts as a failed attempt of every message, but for `BrokerUnavailable`: then none counts as tried.
    """

    name: str
    capabilities: Capabilities

    async def publish(self, messages: Sequence[Message], timeout: float) -> Sequence[Outcome]:  # noqa: ASYNC109 - the adapter knows what can still be told apart when time is up
        """One outcome for each message, in their order."""
        ...

    async def close(self) -> None:
        """Let go of connections and threads."""
        ...
