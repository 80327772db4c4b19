"""The plan of an instance as a header of its message: compact JSON.

Each step is a list of name, kind, group, pivot, compensated, event and two numbers of attempts; what follows the last
that is set is left out.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from postroom.errors import SagaNotDecodable
from postroom.rules.saga_plan import Kind, PlannedStep

if TYPE_CHECKING:
    from postroom.rules.saga_plan import Plan


class _Row(msgspec.Struct, array_like=True, frozen=True, omit_defaults=True):
    name: str
    kind: Kind = Kind.STEP
    group: str = ""
    pivot: int = 0
    compensated: int = 0
    event: str = ""
    attempts: int = 0
    undo_attempts: int = 0


_DECODER = msgspec.json.Decoder(tuple[_Row, ...])


def plan_to_header(plan: Plan) -> str:
    """The plan as JSON."""
    return msgspec.json.encode([_shortened(step) for step in plan]).decode()


@lru_cache(maxsize=1024)
def plan_from_header(header: str) -> Plan:
    """The plan of an instance. Raises `SagaNotDecodable` if this version cannot read it.

    Instances of one version of the code have the same plan, which is read once.
    """
    try:
        rows = _DECODER.decode(header)
    except msgspec.DecodeError as error:
        raise SagaNotDecodable(f"the saga's plan is not one that this version of Postroom knows: {error}") from None
    return tuple(
        PlannedStep(
            *(row.name, row.kind, row.group, bool(row.pivot), bool(row.compensated), row.event),
            *(row.attempts, row.undo_attempts),
        )
        for row in rows
    )


def _shortened(step: PlannedStep) -> list[str | int]:
    whole = [
        *(step.name, step.kind.value, step.group, int(step.pivot), int(step.compensated), step.event),
        *(step.attempts, step.undo_attempts),
    ]
    defaults = ["", Kind.STEP.value, "", 0, 0, "", 0, 0]
    kept = max(index for index in range(len(whole)) if index == 0 or whole[index] != defaults[index])
    return whole[: kept + 1]
