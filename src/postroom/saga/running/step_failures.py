"""How a function of a saga failed: its reason code, a text for people, and whether a retry can help."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from postroom.errors import InvalidMessage, InvalidSetting, Refused
from postroom.rules import failures
from postroom.rules.failures import Failure
from postroom.rules.saga_failures import StepFailure, Why
from postroom.saga.running.journal import EarlierCallHangs
from postroom.store.sql.db_errors import is_lost_connection, reason
from postroom.telemetry.tracebacks import raised_at

if TYPE_CHECKING:
    from postroom.rules.failures import Classifier
    from postroom.rules.saga_plan import PlannedStep
    from postroom.saga.steps import Action

DEADLINE = "DEADLINE"
ABANDONED = failures.Reason.LEASE_EXPIRED
NO_EVENT = failures.Reason.TIMEOUT


class StepMisused(Exception):
    """A function did what a function of a saga must not do. Its text says what, and how to do it instead."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A function failed."""

    step: PlannedStep
    action: Action[..., Any]
    error: Exception
    code: str
    text: str
    failure: Failure
    seconds: float

    @property
    def refused(self) -> bool:
        """Whether it said that its effect has not happened and will not."""
        return isinstance(self.error, Refused)

    @property
    def for_rules(self) -> StepFailure:
        """The failure as the rules see it."""
        return StepFailure(self.step, self.failure, self.action.retry, self.refused)


def failed(
    step: PlannedStep,
    action: Action[..., Any],
    error: Exception,
    classifier: Classifier,
    seconds: float,
    timeout: float,
) -> Failed:
    """Classify what a function raised."""
    if isinstance(error, Refused):
        return Failed(step, action, error, error.code, error.text, Failure.PERMANENT, seconds)
    code = failures.reason_code(error, classifier)
    if code == failures.Reason.INTERNAL_ERROR and is_lost_connection(error):
        code = failures.Reason.CONNECTION  # drivers' classes do not tell it from other errors
    failure = failures.classify(code, classifier)
    if isinstance(error, (*action.permanent, InvalidMessage, InvalidSetting, StepMisused)):
        failure = Failure.PERMANENT
    text = failures.with_place(_text(error, timeout), raised_at(error))
    return Failed(step, action, error, code, text, failure, seconds)


def _text(error: Exception, timeout: float) -> str:
    """What an error says, after its class: many, such as KeyError, say little without it."""
    if isinstance(error, StepMisused | EarlierCallHangs):
        return str(error)
    if isinstance(error, TimeoutError) and not str(error):
        return f"it did not end within {timeout:g} s"
    # SQLAlchemy's own texts quote a statement's parameters, which are the user's data.
    text = reason(error) if getattr(error, "orig", None) else str(error)
    return f"{type(error).__name__}: {text}".removesuffix(": ")


def without_failure(why: Why, step: PlannedStep, claims: int, unreadable: str = "") -> tuple[str, str]:
    """Code and text where a saga turns or parks although no function has failed. `unreadable`: what an event was."""
    match why:
        case Why.DEADLINE:
            return DEADLINE, f"the saga's deadline passed before {step.name!r} was done"
        case Why.TIMED_OUT:
            text = f"no event {step.event!r} came in time"
            return NO_EVENT, f"{text} that can be read: {unreadable}" if unreadable else text
        case _:
            text = f"claimed {claims} times without progress at {step.name!r}: workers may have died of it"
            return ABANDONED, text
