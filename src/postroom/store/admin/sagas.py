"""List and count sagas: open ones from the small table of deliveries, ended ones along their index, newest first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from postroom.rules.lifecycle import Stored
from postroom.rules.naming import SAGA_QUEUE, saga_key
from postroom.rules.ordering import NO_LANE
from postroom.rules.saga_plan import Direction, SagaOutcome
from postroom.rules.saga_state import STEP_MISSING, SagaState, saga_state
from postroom.store.admin.saga_filter import EVERY_SAGA, SagaFilter, state_condition
from postroom.store.sql.dialect import text, whole_numbers
from postroom.store.sql.operations import chunks
from postroom.store.sql.skip_scan import SkipScan
from postroom.store.sql.states import in_state, unsettled
from postroom.store.sql.steps import Query, Row, Steps

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from datetime import datetime

    from postroom.store.sql.names import Names

_BEHIND = SAGA_QUEUE[:-1] + chr(ord(SAGA_QUEUE[-1]) + 1)
"""Behind every saga's queue, in the order of their names."""
LAST = 2**63 - 1
MOST = 250_000
"""Open sagas of one stored state that are counted. A count that reaches it means: this many, or more."""

_STATES = {SagaOutcome.COMPLETED: SagaState.COMPLETED, SagaOutcome.COMPENSATED: SagaState.COMPENSATED}
ENDED = {
    # Most are: so PostgreSQL reads the primary key backwards, and not all of them, if it has no statistics.
    SagaState.COMPLETED: f"s.outcome <> {int(SagaOutcome.OPEN)} AND s.outcome <> {int(SagaOutcome.COMPENSATED)}",
    SagaState.COMPENSATED: f"s.outcome = {int(SagaOutcome.COMPENSATED)}",
}
"""The condition for each state in which a saga `s` has ended."""


@dataclass(frozen=True, slots=True)
class ListedSaga:
    """One instance of a saga, without its data."""

    position: int
    name: str
    id: str
    state: SagaState
    started_at: datetime | None
    ended_at: datetime | None
    deadline: datetime | None
    attempts: int
    """Failed attempts of what comes next."""
    due: datetime | None
    """When it is looked at next, if it waits."""
    owner: str | None
    """The worker that holds it."""
    failed_step: str | None
    """The step whose failure made it go back."""
    error_code: str | None
    """Of its last error; without one, of the error for which it went back."""
    error_message: str | None
    aborted_by: str | None


@dataclass(frozen=True, slots=True)
class SagaCount:
    """How many instances of a saga are in a state."""

    name: str
    state: SagaState
    count: int


class _Delivery(NamedTuple):
    position: int
    state: int
    leased: bool
    taken: bool
    owner: str
    attempts: int
    due: Any
    error_code: str
    error_message: str


