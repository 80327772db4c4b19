"""The steps of a saga in the order of their declaration, and what must hold among them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from postroom.errors import InvalidSetting
from postroom.rules.saga_plan import Kind

if TYPE_CHECKING:
    from postroom.rules.saga_plan import Plan
    from postroom.saga.steps import Step

S = TypeVar("S", bound="Step[..., Any]")


class Declarations:
    """Keeps the declared steps."""

    def __init__(self, saga: str) -> None:
        self._saga = saga
        self.steps: dict[str, Step[..., Any]] = {}

    @property
    def plan(self) -> Plan:
        """The plan of an instance that starts now."""
        return tuple(step.planned for step in self.steps.values() if not step.retired)

    def add(self, step: S) -> S:
        """Add a step at the end. Raises `InvalidSetting`, and then it is not added."""
        if step.name in self.steps:
            raise InvalidSetting(
                f"saga {self._saga!r} already has a step {step.name!r}: names identify steps; give another with name=…"
            )
        if not step.retired:
            self._check_group(step)
            self._check_pivot(step)
        self.steps[step.name] = step
        return step

    def _check_group(self, step: Step[..., Any]) -> None:
        if not step.group:
            return
        if step.kind in {Kind.WAIT, Kind.SLEEP} or step.pivot:
            what = "the pivot" if step.pivot else f"a {step.kind}"
            raise InvalidSetting(
                f"step {step.name!r} is {what}, which cannot be in a group: only steps and calls run at the same time; "
                "declare it before or after the group"
            )
        others = [other for other in self.steps.values() if not other.retired]
        if any(other.group == step.group for other in others) and others[-1].group != step.group:
            raise InvalidSetting(
                f"step {step.name!r} is in group {step.group!r}, but {others[-1].name!r} stands between: declare the "
                "steps of a group one after another, or use another group"
            )

    def _check_pivot(self, step: Step[..., Any]) -> None:
        pivot = next((other for other in self.steps.values() if other.pivot and not other.retired), None)
        if step.pivot and pivot is not None:
            raise InvalidSetting(
                f"saga {self._saga!r} has two pivots, {pivot.name!r} and {step.name!r}: only one step can be the point "
                "of no return"
            )
        step.follows_pivot = pivot.name if pivot is not None else ""
