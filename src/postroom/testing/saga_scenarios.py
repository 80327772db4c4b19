"""Try a saga with every failure at every step in turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from postroom.errors import Refused
from postroom.rules.saga_plan import Direction, Kind
from postroom.testing.running_sagas import Events, run_faulty
from postroom.testing.saga_faults import Faults, Injected, WorkerDied, always, once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from postroom.saga.saga import Saga
    from postroom.testing.saga_runs import SagaRun

D = TypeVar("D")


def every_failure(
    saga: Saga[D],
    data: D,
    *,
    events: Events = (),
    connection: Any = None,
    before: Callable[[], object] = lambda: None,
    after: Callable[[SagaRun[D]], object] = lambda _run: None,
) -> list[SagaRun[D]]:
    """Run the saga many times: undisturbed, and with each step and compensation failing, repeated and interrupted.

    Raises `AssertionError` if the undisturbed run is not completed, or another one ends otherwise than completed or
    compensated; where a step at or after the pivot keeps failing, it may be parked. ``before()`` is called before each
    run, to set up what functions act on, and ``after(run)`` after it, to check: what was completed happened once, what
    was compensated is as it was before.

    Returns the runs; ``scenario`` says what was done to each.
    """
    runs: list[SagaRun[D]] = []
    given = list(events.items() if hasattr(events, "items") else events)
    for faults, ends in _scenarios(saga):
        before()
        run = run_faulty(saga, data, faults, given, connection)
        if run.state not in ends:
            raise AssertionError(f"the saga should have been {' or '.join(ends)}\n{run}")
        after(run)
        runs.append(run)
    return runs


def _scenarios(saga: Saga[Any]) -> Iterator[tuple[Faults, tuple[str, ...]]]:
    # Otherwise no step behind the one that fails by itself would ever be tried.
    yield Faults(scenario="undisturbed"), ("completed",)
    past_pivot = False
    for planned in saga.plan:
        past_pivot = past_pivot or planned.pivot
        given_up = ("completed", "parked", "compensated") if past_pivot else ("completed", "compensated")
        here = (Direction.FORWARD, planned.name)
        for what, fault, ends in (
            ("refuses", always(Refused("REFUSED", "the test lets it refuse")), given_up),
            ("keeps failing", always(Injected("the test lets it fail")), given_up),
            ("fails once", once(Injected("the test lets it fail once")), ("completed", "compensated")),
            ("is interrupted", once(WorkerDied()), ("completed", "compensated")),
        ):
            yield Faults({here: fault}, f"{planned.name} {what}"), ends
        if planned.kind is Kind.CALL:
            lost = Injected("the test loses the answer")
            yield Faults({here: always(lost, after=True)}, f"{planned.name} happens, but never answers"), given_up
            yield (
                Faults({here: once(WorkerDied(), after=True)}, f"{planned.name} is repeated"),
                (
                    "completed",
                    "compensated",
                ),
            )
    yield from _on_the_way_back(saga)


def _on_the_way_back(saga: Saga[Any]) -> Iterator[tuple[Faults, tuple[str, ...]]]:
    """Each compensation fails once, or is interrupted, because what comes after its step has failed."""
    plan = saga.plan
    for index, planned in enumerate(plan):
        if not planned.compensated:
            continue
        ends = (
            ("completed", "compensated", "parked")
            if any(one.pivot for one in plan[: index + 2])
            else (
                "completed",
                "compensated",
            )
        )
        at = planned if planned.kind is Kind.CALL else next(iter(plan[index + 1 :]), None)
        if at is None:
            continue
        turn = {(Direction.FORWARD, at.name): always(Injected("the test lets it fail"))}
        undo = (Direction.BACK, planned.name)
        for what, fault in (
            ("fails once", once(Injected("the test lets it fail once"))),
            ("is interrupted", once(WorkerDied())),
            *((("is repeated", once(WorkerDied(), after=True)),) if planned.kind is Kind.CALL else ()),
        ):
            yield Faults({**turn, undo: fault}, f"the compensation of {planned.name} {what}"), ends