class Sagas(SkipScan):
    """The sagas of all names."""

    def __init__(self, names: Names) -> None:
        super().__init__(names)
        self.saga = self.tables["saga"]
        on_record = f"EXISTS (SELECT 1 FROM {self.tables['saga_step']} t WHERE t.position = d.position)"
        self._facts = {
            "back": f"s.direction = {int(Direction.BACK)}",
            "stranded": f"d.error_code = '{STEP_MISSING}'",
            "taken": f"(d.claims > 0 OR {on_record})",
        }

    def listed(
        self, which: SagaFilter = EVERY_SAGA, limit: int = 50, before: int | None = None
    ) -> Steps[list[ListedSaga]]:
        """Sagas, newest first, from before a position on."""
        positions = yield from self.positions(which, limit, before)
        return (yield from self.read(positions))

    def positions(self, which: SagaFilter = EVERY_SAGA, limit: int = 50, before: int | None = None) -> Steps[list[int]]:
        """Where those are that match, newest first. One statement finds them, so that none is missed as it moves."""
        parts, params = yield from self._parts(which)
        if not parts:
            return []
        all_parts = " UNION ALL ".join(f"SELECT position FROM ({part}) p{n}" for n, part in enumerate(parts))
        found = yield Query(
            f"SELECT position FROM ({all_parts}) p ORDER BY position DESC LIMIT :limit",
            {**params, "limit": limit, "before": LAST if before is None else before},
        )
        return [position for [position] in found.rows]

    def count(self, which: SagaFilter = EVERY_SAGA) -> Steps[int]:
        """How many match. Reads all of them."""
        parts, params = yield from self._parts(which)
        if not parts:
            return 0
        all_parts = " UNION ALL ".join(f"SELECT position FROM ({part}) p{n}" for n, part in enumerate(parts))
        found = yield Query(f"SELECT count(*) FROM ({all_parts}) p", {**params, "limit": LAST, "before": LAST})
        return int(found.rows[0][0])

    def read(self, positions: Sequence[int]) -> Steps[list[ListedSaga]]:
        """What there is to tell of these, in this order."""
        listed: dict[int, ListedSaga] = {}
        for some in chunks(positions):
            listed |= yield from self._read(some)
        return [listed[position] for position in positions if position in listed]

    def open_counts(self, most: int = MOST) -> Steps[list[SagaCount]]:
        """How many are open, by name and state, at a cost that does not grow with what has ended."""
        counts: dict[tuple[str, SagaState], int] = {}
        for stored in Stored:
            found = yield Query(
                f"SELECT queue, direction, stranded, taken, count(*) FROM ({self._open(stored, most)}) d "
                "WHERE direction IS NOT NULL GROUP BY queue, direction, stranded, taken"
            )
            for queue, direction, stranded, taken, count in found.rows:
                code = STEP_MISSING if stranded else ""
                state = saga_state(Direction(direction), SagaOutcome.OPEN, stored, taken=bool(taken), error_code=code)
                place = text(queue).removeprefix(SAGA_QUEUE), state
                counts[place] = counts.get(place, 0) + count
        return _counts(counts)

    def ended_counts(self) -> Steps[list[SagaCount]]:
        """How many have ended, by name and outcome. Reads all sagas."""
        found = yield Query(
            f"SELECT name, outcome, count(*) FROM {self.saga} WHERE outcome <> {int(SagaOutcome.OPEN)} "
            "GROUP BY name, outcome ORDER BY name, outcome"
        )
        return [SagaCount(text(name), _STATES[SagaOutcome(outcome)], count) for name, outcome, count in found.rows]

    def counts(self) -> Steps[list[SagaCount]]:
        """How many there are, by name and state. Reads all sagas."""
        found = [*(yield from self.open_counts()), *(yield from self.ended_counts())]
        return _counts({(one.name, one.state): one.count for one in found})

    def _open(self, stored: Stored, most: int) -> str:
        """Deliveries with what their state follows from; the direction of a signal, which is no saga, is NULL."""
        facts = [f"CASE WHEN {self._facts[name]} THEN 1 ELSE 0 END AS {name}" for name in ("stranded", "taken")]
        return (
            f"SELECT d.queue, (SELECT s.direction FROM {self.saga} s WHERE s.position = d.position) AS direction, "
            f"{', '.join(facts)} FROM (SELECT queue, position, claims, error_code FROM {self.delivery} "
            f"WHERE {in_state(stored)} AND queue > '{SAGA_QUEUE}' AND queue < '{_BEHIND}' LIMIT {most}) d"
        )

    def _parts(self, which: SagaFilter) -> Steps[tuple[list[str], dict[str, Any]]]:
        """A statement for each place where those may be that match: it reads an index backwards, for one page."""
        conditions, params = self._conditions(which)
        failed = "" if which.as_of is None else "AND d.failed_at <= :as_of "
        only = ""
        if which.ids is not None:
            only = (
                f"AND {{}}.position IN ({whole_numbers((yield from self.positions_of(which.name or '', which.ids)))}) "
            )
        parts: list[str] = []
        queues: dict[str, str] = {}
        for stored in Stored:
            in_wanted = state_condition(stored, which.chosen, self._facts)
            for queue in () if in_wanted is None else (yield from self.queues_of(stored, which.name)):
                label = queues.setdefault(queue, f"queue_{len(queues)}")
                parts.append(
                    f"SELECT d.position FROM {self.delivery_as('d')} WHERE {in_state(stored, 'd')} "
                    f"AND d.queue = :{label} AND d.lane = {NO_LANE} AND d.position < :before {only.format('d')}{failed}"
                    # A scalar subquery, which no planner turns round: it would start at all sagas, ended ones included.
                    f"AND (SELECT 1 FROM {self.saga} s WHERE s.position = d.position AND {in_wanted} "
                    f"{conditions.format(code=' OR d.error_code = :code')}) = 1 "
                    "ORDER BY d.position DESC LIMIT :limit"
                )
        if which.ids is not None and SagaState.PARKED in which.chosen:
            label = queues.setdefault(f"{SAGA_QUEUE}{which.name}", f"queue_{len(queues)}")
            parts.append(
                f"SELECT s.position FROM {self.saga} s WHERE {self.without_delivery(label)} {only.format('s')}"
                f"{conditions.format(code='')}AND s.position < :before "
                "ORDER BY s.position DESC LIMIT :limit"
            )
        for state, ended in ENDED.items():
            if state in which.chosen:
                name = "" if which.name is None else "AND s.name = :name "
                parts.append(
                    f"SELECT s.position FROM {self.saga} s WHERE {ended} AND s.position < :before "
                    f"{only.format('s')}{name}{conditions.format(code='')}ORDER BY s.position DESC LIMIT :limit"
                )
        return parts, {**params, **{label: queue for queue, label in queues.items()}}

    def without_delivery(self, queue: str) -> str:
        """The condition for an open saga `s` whose delivery somebody has deleted.

        `queue` is the parameter with its queue. To be used next to positions: no index knows these.
        """
        return (
            f"s.outcome = {int(SagaOutcome.OPEN)} AND NOT EXISTS (SELECT 1 FROM {self.delivery_as('d')} "
            f"WHERE {unsettled('d')} AND d.queue = :{queue} AND d.lane = {NO_LANE} "
            "AND d.position = s.position)"
        )

    def delivery_as(self, alias: str) -> str:
        """The deliveries, to be found by primary key."""
        return f"{self.delivery} {alias}{self.dialect.by_primary_key}"

    def _conditions(self, which: SagaFilter) -> tuple[str, dict[str, Any]]:
        """What the filter says about saga `s`, each condition with AND before it. `{code}` is what else may match."""
        age = None if which.older_than is None else -which.older_than.total_seconds()
        conditions = {
            "code": ("(s.error_code = :code{code})", which.code),
            "older_than": (f"s.started <= {self.dialect.later(':older_than')}", age),
            "as_of": ("s.started <= :as_of", self.dialect.moment(which.as_of)),
        }
        given = {name: condition for name, condition in conditions.items() if condition[1] is not None}
        params: dict[str, Any] = {name: value for name, (_, value) in given.items()}
        if which.name is not None:
            params["name"] = which.name
        return "".join(f"AND {sql} " for sql, _ in given.values()), params

    def positions_of(self, name: str, ids: Collection[str]) -> Steps[list[int]]:
        """Where the instances with these ids are, in order."""
        return (yield from self.with_keys([saga_key(name, one) for one in set(ids)]))

    def with_keys(self, keys: Collection[str]) -> Steps[list[int]]:
        """Where the messages with these idempotency keys are, in order."""
        positions: list[int] = []
        for chunk in chunks(sorted(keys)):
            params = {f"key_{n}": key for n, key in enumerate(chunk)}
            places = ", ".join(f":{label}" for label in params)
            found = yield Query(f"SELECT position FROM {self.outbox} WHERE idempotency_key IN ({places})", params)
            positions += [position for [position] in found.rows]
        return sorted(positions)

    def queues_of(self, stored: Stored, name: str | None) -> Steps[list[str]]:
        """The queues of sagas that have deliveries in this stored state: of one name, or of all."""
        if name is not None:
            return [f"{SAGA_QUEUE}{name}"]
        within = f"{in_state(stored)} AND queue < '{_BEHIND}'"
        return [text(queue) for queue in (yield from self._values("queue", within, {}, SAGA_QUEUE))]

    def _read(self, positions: Sequence[int]) -> Steps[dict[int, ListedSaga]]:
        # Deliveries first: one that ends meanwhile is then found twice, and not nowhere.
        names = yield from self._names(positions)
        deliveries = yield from self._deliveries(positions, names)
        moments = ", ".join(self.dialect.readable(f"s.{name}") for name in ("started", "ended", "deadline"))
        found = yield Query(
            f"SELECT s.position, s.name, s.id, s.direction, s.outcome, {moments}, s.failed_step, s.error_code, "
            f"s.error_message, s.aborted_by FROM {self.saga} s WHERE s.position IN ({whole_numbers(positions)})"
        )
        return {row[0]: self._listed(row, deliveries.get(row[0])) for row in found.rows}

    def _names(self, positions: Sequence[int]) -> Steps[set[str]]:
        found = yield Query(f"SELECT DISTINCT name FROM {self.saga} WHERE position IN ({whole_numbers(positions)})")
        return {text(name) for [name] in found.rows}

    def _deliveries(self, positions: Sequence[int], names: Collection[str]) -> Steps[dict[int, _Delivery]]:
        queues = {f"queue_{n}": f"{SAGA_QUEUE}{name}" for n, name in enumerate(sorted(names))}
        if not queues:
            return {}
        due = f"nullif({self.dialect.readable('d.due')}, {self.dialect.never})"
        found = yield Query(
            f"SELECT d.position, d.state, d.leased_until > {self.now}, {self._facts['taken']}, d.owner, "
            f"{self.dialect.whole('d.attempts')}, {due}, d.error_code, d.error_message "
            f"FROM {self.delivery_as('d')} WHERE {unsettled('d')} AND d.lane = {NO_LANE} "
            f"AND d.queue IN ({', '.join(f':{label}' for label in queues)}) "
            f"AND d.position IN ({whole_numbers(positions)})",
            queues,
        )
        return {row[0]: _Delivery(*row) for row in found.rows}

    def _listed(self, row: Row, delivery: _Delivery | None) -> ListedSaga:
        position, name, identifier, direction, outcome, started, ended, deadline, step, code, message, by = row
        moment = self.dialect.read_moment
        at = delivery if outcome == SagaOutcome.OPEN else None
        state = saga_state(
            *(Direction(direction), SagaOutcome(outcome), None if at is None else Stored(at.state)),
            taken=at is not None and bool(at.taken),
            error_code="" if at is None else at.error_code,
        )
        failed = at is not None and bool(at.error_code)
        waits = at is not None and at.state in (Stored.SCHEDULED, Stored.RETRY)
        return ListedSaga(
            *(position, text(name), text(identifier), state),
            *(moment(started), moment(ended), moment(deadline)),
            attempts=at.attempts if at else 0,
            due=moment(at.due) if at and waits else None,
            owner=(at.owner or None) if at and at.leased else None,
            failed_step=text(step) or None,
            error_code=(at.error_code if at and failed else text(code)) or None,
            error_message=(at.error_message if at and failed else text(message)) or None,
            aborted_by=text(by) or None,
        )


def _counts(counts: Mapping[tuple[str, SagaState], int]) -> list[SagaCount]:
    """By name, and then in the order of the states."""
    order = list(SagaState)
    places = sorted(counts, key=lambda place: (place[0], order.index(place[1])))
    return [SagaCount(*place, counts[place]) for place in places]
