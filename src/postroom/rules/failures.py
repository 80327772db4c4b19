"""Why an attempt failed, and whether it is retried."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TypeAlias, assert_never

from postroom.errors import PayloadNotDecodable, RegistryUnavailable, UnknownSchema, UnknownVersion
from postroom.rules.backoff import RetryPolicy

CODE_LENGTH = 64
MESSAGE_LENGTH = 512


class Failure(StrEnum):
    """The class of a failure."""

    TRANSIENT = "transient"
    """May succeed later: retry."""
    PERMANENT = "permanent"
    """No retry can help: dead at once."""
    CONFLICT = "conflict"
    """Something else has taken its place: dead at once, and the other stays untouched."""


class Reason(StrEnum):
    """The reason codes that Postroom uses; users and brokers may add their own."""

    TIMEOUT = "TIMEOUT"
    CONNECTION = "CONNECTION"
    INTERNAL_ERROR = "INTERNAL_ERROR"
    UNDECODABLE = "UNDECODABLE"
    UNDECODABLE_PAYLOAD = "UNDECODABLE_PAYLOAD"
    UNKNOWN_VERSION = "UNKNOWN_VERSION"
    """The message holds a version of its event that the consumer's code cannot read."""
    UNKNOWN_SCHEMA = "UNKNOWN_SCHEMA"
    """The message names a schema that the schema registry does not have."""
    REGISTRY_UNAVAILABLE = "REGISTRY_UNAVAILABLE"
    """The schema registry that the message's payload needs cannot be asked: it waits, and no attempt counts."""
    INVALID_TARGET = "INVALID_TARGET"
    INVALID_HEADER = "INVALID_HEADER"
    UNROUTABLE = "UNROUTABLE"
    TARGET_UNAVAILABLE = "TARGET_UNAVAILABLE"
    """The broker has no place for messages of this topic now: they wait, and no attempt counts."""
    NOT_TAKEN = "NOT_TAKEN"
    """It could not be handed to the broker, while other messages of its topic could."""
    MESSAGE_TOO_LARGE = "MESSAGE_TOO_LARGE"
    LEASE_EXPIRED = "LEASE_EXPIRED"
    MESSAGE_MISSING = "MESSAGE_MISSING"
    IDEMPOTENCY_CONFLICT = "IDEMPOTENCY_CONFLICT"


_CODES: Mapping[str, Failure] = MappingProxyType(
    {
        Reason.TIMEOUT: Failure.TRANSIENT,
        Reason.CONNECTION: Failure.TRANSIENT,
        Reason.INTERNAL_ERROR: Failure.TRANSIENT,
        Reason.UNDECODABLE: Failure.PERMANENT,
        Reason.UNDECODABLE_PAYLOAD: Failure.PERMANENT,
        Reason.UNKNOWN_VERSION: Failure.PERMANENT,
        Reason.UNKNOWN_SCHEMA: Failure.PERMANENT,
        Reason.REGISTRY_UNAVAILABLE: Failure.TRANSIENT,
        Reason.INVALID_TARGET: Failure.PERMANENT,
        Reason.INVALID_HEADER: Failure.PERMANENT,
        Reason.UNROUTABLE: Failure.PERMANENT,
        Reason.TARGET_UNAVAILABLE: Failure.TRANSIENT,
        Reason.NOT_TAKEN: Failure.TRANSIENT,
        Reason.MESSAGE_TOO_LARGE: Failure.PERMANENT,
        Reason.LEASE_EXPIRED: Failure.PERMANENT,
        Reason.MESSAGE_MISSING: Failure.PERMANENT,
        Reason.IDEMPOTENCY_CONFLICT: Failure.CONFLICT,
    }
)

# Decoding errors of libraries are left out on purpose: a handler also gets one when a proxy answers with an error
# page, which passes. Only `message.json()` and `decode()` say that the message's own payload is at fault.
_EXCEPTIONS: Mapping[type[Exception], str] = MappingProxyType(
    {
        TimeoutError: Reason.TIMEOUT,
        ConnectionError: Reason.CONNECTION,
        PayloadNotDecodable: Reason.UNDECODABLE_PAYLOAD,
        UnknownVersion: Reason.UNKNOWN_VERSION,
        UnknownSchema: Reason.UNKNOWN_SCHEMA,
        RegistryUnavailable: Reason.REGISTRY_UNAVAILABLE,
    }
)


