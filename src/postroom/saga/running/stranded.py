"""What strands an instance: it needs a function that the code of this worker does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postroom.errors import SagaNotDecodable
from postroom.saga.data import from_json

if TYPE_CHECKING:
    from postroom.rules.saga_plan import PlannedStep
    from postroom.saga.saga import Saga
    from postroom.saga.steps import Compensation, Step

RETRY_STRANDED = 30.0
"""Seconds until a stranded instance is looked at again: another worker may have its code."""


class Stranded(Exception):
    """The instance cannot go on with the code of this worker."""

    def __init__(self, step: str, cure: str, *, tried: bool = False) -> None:
        """`tried`: a call was made, and may have had its effect."""
        super().__init__(cure)
        self.tried = tried
        self.step = step
        self.cure = cure


def declared_step(saga: Saga[Any], planned: PlannedStep) -> Step[..., Any]:
    """The step of the code that the plan names. Raises `Stranded`."""
    step = saga.steps.get(planned.name)
    if step is None:
        raise Stranded(
            planned.name,
            f"the code has no step {planned.name!r}: keep its function under @{saga.name}.retired until no instance is "
            "listed as stranded",
        )
    if step.kind is not planned.kind:
        raise Stranded(
            planned.name,
            f"{planned.name!r} is a {step.kind} in the code, and a {planned.kind} in the plan that the instance began "
            f"with: give the new one another name, and keep the old one under @{saga.name}.retired",
        )
    return step


def compensation_of(step: Step[..., Any], planned: PlannedStep) -> Compensation[..., Any]:
    """The compensation of a step whose plan says that it has one. Raises `Stranded`."""
    if step.undo is None:
        raise Stranded(
            planned.name,
            f"step {planned.name!r} had a compensation when the instance began, and the code has none: "
            f"declare it again with @{planned.name}.compensation",
        )
    return step.undo


def result_of(step: Step[..., Any], encoded: bytes | None) -> Any:
    """What a step returned, for its compensation. Raises `Stranded`."""
    try:
        return None if encoded is None else from_json(encoded, step.result_kind, f"the result of {step.name!r}")
    except SagaNotDecodable as error:
        raise Stranded(step.name, str(error)) from error
