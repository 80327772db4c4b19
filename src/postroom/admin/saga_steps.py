"""What `Admin` and `AsyncAdmin` do to sagas, written once: see `postroom.admin.steps`."""
# ruff: noqa: D102 - `Admin` documents each method

from __future__ import annotations

from collections import defaultdict
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Literal

from postroom.admin.pages import one_more, page_of
from postroom.admin.saga_acts import SagaActs
from postroom.admin.saga_details import SagaDetails, details_of, plan_of
from postroom.admin.saga_results import RefusedSaga, SagaActResult, SagaFork, SagaRef, SagaTotal
from postroom.errors import SagaActRefused, SagaNotFound
from postroom.rules.saga_state import SagaState
from postroom.store.admin.saga_filter import SagaFilter
from postroom.store.admin.saga_lookup import SagaLookup
from postroom.store.sql.operations import CHUNK

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from postroom.admin.results import Page
    from postroom.rules.saga_acts import Refusal
    from postroom.store.admin.audit import Note
    from postroom.store.admin.sagas import ListedSaga, SagaCount
    from postroom.store.admin.selection import Progress
    from postroom.store.sql.names import Names
    from postroom.store.sql.steps import Steps

    Done = dict[int, Refusal | None]
    """What became of sagas, by position: None if it was done."""
    Action = Literal["resume", "skip", "abort"]

PARKED = frozenset({SagaState.PARKED})
STUCK = frozenset({SagaState.PARKED, SagaState.STRANDED})
FORWARD = frozenset(SagaState) - {SagaState.COMPENSATING, SagaState.COMPLETED, SagaState.COMPENSATED}


class SagaSteps:
    """The operations of an operator on sagas. `Admin` documents each."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._rows = SagaLookup(names)
        self._acts = SagaActs(names)

    def listed(self, which: SagaFilter, limit: int, before: int | None) -> Steps[Page[ListedSaga]]:
        as_of = yield from self._rows.clock()
        found = yield from self._rows.listed(which, one_more(limit), before)
        return page_of(found, limit, as_of, attrgetter("position"))

    def counts(self) -> Steps[tuple[SagaCount, ...]]:
        return tuple((yield from self._rows.counts()))

    def total(self, which: SagaFilter) -> Steps[SagaTotal]:
        as_of = yield from self._rows.clock()
        return SagaTotal((yield from self._rows.count(which)), as_of)

    def details(self, name: str, identifier: str, *, data: bool) -> Steps[SagaDetails]:
        position = yield from self._position(name, identifier)
        found = yield from self._rows.find(name, position)
        if found is None:
            raise (yield from self._not_found(name, identifier))
        start = plan_of(found)
        children = (yield from self._rows.children(identifier, [step.name for step in start.plan])) if start else []
        return details_of(found, children, data=data)

    def resume(self, which: SagaFilter, note: Note, progress: Progress | None) -> Steps[SagaActResult]:
        return (yield from self._act("resume", which, PARKED, partial(self._resume, note), progress))

    def skip(self, which: SagaFilter, step: str | None, note: Note, progress: Progress | None) -> Steps[SagaActResult]:
        one = partial(self._acts.skip, step=step, note=note)
        return (yield from self._act("skip", which, STUCK, partial(self._each, one), progress))

    def abort(self, which: SagaFilter, note: Note, progress: Progress | None) -> Steps[SagaActResult]:
        one = partial(self._acts.abort, note=note)
        return (yield from self._act("abort", which, FORWARD, partial(self._each, one), progress))

    def fork(self, name: str, identifier: str, step: str, new_id: str | None, note: Note) -> Steps[SagaFork]:
        position = yield from self._position(name, identifier)
        return (yield from self._rows.transaction(self._acts.fork, name, position, step, new_id, note))

    def resume_one(self, name: str, identifier: str, note: Note) -> Steps[None]:
        yield from self._alone(name, identifier, lambda which: self.resume(which, note, None))

    def skip_one(self, name: str, identifier: str, step: str | None, note: Note) -> Steps[None]:
        yield from self._alone(name, identifier, lambda which: self.skip(which, step, note, None))

    def abort_one(self, name: str, identifier: str, note: Note) -> Steps[None]:
        yield from self._alone(name, identifier, lambda which: self.abort(which, note, None))

    def _alone(self, name: str, identifier: str, act: Callable[[SagaFilter], Steps[SagaActResult]]) -> Steps[None]:
        """Act on one saga. Raises `SagaNotFound` or `SagaActRefused` if it was not done."""
        yield from self._position(name, identifier)
        result = yield from act(SagaFilter(name, [identifier]))
        for refused in result.refused:
            raise SagaActRefused(f"cannot {_VERBS[result.action]} saga {name} {identifier}: {refused.reason}")

    def _resume(self, note: Note, sagas: Sequence[ListedSaga]) -> Steps[Done]:
        by_name: dict[str, list[ListedSaga]] = defaultdict(list)
        for saga in sagas:
            by_name[saga.name].append(saga)
        done: Done = {}
        for name, some in by_name.items():
            done |= yield from self._rows.transaction(self._acts.resume, name, some, note)
        return done

    def _each(self, act: Callable[[ListedSaga], Steps[Refusal | None]], sagas: Sequence[ListedSaga]) -> Steps[Done]:
        done: Done = {}
        for saga in sagas:
            done[saga.position] = yield from self._rows.transaction(act, saga)
        return done

    def _position(self, name: str, identifier: str) -> Steps[int]:
        position = yield from self._rows.position(name, identifier)
        if position is None:
            raise (yield from self._not_found(name, identifier))
        return position

    def _not_found(self, name: str, identifier: str) -> Steps[SagaNotFound]:
        names = yield from self._rows.names_known()
        known = f" (names of open sagas: {', '.join(names)})" if names and name not in names else ""
        return SagaNotFound(
            f"there is no saga {name!r} with the id {identifier!r}: check both, as `postroom sagas list` shows "
            f"them{known}; it may have been removed by retention"
        )

    def _act(
        self,
        action: Action,
        which: SagaFilter,
        states: Collection[SagaState],
        act: Callable[[Sequence[ListedSaga]], Steps[Done]],
        progress: Progress | None,
    ) -> Steps[SagaActResult]:
        """Do it to all that are selected; where neither ids nor states are given, to those where it makes sense."""
        selected = which if which.ids is not None or which.states is not None else which.only(states)
        done: list[SagaRef] = []
        refused: list[RefusedSaga] = []
        before: int | None = None
        while True:
            positions = yield from self._rows.positions(selected, CHUNK, before)
            sagas = yield from self._rows.read(positions)
            ended = yield from act(sagas)
            for saga in sagas:
                refusal = ended.get(saga.position)
                if refusal is None:
                    done.append(SagaRef(saga.name, saga.id))
                else:
                    refused.append(RefusedSaga(saga.name, saga.id, refusal.reason))
            if progress:
                progress(len(positions))
            if len(positions) < CHUNK:
                break
            before = positions[-1]
        if which.ids is not None:
            there = {saga.id for saga in done} | {saga.id for saga in refused}
            refused += [RefusedSaga(which.name or "", one, "not found") for one in which.ids if one not in there]
        return SagaActResult(action, tuple(done), tuple(refused))


_VERBS = {"resume": "resume", "skip": "skip a step of", "abort": "abort"}
