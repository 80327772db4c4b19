"""Which sagas an operator means, and the statements that find them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from postroom.errors import InvalidSetting
from postroom.rules.saga_plan import Direction, SagaOutcome
from postroom.rules.saga_state import STEP_MISSING, SagaState, saga_state

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from datetime import datetime

    from postroom.rules.lifecycle import Stored


@dataclass(frozen=True, slots=True)
class SagaFilter:
    """Which sagas: those that match every given field; all of them if none is given.

    Raises `InvalidSetting` for a state that does not exist, ids without a name, a negative `older_than`, or an `as_of`
    without a time zone.
    """

    name: str | None = None
    ids: Collection[str] | None = None
    """Ids of instances of this name."""
    states: Collection[SagaState | str] | None = None
    code: str | None = None
    """The code of its last error, or of the error for which it went back."""
    older_than: timedelta | None = None
    """Only what was started longer ago than this."""
    as_of: datetime | None = None
    """Only what was started, and last failed, by then. Take it from a page or a count to act on what it showed."""

    def __post_init__(self) -> None:
        if isinstance(self.ids, str):
            raise InvalidSetting(f"ids = {self.ids!r} is one id: give a list of them")
        if self.ids is not None and self.name is None:
            raise InvalidSetting(
                "ids are given without a name: an id tells instances of one saga apart, so give its name"
            )
        if isinstance(self.states, str):
            raise InvalidSetting(f"states = {self.states!r} is one state: give a list of them")
        if self.states is not None:
            object.__setattr__(self, "states", tuple(map(_state, self.states)))
        if self.older_than is not None and not self.older_than >= timedelta(0):
            raise InvalidSetting(f"older_than = {self.older_than} is not valid: give a timedelta that is not negative")
        if self.as_of is not None and self.as_of.tzinfo is None:
            raise InvalidSetting(f"as_of = {self.as_of} has no time zone: give it one, such as datetime.UTC")

    @property
    def chosen(self) -> frozenset[SagaState]:
        """The states that it selects."""
        return frozenset(SagaState if self.states is None else map(_state, self.states))

    def only(self, states: Collection[SagaState]) -> SagaFilter:
        """The same, and in one of these states."""
        return replace(self, states=self.chosen & frozenset(states))


EVERY_SAGA = SagaFilter()
"""Every saga."""


def _state(value: SagaState | str) -> SagaState:
    try:
        return SagaState(value)
    except ValueError:
        raise InvalidSetting(f"state = {value!r} is not valid: use {', '.join(SagaState)}") from None


def state_condition(stored: Stored, wanted: frozenset[SagaState], facts: Mapping[str, str]) -> str | None:
    """SQL for: an open saga whose delivery is in this stored state is in one of the wanted states.

    `facts`: the SQL of back, stranded and taken. What does not matter is not asked. None: it never is.
    """
    return _decide(stored, wanted, facts, {})


def _decide(
    stored: Stored, wanted: frozenset[SagaState], facts: Mapping[str, str], known: dict[str, bool]
) -> str | None:
    states = _states(stored, [name for name in facts if name not in known], known)
    if states.isdisjoint(wanted):
        return None
    if states <= wanted:
        return "1 = 1"
    fact = next(name for name in facts if name not in known)
    yes = _decide(stored, wanted, facts, {**known, fact: True})
    no = _decide(stored, wanted, facts, {**known, fact: False})
    if yes == no:
        return yes
    sides = [f"{sql} AND {rest}" for sql, rest in ((facts[fact], yes), (f"NOT {facts[fact]}", no)) if rest is not None]
    return f"({' OR '.join(f'({side})' for side in sides)})"


def _states(stored: Stored, unknown: list[str], known: dict[str, bool]) -> set[SagaState]:
    if unknown:
        first, *rest = unknown
        return _states(stored, rest, {**known, first: True}) | _states(stored, rest, {**known, first: False})
    direction = Direction.BACK if known["back"] else Direction.FORWARD
    code = STEP_MISSING if known["stranded"] else ""
    return {saga_state(direction, SagaOutcome.OPEN, stored, taken=known["taken"], error_code=code)}