@dataclass(frozen=True, slots=True)
class Classifier:
    """Maps exceptions to reason codes, and reason codes to failure classes.

    Immutable: extending a classifier returns a new one. `Classifier()` knows the built-in codes.
    """

    codes: Mapping[str, Failure] = field(default_factory=lambda: _CODES)
    exceptions: Mapping[type[Exception], str] = field(default_factory=lambda: _EXCEPTIONS)

    def with_code(self, code: str, failure: Failure) -> "Classifier":
        """Return a classifier that puts `code` in the class `failure`."""
        codes = {**self.codes, _checked(code): failure}
        return replace(self, codes=MappingProxyType(codes))

    def with_exception(self, exception: type[Exception], code: str) -> "Classifier":
        """Return a classifier that gives `exception` and its subclasses the code `code`.

        The most specific matching class wins.
        """
        exceptions = {**self.exceptions, exception: _checked(code)}
        return replace(self, exceptions=MappingProxyType(exceptions))


def _checked(code: str) -> str:
    if not 1 <= len(code) <= CODE_LENGTH or "\0" in code:
        raise ValueError(
            f"the reason code is {code!r}; give 1 to {CODE_LENGTH} characters without a NUL, for example CARD_DECLINED"
        )
    return code


DEFAULT_CLASSIFIER = Classifier()
"""What counts as permanent unless you say otherwise. Add codes with `with_code`."""


def reason_code(exception: Exception, classifier: Classifier = DEFAULT_CLASSIFIER) -> str:
    """Return the code of the most specific known class; else `INTERNAL_ERROR`."""
    for ancestor in type(exception).__mro__:
        if ancestor in classifier.exceptions:
            return classifier.exceptions[ancestor]
    return Reason.INTERNAL_ERROR


def classify(error: str | Exception, classifier: Classifier = DEFAULT_CLASSIFIER) -> Failure:
    """Return the failure class of a reason code or an exception.

    Unknown ones are transient: attempts are limited, so a needless retry costs less than giving up on a failure that
    would have passed.
    """
    code = error if isinstance(error, str) else reason_code(error, classifier)
    return classifier.codes.get(code, Failure.TRANSIENT)


def cut(text: str, limit: int = MESSAGE_LENGTH) -> str:
    """Return the first `limit` characters of `text`, in a form every database can store.

    NUL characters are removed, and lone surrogates become question marks.
    """
    kept = text.replace("\0", "")[:limit]
    return kept.encode("utf-8", "replace").decode("utf-8")


def with_place(reason: str, place: str) -> str:
    """Append to an error's text where in the code it was raised, and shorten the text to fit."""
    behind = f" ({place[-MESSAGE_LENGTH // 2 :]})" if place else ""
    return reason[: MESSAGE_LENGTH - len(behind)] + behind


class DeadReason(StrEnum):
    """Why a message is given up."""

    EXHAUSTED = "exhausted"
    PERMANENT = "permanent"
    CONFLICT = "conflict"


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """Retry after `delay` seconds."""

    delay: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Do not retry; keep the message as a dead letter."""

    reason: DeadReason


AfterFailure: TypeAlias = RetryAfter | GiveUp


def after_failure(attempts: int, policy: RetryPolicy, failure: Failure, random: float) -> AfterFailure:
    """Decide what follows a failed attempt.

    `attempts` counts the failed attempts so far, including the one that just failed;
    `random` is a number in [0, 1).
    """
    match failure:
        case Failure.TRANSIENT:
            if policy.exhausted(attempts):
                return GiveUp(DeadReason.EXHAUSTED)
            return RetryAfter(policy.delay(attempts, random))
        case Failure.PERMANENT:
            return GiveUp(DeadReason.PERMANENT)
        case Failure.CONFLICT:
            return GiveUp(DeadReason.CONFLICT)
        case _:
            assert_never(failure)
