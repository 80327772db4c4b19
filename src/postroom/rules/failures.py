"""Why a send failed, and what follows from it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TypeAlias, assert_never

from postroom.errors import PayloadNotDecodable
from postroom.rules.backoff import RetryPolicy

CODE_LENGTH = 64
MESSAGE_LENGTH = 512


class Failure(StrEnum):
    """The class of a failure."""

    TRANSIENT = "transient"
    """May pass by itself: try again later."""
    PERMANENT = "permanent"
    """No retry mends it: dead at once."""
    CONFLICT = "conflict"
    """Something else holds its place: dead at once, and what holds it stays untouched."""


class Reason(StrEnum):
    """The reason codes that Postroom itself uses; users and brokers may have others."""

    TIMEOUT = "TIMEOUT"
    CONNECTION = "CONNECTION"
    INTERNAL_ERROR = "INTERNAL_ERROR"
    UNDECODABLE = "UNDECODABLE"
    UNDECODABLE_PAYLOAD = "UNDECODABLE_PAYLOAD"
    INVALID_TARGET = "INVALID_TARGET"
    INVALID_HEADER = "INVALID_HEADER"
    UNROUTABLE = "UNROUTABLE"
    TARGET_UNAVAILABLE = "TARGET_UNAVAILABLE"
    """The broker has no place for messages of this topic now: it waits, and no attempt counts."""
    NOT_TAKEN = "NOT_TAKEN"
    """It could not be handed to the broker, while others of its topic could."""
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

# Decoding errors of libraries are left out on purpose: a handler also gets one when a proxy answers
# with an error page, and that passes. Of a message's own payload, `message.json()` and `decode()` say it.
_EXCEPTIONS: Mapping[type[Exception], str] = MappingProxyType(
    {
        TimeoutError: Reason.TIMEOUT,
        ConnectionError: Reason.CONNECTION,
        PayloadNotDecodable: Reason.UNDECODABLE_PAYLOAD,
    }
)


@dataclass(frozen=True, slots=True)
class Classifier:
    """Which reason code an exception has, and which class a reason code has.

    A value: extending one gives a new one. `Classifier()` knows the built-in codes.
    """

    codes: Mapping[str, Failure] = field(default_factory=lambda: _CODES)
    exceptions: Mapping[type[Exception], str] = field(default_factory=lambda: _EXCEPTIONS)

    def with_code(self, code: str, failure: Failure) -> "Classifier":
        """Return a classifier that puts `code` in the class `failure`."""
        codes = {**self.codes, _checked(code): failure}
        return replace(self, codes=MappingProxyType(codes))

    def with_exception(self, exception: type[Exception], code: str) -> "Classifier":
        """Return a classifier that gives `exception` and its subclasses the code `code`.

        Of several classes that fit, the most specific one decides.
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


def reason_code(exception: Exception, classifier: Classifier = DEFAULT_CLASSIFIER) -> str:
    """Return the code of the most specific known class; else `INTERNAL_ERROR`."""
    for ancestor in type(exception).__mro__:
        if ancestor in classifier.exceptions:
            return classifier.exceptions[ancestor]
    return Reason.INTERNAL_ERROR


def classify(error: str | Exception, classifier: Classifier = DEFAULT_CLASSIFIER) -> Failure:
    """Return the class of a reason code or of an exception.

    Unknown ones are transient: attempts are limited, so a needless retry costs less than
    a message that is given up at a failure which would have passed.
    """
    code = error if isinstance(error, str) else reason_code(error, classifier)
    return classifier.codes.get(code, Failure.TRANSIENT)


def cut(text: str, limit: int = MESSAGE_LENGTH) -> str:
    """Return the first `limit` characters of `text`, in a form every database can store.

    NUL characters are removed, and surrogates that stand alone become question marks.
    """
    kept = text.replace("\0", "")[:limit]
    return kept.encode("utf-8", "replace").decode("utf-8")


def with_place(said: str, place: str) -> str:
    """What an error said and, behind it, where in the code: of a text that is too long for both, less is kept."""
    behind = f" ({place[-MESSAGE_LENGTH // 2 :]})" if place else ""
    return said[: MESSAGE_LENGTH - len(behind)] + behind


class DeadReason(StrEnum):
    """Why a failed send is the last one."""

    EXHAUSTED = "exhausted"
    PERMANENT = "permanent"
    CONFLICT = "conflict"


@dataclass(frozen=True, slots=True)
class Retry:
    """Try again after `delay` seconds."""

    delay: float


@dataclass(frozen=True, slots=True)
class Dead:
    """Do not try again; keep the message as a dead letter."""

    reason: DeadReason


AfterFailure: TypeAlias = Retry | Dead


def after_failure(attempts: int, policy: RetryPolicy, failure: Failure, random: float) -> AfterFailure:
    """Decide what follows a failed send.

    `attempts` counts the failed sends so far, the one that just failed included;
    `random` is a number in [0, 1).
    """
    match failure:
        case Failure.TRANSIENT:
            if policy.exhausted(attempts):
                return Dead(DeadReason.EXHAUSTED)
            return Retry(policy.delay(attempts, random))
        case Failure.PERMANENT:
            return Dead(DeadReason.PERMANENT)
        case Failure.CONFLICT:
            return Dead(DeadReason.CONFLICT)
        case _:
            assert_never(failure)
